"""`unisono filter`: like grep, on JSON lines."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from unisono.cli.main import main

LINES = b'{"px": 101, "sym": "IBM"}\n{"px":99}\n{"order": {"px": 7}}\n'


@dataclass
class Done:
    """What a run left behind."""

    status: object
    out: bytes
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Done]:
    def command(*arguments: str) -> Done:
        monkeypatch.setattr("sys.argv", ["unisono", "filter", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
        out, err = capfdbinary.readouterr()
        return Done(exit.value.code, out, err.decode())

    return command


@pytest.fixture(scope="module")
def trades(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("filter") / "trades.jsonl"
    path.write_bytes(LINES)
    return str(path)


def test_matching_lines_come_out_unchanged(run: Callable[..., Done], trades: str) -> None:
    done = run("px > 100 or order.px = 7", trades)
    assert (done.status, done.out) == (0, b'{"px": 101, "sym": "IBM"}\n{"order": {"px": 7}}\n')


def test_exit_status_is_that_of_grep(run: Callable[..., Done], trades: str) -> None:
    assert run("px = 0", trades).status == 1
    assert run("px >", trades).status == 2
    assert run("px > 0", trades + "-not-there").status == 2


def test_bad_lines_are_reported_and_nothing_else_is_lost() -> None:
    command = [sys.executable, "-c", "from unisono.cli.main import main; main()", "filter", "px > 0"]
    lines = b'{"px": 1}\nnot json\n[1]\n\n{"px": "\\ud800"}\n{"px": 2}'
    done = subprocess.run(command, input=lines, capture_output=True, check=False)
    assert done.stdout == b'{"px": 1}\n{"px": 2}\n'
    assert [line.split(b":")[1] for line in done.stderr.splitlines()] == [b"2", b"3", b"5"]
    assert done.returncode == 2


def test_json_says_where_and_how_many(run: Callable[..., Done], trades: str) -> None:
    done = run("--json", "px < 100", trades)
    rows = [msgspec.json.decode(line) for line in done.out.splitlines()]
    assert rows == [{"file": trades, "line": 2, "event": {"px": 99}}, {"lines": 3, "matched": 1, "bad": 0}]


def test_the_usual_flags(run: Callable[..., Done], trades: str) -> None:
    assert run("-c", "exists px", trades).out == b"2\n"
    assert run("-v", "-n", "exists px", trades).out == b'3:{"order": {"px": 7}}\n'


def test_a_wrong_filter_is_shown_with_a_mark(run: Callable[..., Done], trades: str) -> None:
    lines = run("px > > 3", trades).err.splitlines()
    assert lines[0].startswith("unisono filter: column 6: expected a number")
    assert lines[2].index("^") - lines[1].index("p") == 5
