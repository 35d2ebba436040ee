"""`unisono simulate`: shapes, exit codes, replay."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.audit import read
from unisono.cli.main import main
from unisono.sim import scenario

BROKEN = """
protocol = "fifo"
promises = ["fifo", "complete"]
ens = { kind = "reorder", loss = { rate = 0.3 } }
options = { deadline_us = 100_000 }
"""


class Ran:
    """What a command printed and how it ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def report(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def unisono(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["unisono", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run


def test_a_promise_kept_by_all_runs_exits_0(unisono: Run) -> None:
    ran = unisono("simulate", "fifo/reorder", "--seeds", "0..4,9", "--json")
    assert ran.status == 0
    assert ran.err == ""
    report = ran.report
    assert (report["runs"], report["failed_seeds"]) == (6, [])
    assert report["deliveries"] == sum(
        record.kind == "deliver"
        for seed in (0, 1, 2, 3, 4, 9)
        for record in scenario.play(scenario.load("fifo/reorder"), seed).records
    )
    assert [(verdict["judge"], verdict["holds"]) for verdict in report["verdicts"]] == [
        ("fifo", True),
        ("publisher-order", True),
        ("exactly-once", True),
        ("complete", True),
        ("kept", True),
    ]


def test_a_promise_that_no_run_shows_a_case_of_exits_2(unisono: Run) -> None:
    ran = unisono("simulate", "fifo/reorder", "--seeds", "0..1", "--set", "workload.rate_per_s=0", "--json")
    assert ran.status == 2
    assert "nothing to judge in any run" in ran.err
    assert [verdict for verdict in ran.report["verdicts"] if verdict["holds"] or verdict["judged"]] == []


def test_a_failing_seed_exits_1_and_prints_the_command_that_replays_it(unisono: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(BROKEN)
    ran = unisono("simulate", path, "--set", "workload.clients=3", "--seeds", "0..3", "--json")
    assert ran.status == 1
    failed = ran.report["failed_seeds"]
    assert failed
    verdicts = {verdict["judge"]: verdict for verdict in ran.report["verdicts"]}
    assert verdicts["fifo"]["holds"]
    assert not verdicts["complete"]["holds"]
    assert verdicts["complete"]["witness"].startswith(f"seed {failed[0]}: ")

    replay = next(line for line in ran.err.splitlines() if "replay:" in line).partition("replay: ")[2]
    words = shlex.split(replay)
    assert words[:2] == ["unisono", "simulate"]
    again = unisono(*words[1:-1], tmp_path / "kept", "--json")
    assert again.report["failed_seeds"] == [failed[0]]
    journal = read(tmp_path / "kept" / f"broken-{failed[0]}.jsonl")
    assert journal.header.seed == failed[0]
    assert journal.header.promises == ("fifo", "complete")


def test_journals_are_kept_and_identical_the_second_time(unisono: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        assert unisono("simulate", "fifo/lossy", "--seeds", "0..1", "--journal", tmp_path / folder).status == 0
    for seed in (0, 1):
        one, two = (tmp_path / folder / f"fifo-lossy-{seed}.jsonl" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size > 10_000


def test_seeds_shared_by_processes_give_the_same_report(unisono: Run) -> None:
    alone = unisono("simulate", "fifo/lossy", "--seeds", "0..5", "--json")
    shared = unisono("simulate", "fifo/lossy", "--seeds", "0..5", "--json", "--jobs", "2")
    assert alone.report == shared.report


def test_the_built_in_scenarios_are_listed(unisono: Run) -> None:
    assert list(unisono("simulate", "--list", "--json").report) == scenario.names()
    assert "fifo/reorder" in unisono("simulate", "--list").out


def test_a_verdict_for_people(unisono: Run) -> None:
    ran = unisono("simulate", "fifo/reorder", "--seeds", "3")
    assert ran.out.splitlines()[0].startswith("fifo/reorder: 1 runs, ")
    assert "  fifo holds" in ran.out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fifo/nothing"], "no scenario 'fifo/nothing'"),
        (["missing.toml"], "No such file"),
        (["fifo/reorder", "--seeds", "seven"], "--seeds 'seven'"),
        (["fifo/reorder", "--seeds", "5..3"], "names no seed"),
        (["fifo/reorder", "--set", "workload.clients=many"], "many|int"),
        (["fifo/reorder", "--set", "clients"], "KEY=VALUE"),
        (["fifo/reorder", "--set", "promises=[]"], "promises nothing"),
        (["fifo/reorder", "--set", 'promises=["luck"]'], "no judge 'luck'"),
        (["fifo/reorder", "--set", "options.nonsense=1"], "nonsense"),
        ([], "--list"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_2(unisono: Run, arguments: list[str], complaint: str) -> None:
    ran = unisono("simulate", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert any(word in ran.err for word in complaint.split("|"))


def test_broken_files_are_told_by_their_name(unisono: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for text in (b"protocol = ", b"\xff\xfe", b'protocol = "fifo"\n[workload]\nclients = "x"', b""):
        path.write_bytes(text)
        ran = unisono("simulate", path)
        assert ran.status == 2
        assert len(ran.err.splitlines()) == 1
        assert "bad.toml" in ran.err
