"""The frame of the command line: quick help, one line for what cannot run, exit 0/1/2."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from unisono.cli.doctor import disk, reach
from unisono.cli.main import COMMANDS, EXTRA_OF_MODULE, application, main
from unisono.errors import MisuseError, TransportError

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


def leaves() -> list[tuple[str, ...]]:
    """Every command that does something itself."""
    found: list[tuple[str, ...]] = []
    for command in COMMANDS:
        app = getattr(import_module(f"unisono.cli.{command.module}"), command.name)
        if not isinstance(app, typer.Typer):
            found.append((command.name,))
            continue
        each = app.registered_commands
        found += [(command.name, info.name or getattr(info.callback, "__name__", "")) for info in each]
    return found


@pytest.mark.parametrize("words", [words for words in leaves() if words != ("experiment", "run")])
def test_help_has_an_example_that_can_be_copied(words: tuple[str, ...]) -> None:
    """On one line, whatever the width; and its options are options."""
    shown = CliRunner().invoke(application(words[0]), [*words, "--help"], prog_name="unisono", terminal_width=80).output
    examples = re.findall(r"^  Example: unisono (.+)$", shown, re.M)
    assert examples, shown
    for example in examples:
        typed = shlex.split(example)
        assert typed[: len(words)] == list(words)
        assert [word for word in typed if word.startswith("--") and word not in shown] == []


def test_what_can_be_nowhere_is_told_before_anything_is_waited_for() -> None:
    nowhere = "unisono://127.0.0.1:1"
    for words, problem in (
        (("sub", nowhere, "trades", "--deadline", "5"), "deadline"),
        (("sub", nowhere, "trades", "--where", "px >"), "expected a number"),
        (("sub", nowhere, "trades", "--start", "yesterday"), "position"),
        (("sub", nowhere, "tra des"), "is not a word"),
        (("sub", nowhere, "trades", "--name", "me"), "--state"),
        (("sub", nowhere, "trades", "--share", "key"), "group="),
        (("pub", nowhere, "tra des", "1"), "is not a word"),
    ):
        result = CliRunner().invoke(application(words[0]), list(words), prog_name="unisono")
        assert isinstance(result.exception, MisuseError), words
        assert problem in str(result.exception)


WRONG_KINDS = [
    (("status", "{binary}"), "not a text file"),
    (("doctor", "{binary}"), "not a text file"),
    (("node", "{binary}", "a"), "not a text file"),
    (("rights", "{binary}"), "not a text file"),
    (("status", "{empty}"), "has none: add [[nodes]]"),
    (("doctor", "{empty}"), "has none: add [[nodes]]"),
    (("simulate", "{binary}.toml"), "No such file"),
    (("plan", "placement", "{csv}", "{csv}", "--distances", "{binary}"), "not a text file"),
    (("replica", "check", "{folder}"), "is no file"),
    (("replica", "check", "{binary}"), "no replica's file"),
    (("outbox", "unisono://127.0.0.1:1", "shop", "--table", "t"), "write postgres://"),
    (("plan", "groups", "{folder}"), "is a directory"),
    (("status", "{folder}"), "Is a directory"),
    (("audit", "{folder}"), "holds no journal"),
    (("simulate", "fifo/reorder", "--seeds", "0", "--journal", "{binary}"), "File exists"),
    (("simulate", "fifo/reordr"), "did you mean fifo/reorder?"),
    (("context", "add", "a", "unisono://h"), "has a host and a port"),
    (("context", "add", "a", "unisono://h:99999"), "ports end at 65535"),
    (("context", "add", "a", "http://h:1"), "http:// is none of them"),
    (("context", "add", "a", "unisono://h:1", "--authority", "nowhere.pem"), "no such file"),
    (("status", "memory://"), "inside one program"),
    (("topics", "unisono://127.0.0.1:1", "tr*"), "one whole word"),
    (("sub", "unisono://127.0.0.1:1", "trades", "--name", "../me", "--state", "s"), "also that of a file"),
    (("init", "new.toml", "--region", "a/b"), "no name for a node"),
    (("init", "new.toml", "--region", "eu", "--region", "eu"), "--region eu is named twice"),
    (("node", "unisono://127.0.0.1:7474", "eu"), "the deployment file itself is read"),
    (("rights", "unisono://127.0.0.1:7474"), "the deployment file itself is read"),
    (("plan", "groups", "{jsonl}"), "has no subscriptions"),
    (("init", "new.toml", "--server", "n:4222"), "write nats://host:port"),
    (("init", "new.toml", "--server", "nats://n:1", "--name", "my shop"), "'my shop'"),
]


@pytest.mark.parametrize(("words", "problem"), WRONG_KINDS, ids=lambda value: " ".join(value).replace("/", ":"))
def test_a_wrong_file_or_address_is_one_line_and_exit_2(
    words: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    places = {name: tmp_path / name for name in ("binary", "folder", "csv", "empty")}
    places["jsonl"] = tmp_path / "nothing.jsonl"
    places["jsonl"].touch()
    places["binary"].write_bytes(b"\x00\xff\xfe")
    places["csv"] = tmp_path / "rows.csv"
    places["csv"].write_text("subscriber,topic,region,rate\nann,trades,eu,1\n")
    places["folder"].mkdir()
    places["empty"].write_text("version = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNISONO_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.setattr(sys, "argv", ["unisono", *(word.format(**places) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert problem in said
    assert len(said.splitlines()) == 1
    assert "Errno" not in said
    assert not (tmp_path / "new.toml").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("status", "d.toml", "--timeout", "-1"),
        ("pub", "d.toml", "t", "1", "--timeout", "0"),
        ("topics", "d.toml", "--seconds", "0"),
        ("init", "d.toml", "--port", "99999"),
        ("up", "--port", "-5"),
        ("up", "--rate", "-1"),
        ("up", "--seconds", "nan"),
        ("doctor", "--timeout", "nan"),
    ],
)
def test_a_number_that_cannot_be_is_refused(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(application(words[0]), list(words), prog_name="unisono")
    assert result.exit_code == 2
    assert "Invalid value for" in result.output


@pytest.mark.parametrize("words", leaves())
def test_help_shows_arguments_in_capitals_and_whole_lines(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(application(words[0]), [*words, "--help"], prog_name="unisono", terminal_width=80).output
    usage = shown.partition("\n\n")[0].partition("OPTIONS]")[2]
    assert re.findall(r"(?<![.a-z])[a-z]+", usage) == []
    assert "[[" not in usage
    assert "--json" in shown or words in (("node",), ("experiment", "run")), "a node's log is JSON if asked for"
    listing = CliRunner().invoke(application(None), ["--help"], prog_name="unisono", terminal_width=80).output
    assert [line for line in listing.splitlines()[1:] if line.endswith("...")] == []


def test_who_waits_for_a_node_is_told_for_what(caplog: pytest.LogCaptureFixture) -> None:
    words = ["sub", "unisono://127.0.0.1:1", "trades", "--timeout", "4"]
    result = CliRunner().invoke(application("sub"), words, prog_name="unisono")
    assert isinstance(result.exception, TransportError)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("127.0.0.1:1: Connection refused; asking again for")


@pytest.mark.parametrize("words", [("simulate", "--list"), ("doctor",)])
def test_lines_in_a_pipe_end_where_their_text_ends(words: tuple[str, ...]) -> None:
    lines = unisono(*words).stdout.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line != line.rstrip()] == []


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
    blocked = "import types; m = types.ModuleType('unisono.cli.doctor'); sys.modules['dns'] = None\n"
    blocked += "class Finder:\n  def find_spec(self, name, *_):\n    if name == 'unisono.cli.doctor': import dns\n"
    done = unisono("doctor", before=blocked + "sys.meta_path.insert(0, Finder())")
    assert done.stderr == "unisono: dns is not installed; it comes with: pip install 'unisono[dns]'\n"
    assert done.returncode == 2


def test_a_node_whose_role_needs_an_extra_says_which(tmp_path: Path) -> None:
    text = 'version = 1\n[[nodes]]\nname = "hub"\nlisten = "127.0.0.1:0"\nobserve = "off"\ndata = "data"\n'
    (tmp_path / "d.toml").write_text(text + 'roles = ["sequencer", "broker", "archive"]\n')
    done = unisono("node", str(tmp_path / "d.toml"), "hub", before="sys.modules['pyarrow'] = None")
    assert (
        done.stderr.splitlines()[-1] == "unisono: pyarrow is not installed; it comes with: pip install 'unisono[arrow]'"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_a_wrong_flag_is_exit_2() -> None:
    assert unisono("doctor", "--no-such-flag").returncode == 2


def test_doctor_tells_an_unreachable_broker_and_an_unwritable_place(tmp_path: Path) -> None:
    findings = [disk(tmp_path / "nowhere"), reach("nats://127.0.0.1:1"), reach("nonsense"), reach("nats://[:x")]
    assert [finding.state for finding in findings] == ["broken"] * 4
    assert "write scheme://host:port" in findings[2].detail
