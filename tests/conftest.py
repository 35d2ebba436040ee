"""What the whole suite shares: Spark only where it can run, files kept together, a second try where real processes
meet a busy machine, and the time every room took."""

import os
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.budget import told
from tests.ledger import Ledger

# A busy machine is no bug, and the default suite is red or green by the code alone; campaigns look for new cases.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("campaign", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("UNISONO_HYPOTHESIS", "suite"))

LONG_ROOMS = ["spark", "runtime", "sim"]
REAL_ROOMS = ["spark", "runtime"]
"""Servers, sockets and signals: here, and only here, a failing test is tried once more, and both tries are told of."""
SECOND_TRIES_MAX = 3
"""Per worker; beyond it something is broken, not busy."""

spent: Counter[str] = Counter()
unsteady: dict[str, str] = {}
second_tries: list[str] = []
resumed: list[Ledger] = []  # with --resume, the one of this campaign


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "keep what passes in out/results, and leave out what has passed and cannot have changed since"
    parser.addoption("--resume", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("resume"):
        resumed.append(Ledger("campaign"))


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for ledger in resumed:
        passed = [item for item in items if ledger.has_passed(item.nodeid)]
        items[:] = [item for item in items if not ledger.has_passed(item.nodeid)]
        config.hook.pytest_deselected(items=passed)
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


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    is_campaign = item.get_closest_marker("campaign") is not None  # evidence is not tried twice
    if room_of(item.nodeid) not in REAL_ROOMS or is_campaign or item.config.getoption("usepdb"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    if failed and len(second_tries) < SECOND_TRIES_MAX:
        second_tries.append(item.nodeid)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports:
            report.user_properties.append(("first try", failed[0].longreprtext))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent[room_of(report.nodeid)] += report.duration
    if report.when == "call" and not report.skipped and "PYTEST_XDIST_WORKER" not in os.environ:
        for ledger in resumed:
            note = "" if report.passed else report.longreprtext[-500:]
            ledger.add(report.nodeid, (report.nodeid.partition("::")[0],), report.passed, report.duration, note)
    for name, text in report.user_properties:
        if name == "first try":
            unsteady[report.nodeid] = str(text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid, text in unsteady.items():
        terminalreporter.section(f"needed a second try: {nodeid}")
        terminalreporter.write_line(text)
    terminalreporter.section("seconds per room, of those in tests/budget.toml")
    for line in told(spent):
        terminalreporter.write_line(line)
    if (reason := spark_cannot_run()) is not None:
        terminalreporter.write_line(f"The Spark room did not run: {reason}.")
