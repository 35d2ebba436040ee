"""What the whole suite shares: Spark only where it can run, files kept together, and the time every room took."""

import os
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no bug, and the default suite is red or green by the code alone; campaigns look for new cases.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("campaign", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("UNISONO_HYPOTHESIS", "suite"))

LONG_ROOMS = ["spark", "runtime", "sim"]
spent: Counter[str] = Counter()


@cache
def spark_cannot_run() -> str | None:
    """Why not, in words; None when it can."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return "no Java 17+ found"
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    major = re.search(r'version "(\d+)', answer)
    return None if major and int(major[1]) >= 17 else "the Java found is older than 17"


def room_of(nodeid: str) -> str:
    """The directory of tests/ that a test lives in; files right in tests/ are the house's."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "house"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") is None and room_of(item.nodeid) == "spark":
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") is not None and (reason := spark_cannot_run()) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    # The long rooms first, so that no worker ends up alone with one of them.
    items.sort(key=lambda item: LONG_ROOMS.index(room) if (room := room_of(item.nodeid)) in LONG_ROOMS else 99)


class FileByFile(LoadScopeScheduling):
    """One worker per file, so module fixtures stay single, and one for all of Spark, so there is one JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if room_of(nodeid) == "spark" else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileByFile:
    return FileByFile(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent[room_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per room")
    for room, seconds in spent.most_common():
        terminalreporter.write_line(f"{seconds:8.1f}  {room}")
    if (reason := spark_cannot_run()) is not None:
        terminalreporter.write_line(f"The Spark room did not run: {reason}.")
