"""The frame of the command line: quick help, one line for what cannot run, exit 0/1/2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli.doctor import disk, reach
from unisono.cli.main import COMMANDS, EXTRA_OF_MODULE, application

ROOT = Path(__file__).parents[2]


def unisono(*arguments: str, before: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own; `before` is run first in it."""
    code = f"import sys\n{before}\nfrom unisono.cli.main import main\nmain()"
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_help_lists_every_command_and_imports_none() -> None:
    done = unisono("--help", before="import atexit; atexit.register(lambda: print('LOADED', *sys.modules))")
    listing, _, loaded = done.stdout.partition("LOADED")
    assert done.returncode == 0
    assert [command.name for command in COMMANDS if command.name not in listing] == []
    assert sorted(EXTRA_OF_MODULE.keys() & set(loaded.split())) == []
    assert not [module for module in loaded.split() if module.startswith(("unisono.sim", "unisono.audit"))]


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_listed_command_is_there(command: str) -> None:
    result = CliRunner().invoke(application(command), [command, "--help"], prog_name="unisono")
    assert result.exit_code == 0
    assert f"Usage: unisono {command}" in result.output


def test_version_is_the_installed_one() -> None:
    done = unisono("--version")
    assert done.stdout.startswith("unisono 0.")
    assert done.returncode == 0


def test_an_error_is_one_line_and_exit_2() -> None:
    done = unisono("experiment", "run", "no-such-thing")
    assert done.returncode == 2
    assert done.stderr.startswith("unisono: no experiment 'no-such-thing'")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_extra_is_named() -> None:
    done = unisono("doctor", "--json", before="sys.modules['msgspec.json'] = sys.modules['msgspec'] = None")
    assert "Traceback" in done.stderr, "the core's own dependencies have no extra to name"
    blocked = "import types; m = types.ModuleType('unisono.cli.doctor'); sys.modules['redis'] = None\n"
    blocked += "class Finder:\n  def find_spec(self, name, *_):\n    if name == 'unisono.cli.doctor': import redis\n"
    done = unisono("doctor", before=blocked + "sys.meta_path.insert(0, Finder())")
    assert done.stderr == "unisono: redis is not installed; it comes with: pip install 'unisono[redis]'\n"
    assert done.returncode == 2


def test_a_wrong_flag_is_exit_2() -> None:
    assert unisono("doctor", "--no-such-flag").returncode == 2


def test_doctor_tells_an_unreachable_broker_and_an_unwritable_place(tmp_path: Path) -> None:
    findings = [disk(tmp_path / "nowhere"), reach("nats://127.0.0.1:1"), reach("nonsense"), reach("nats://[:x")]
    assert [finding.state for finding in findings] == ["broken"] * 4
    assert "write scheme://host:port" in findings[2].detail
