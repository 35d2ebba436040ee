"""The two commands as people meet them: output, exit status, one-line errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from unisono.audit import judge, write_jsonl
from unisono.cli.main import main
from unisono.model.journal import Header, Journal, Record


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The entry point with these arguments, in this process."""

    def call(*arguments: str | Path) -> Done:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["unisono", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        status = ended.value.code
        assert status is None or isinstance(status, int)
        return Done(status or 0, *capsys.readouterr())

    return call


def deliveries(**streams: str) -> list[Record]:
    return [
        Record(subscriber=name, event=event, position=i + 1)
        for name, events in streams.items()
        for i, event in enumerate(events)
    ]


@pytest.fixture
def opposite(tmp_path: Path) -> Path:
    path = tmp_path / "opposite.jsonl"
    path.write_text(
        "".join(
            f'{{"subscriber":"{r.subscriber}","event":"{r.event}","position":{r.position}}}\n'
            for r in deliveries(s1="AB", s2="BA")
        )
    )
    return path


def test_opposite_orders_exit_1_and_name_the_events_and_why(run: Run, opposite: Path) -> None:
    done = run("audit", opposite, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert list(report) == ["deliveries", "subscribers", "verdicts", "metrics"]
    assert (report["deliveries"], report["subscribers"]) == (4, 2)
    columns = ["judge", "holds", "violations", "witness", "judged"]
    assert [list(verdict) for verdict in report["verdicts"]] == [columns] * 4
    assert report["verdicts"][0] == {
        "judge": "pairwise-order",
        "holds": False,
        "violations": 1,
        "witness": "A before B at s1 because position 1 < 2; B before A at s2 because position 1 < 2",
        "judged": True,
    }


def test_several_files_are_sent_to_one_folder(run: Run, opposite: Path) -> None:
    done = run("audit", opposite, opposite, opposite)
    assert done.returncode == 2
    assert done.stderr == (
        f"unisono: {opposite} and 2 more: files are one journal where they lie in one folder; give that\n"
    )


def test_a_promise_of_the_header_that_no_judge_knows_is_told_with_its_file(run: Run, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "log", Header(promises=("prompt",)), deliveries(s="ab"))
    done = run("audit", tmp_path / "log")
    assert done.returncode == 2
    assert done.stderr.startswith(f"unisono: {tmp_path / 'log'}: its header promises 'prompt', which no judge knows")
    assert run("audit", tmp_path / "log", "--promise", "acyclic").returncode == 0


def test_the_promise_decides_the_exit_status(run: Run, tmp_path: Path, opposite: Path) -> None:
    write_jsonl(tmp_path / "cyclic", Header(), deliveries(p="ab", q="bc", r="ca"))
    write_jsonl(tmp_path / "acyclic-promised", Header(promises=("acyclic",)), deliveries(p="ab", q="bc", r="ca"))
    assert run("audit", tmp_path / "cyclic").returncode == 0
    assert run("audit", tmp_path / "cyclic", "--promise", "acyclic").returncode == 1
    assert run("audit", tmp_path / "acyclic-promised").returncode == 1
    assert run("audit", tmp_path / "acyclic-promised", "--promise", "pairwise").returncode == 0
    assert run("audit", opposite, "--promise", "exactly-once").returncode == 0


def test_people_see_a_table_and_the_witness(run: Run, opposite: Path) -> None:
    done = run("audit", opposite)
    assert "pairwise-order  violated  1           yes" in done.stdout
    assert "A before B at s1 because position 1 < 2; B before A at s2 because position 1 < 2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--promise", "causal"], "no columns to judge 'causal' on"),
        (["--promise", "harmony"], "there is no judge 'harmony'"),
    ],
)
def test_a_promise_that_cannot_be_judged_exits_2(run: Run, opposite: Path, arguments: list[str], message: str) -> None:
    done = run("audit", opposite, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("engine", ["python", "arrow"])
def test_a_journal_that_shows_nothing_does_not_hold(run: Run, tmp_path: Path, engine: str) -> None:
    """Nobody was notified, nobody is owed anything: no judge may say that its promise was kept."""
    promises = ("pairwise-order", "exactly-once", "complete", "kept")
    records = [Record("subscribe", subscriber="s", topic="T", number=0), Record("end")]
    write_jsonl(tmp_path / "silent", Header(promises=promises), records)
    done = run("audit", tmp_path / "silent", "--json", "--on", engine)
    report = json.loads(done.stdout)
    assert done.returncode == 2
    assert "pairwise-order: nothing to judge: nobody was notified of anything" in done.stderr
    assert [verdict for verdict in report["verdicts"] if verdict["holds"] or verdict["judged"]] == []
    assert len(report["verdicts"]) >= len(promises)
    assert "nothing to judge" in run("audit", tmp_path / "silent").stdout


def test_a_subscriber_that_nobody_owes_anything_shows_nothing() -> None:
    """Events there are, but none that it could have missed."""
    records = [
        Record("publish", event="p:1", topic="T"),
        Record("timestamp", event="p:1", topic="T", number=1),
        Record("subscribe", subscriber="s", topic="T", number=1),
        Record("end"),
    ]
    (found,) = judge(Journal(Header(), records), ["complete"])
    assert (found.judged, found.witness) == (False, "nothing to judge: no subscription that lasts is owed anything")


def test_a_broken_journal_is_one_line_with_the_position_and_exit_2(run: Run, opposite: Path) -> None:
    opposite.write_text(opposite.read_text()[:-9])
    for command in (["audit", opposite], ["story", opposite, "A"]):
        done = run(*command)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "line 4: the file ends inside a record" in done.stderr


def test_without_pyarrow_a_columnar_file_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PAR1....")
    code = "import sys; sys.modules['pyarrow'] = None; from unisono.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "audit", str(tmp_path / "f")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "unisono: Arrow and Parquet journals need pyarrow: pip install 'unisono[arrow]'\n"


def test_a_story_tells_one_event_from_birth_to_delivery(run: Run, tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "run",
        Header(),
        [
            Record("publish", at_us=1000, publisher="p", event="p:1", topic="T"),
            Record("timestamp", at_us=1200, who="n1", event="p:1", topic="T", number=4),
            Record("publish", at_us=1300, publisher="p", event="p:2", topic="T"),
            Record("arrive", at_us=2000, who="s", event="p:1"),
            Record("deliver", at_us=3500, subscriber="s", event="p:1", topic="T", number=4, position=9),
            Record("gap", at_us=4000, subscriber="t", topic="T", number=3, last_number=4, note="deadline"),
            Record("gap", at_us=4000, subscriber="t", topic="T", number=5),
        ],
    )
    told = json.loads(run("story", tmp_path / "run", "p:1", "--json").stdout)
    assert (told["topic"], told["number"], told["publisher"], told["delivered"]) == ("T", 4, "p", 1)
    assert [(step["after_us"], step["text"]) for step in told["steps"]] == [
        (0, "published by p"),
        (200, "numbered 4 by n1"),
        (1000, "arrived at s"),
        (2500, "delivered to s at position 9 after being held for 1.500 ms"),
        (3000, "t was told that it will not come: deadline"),
    ]
    assert "+2.500 ms  delivered to s at position 9" in run("story", tmp_path / "run", "p:1").stdout


def test_a_story_from_a_log_of_deliveries_knows_when_it_began(run: Run, tmp_path: Path) -> None:
    row = Record(subscriber="s", event="a", position=1, publisher="p", published_us=100, delivered_us=350)
    write_jsonl(tmp_path / "run", Header(), [row])
    told = json.loads(run("story", tmp_path / "run", "a", "--json").stdout)
    assert [(step["kind"], step["after_us"]) for step in told["steps"]] == [("publish", 0), ("deliver", 250)]


def test_an_empty_name_is_a_name(run: Run, tmp_path: Path) -> None:
    rows = [Record(subscriber="", event="", position=1, publisher="", published_us=1, delivered_us=2)]
    write_jsonl(tmp_path / "run", Header(), rows)
    told = json.loads(run("story", tmp_path / "run", "", "--json").stdout)
    assert [(step["who"], step["text"]) for step in told["steps"]] == [
        ("", "published by "),
        ("", "delivered to  at position 1"),
    ]


def test_an_unknown_event_has_no_story(run: Run, opposite: Path) -> None:
    done = run("story", opposite, "Z")
    assert done.returncode == 2
    assert "there is no event 'Z'" in done.stderr
