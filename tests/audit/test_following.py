"""`unisono audit --follow`: growing, rotating, arriving files; regions; what is lost is said; kills change nothing."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests.audit.test_commands import Run, run  # noqa: F401
from tests.audit.test_live import random_log, said

from unisono.audit import write_jsonl
from unisono.audit.live import LiveLimits
from unisono.audit.live.feeds import HEAD_BYTES
from unisono.audit.live.follow import Follower
from unisono.audit.live.store import STATE, VERDICTS, AuditStore
from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.model.journal import Header, Record, encode_line

PATIENT = LiveLimits(lateness_us=500)


def violations(follower: Follower) -> dict[str, int]:
    return {verdict.judge: verdict.violations for verdict in follower.live.report()}


def timed_log(seed: int) -> list[Record]:
    """With moments in every row, and something to find."""
    while True:
        records = random_log(Random(seed))
        if all(record.at_us for record in records) and said(records)["acyclic"]:
            return records
        seed += 1000


def drain(follower: Follower) -> None:
    while follower.step() is not None:
        pass


def test_a_journal_that_grows_is_judged_like_the_whole(tmp_path: Path) -> None:
    records, path, dice = timed_log(1), tmp_path / "run.jsonl", Random(5)
    data = encode_line(Header(promises=("fifo",))) + b"".join(map(encode_line, records))
    path.touch()
    follower = Follower(path, PATIENT)
    at = 0
    while at < len(data):
        at += dice.randint(1, 700)  # anywhere: half a line is not read
        path.write_bytes(data[:at])
        drain(follower)
    follower.finish()
    assert violations(follower).items() <= said(records).items()
    assert violations(follower)["acyclic"]
    assert follower.live.state.late == 0
    assert follower.saved.promises == ("fifo",)


def test_a_packed_journal_that_grows_is_judged_like_the_whole(tmp_path: Path) -> None:
    records, path = timed_log(1), tmp_path / "run.jsonl.gz"
    follower, part = None, len(records) // 3
    for first in range(0, len(records), part):
        with path.open("ab") as file:
            file.write(gzip.compress(b"".join(map(encode_line, records[first : first + part]))))
        follower = follower or Follower(path, PATIENT)
        drain(follower)
    assert follower is not None
    follower.finish()
    assert violations(follower).items() <= said(records).items()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)


def test_a_journal_that_is_packed_after_it_rotated_is_told_once(tmp_path: Path) -> None:
    """As logrotate does: the packed file is there, half written, beside the other, and then the other goes."""
    records, path, folder = timed_log(1), tmp_path / "logs" / "run.jsonl", tmp_path / "state"
    path.parent.mkdir()
    half = len(records) // 2
    write_jsonl(path, Header(note="1" * HEAD_BYTES), records[:half])
    follower = Follower(path.parent, PATIENT, folder)
    drain(follower)
    old = path.rename(path.with_name("run.1.jsonl"))
    packed, whole = old.with_name("run.1.jsonl.gz"), gzip.compress(old.read_bytes())
    for size in (5, len(whole) // 2, len(whole)):
        packed.write_bytes(whole[:size])
        drain(follower)
    old.unlink()
    write_jsonl(path, Header(note="2" * HEAD_BYTES), records[half:])  # may get the number of the old one
    follower.close()
    follower = Follower(path.parent, PATIENT, folder)
    drain(follower)
    follower.finish()
    assert violations(follower).items() <= said(records).items()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)


def test_a_file_that_has_the_number_of_one_that_went_away_is_another(tmp_path: Path) -> None:
    """File systems give numbers again at once."""
    records, old, new = timed_log(2), tmp_path / "logs" / "a.jsonl", tmp_path / "logs" / "b.jsonl"
    old.parent.mkdir()
    write_jsonl(old, Header(note="the first of two"), records[:-3])
    follower = Follower(old.parent, PATIENT)
    drain(follower)
    write_jsonl(old, Header(), records[-3:])  # the number stays, the content does not
    old.rename(new)
    drain(follower)
    follower.finish()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)


@pytest.mark.parametrize("form", ["parquet", "gz"])
def test_a_file_that_is_being_written_is_waited_for_and_a_broken_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    columns = pytest.importorskip("unisono.audit.columns")
    records, path = timed_log(1), tmp_path / "logs" / "a"
    path.parent.mkdir()
    if form == "gz":
        (tmp_path / "whole").write_bytes(gzip.compress(b"".join(map(encode_line, records))))
    else:
        columns.write_parquet(tmp_path / "whole", Header(), records)
    whole = (tmp_path / "whole").read_bytes()
    follower = Follower(path.parent, PATIENT)
    for size in (4, len(whole) // 2, len(whole)):
        path.write_bytes(whole[:size])
        drain(follower)
    follower.finish()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)
    path.write_bytes(whole[: len(whole) // 2])
    follower = Follower(path.parent, PATIENT)
    drain(follower)
    with pytest.raises(FormatError, match="a"):
        follower.finish()  # nobody will write it to its end
    monkeypatch.setattr("unisono.audit.live.feeds.PATIENCE_S", 0.0)
    with pytest.raises(FormatError, match="a"):
        drain(follower)
    path.unlink()
    drain(Follower(path.parent, PATIENT))


def test_regions_that_are_links_are_followed(tmp_path: Path) -> None:
    records = timed_log(1)
    (tmp_path / "disk").mkdir()
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "region=eu").symlink_to(tmp_path / "disk")
    write_jsonl(tmp_path / "disk" / "run.jsonl", Header(), records)
    follower = Follower(tmp_path / "all", PATIENT)
    drain(follower)
    follower.finish()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)
    assert set(follower.live.state.regions) == {"eu"}


def test_a_journal_that_rotates_is_followed_under_its_new_name(tmp_path: Path) -> None:
    records, path = timed_log(2), tmp_path / "run.jsonl"
    third = len(records) // 3
    write_jsonl(path, Header(), records[:third])
    follower = Follower(path, PATIENT, tmp_path / "state")
    drain(follower)
    with path.open("ab") as file:
        file.writelines(map(encode_line, records[third : 2 * third]))
    path.rename(tmp_path / "run.1.jsonl")
    write_jsonl(path, Header(), records[2 * third :])
    follower.close()
    follower = Follower(path, PATIENT, tmp_path / "state")
    drain(follower)
    (tmp_path / "run.1.jsonl").unlink()  # read to its end: nobody misses it
    drain(follower)
    follower.finish()
    assert violations(follower).items() <= said(records).items()
    assert follower.live.state.deliveries == sum(record.kind in ("deliver", "tag") for record in records)


def test_a_journal_that_was_cut_replaced_or_taken_away_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, path = timed_log(3), tmp_path / "run.jsonl"

    def started() -> Follower:
        path.unlink(missing_ok=True)
        write_jsonl(path, Header(), records)
        follower = Follower(path, PATIENT)
        drain(follower)
        return follower

    follower = started()
    os.truncate(path, 300)
    with pytest.raises(DataLossError, match=r"run\.jsonl was cut: \d+ bytes of it were read, and it has 300"):
        follower.step()
    follower = started()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"e1", b"E1"))  # the same file for the file system, and it had been read
    assert follower.step() is not None
    follower = started()
    monkeypatch.setattr("unisono.audit.live.feeds.LINES_BYTES", 1000)
    monkeypatch.setattr("unisono.audit.live.follow.BATCH_ROWS", 1)
    follower = Follower(path, PATIENT)
    follower.step()
    path.write_bytes(whole.replace(b"e1", b"E1"))
    with pytest.raises(DataLossError, match="was replaced before it was read to its end"):
        drain(follower)
    follower = started()
    path.unlink()
    assert follower.step() is None  # read to its end: nobody misses it
    write_jsonl(path, Header(), records)
    follower = Follower(path, PATIENT)
    follower._files.look()
    path.unlink()
    with pytest.raises(DataLossError, match="went away before it was read to its end"):
        follower.step()


def test_files_of_regions_close_together_and_a_silent_region_is_named(tmp_path: Path) -> None:
    def row(region: str, i: int, event: str, at: int) -> Record:
        return Record(at_us=at, subscriber=region, event=event, position=i, topic="T", published_us=at - 40)

    east, west = tmp_path / "region=east" / "a.jsonl", tmp_path / "region=west" / "b.jsonl"
    for path in (east, west):
        path.parent.mkdir()
    write_jsonl(east, Header(), [row("e", i, f"m{i}", 100 * i) for i in range(1, 50)])
    west.touch()
    limits = LiveLimits(lateness_us=100, silence_us=2000)
    follower = Follower(tmp_path, limits)
    batch = follower.step()
    assert batch is not None
    assert batch.deliveries == 28  # up to 4900 - 2000 - 100: west, of which nothing was heard, could be so far behind
    assert batch.silent == ["west"]
    write_jsonl(west, Header(), [Record("publish", at_us=1, event="m1", publisher="p")])
    batch = follower.step()
    assert batch is not None
    assert batch.silent == ["west"]
    with west.open("ab") as file:
        file.writelines(encode_line(row("w", i, f"m{i}", 100 * i + 30)) for i in range(1, 50))
    batch = follower.step()
    assert batch is not None
    assert batch.late == 29  # and the publication
    assert batch.silent == []
    assert [(line.delivered_in, line.notified) for line in batch.latencies] == [("east", 19), ("west", 19)]


def test_an_archive_is_followed_as_one_more_subscriber(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from tests.archive.test_archive import NOW, rows

    from unisono.archive.writer import ArchiveConfig, ArchiveWriter

    place = tmp_path / "logs" / "region=hub" / "archive"
    writer = ArchiveWriter(place, ArchiveConfig(seal_rows=10))
    writer.append(rows(1, 100), NOW)
    writer.seal(NOW)
    follower = Follower(tmp_path / "logs", LiveLimits(lateness_us=0), tmp_path / "state")
    drain(follower)
    writer.append(rows(101, 50), NOW)
    writer.seal(NOW)
    writer.close()
    follower.close()
    follower = Follower(tmp_path / "logs", LiveLimits(lateness_us=0), tmp_path / "state")
    drain(follower)
    assert follower.live.state.deliveries + len(follower.live.state.open) == 150
    assert not any(violations(follower).values())
    shutil.rmtree(place)
    writer = ArchiveWriter(place, ArchiveConfig(seal_rows=10))
    writer.append(rows(1, 200), NOW)
    writer.seal(NOW)
    writer.close()
    with pytest.raises(DataLossError, match=r"row 150 was read from archive .*: it was replaced"):
        drain(follower)


def test_a_line_that_a_kill_left_out_or_half_written_is_there_once(tmp_path: Path) -> None:
    path, folder = tmp_path / "run.jsonl", tmp_path / "state"
    records = timed_log(4)
    write_jsonl(path, Header(), records[:40])
    follower = Follower(path, PATIENT, folder)
    drain(follower)
    write_jsonl(tmp_path / "more", Header(), records)
    with path.open("ab") as file:
        file.writelines(map(encode_line, records[40:]))
    drain(follower)
    follower.close()
    lines = (folder / VERDICTS).read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    for left in (lines[0], lines[0] + lines[1][:20], lines[0] + lines[1], lines[0] + lines[1][:-1]):
        (folder / VERDICTS).write_bytes(left)
        AuditStore(folder, str(path)).close()
        assert (folder / VERDICTS).read_bytes() == b"".join(lines)


def test_a_state_is_of_one_audit_of_one_log_and_of_one_process(tmp_path: Path) -> None:
    path, folder = tmp_path / "run.jsonl", tmp_path / "state"
    write_jsonl(path, Header(), timed_log(4))
    follower = Follower(path, PATIENT, folder)
    with pytest.raises(MisuseError, match="in use by another audit"):
        Follower(path, PATIENT, folder)
    drain(follower)
    follower.close()
    with pytest.raises(MisuseError, match="is the state of an audit of"):
        Follower(tmp_path / "other.jsonl", PATIENT, folder)
    follower = Follower(path, PATIENT, folder)
    follower.finish()
    follower.close()
    with pytest.raises(MisuseError, match="has ended"):
        Follower(path, PATIENT, folder)
    with pytest.raises(MisuseError, match="lies in what is followed"):
        Follower(tmp_path, PATIENT, folder)
    (folder / STATE).write_bytes(b"nonsense")
    with pytest.raises(FormatError, match="is no state of a live audit"):
        Follower(path, PATIENT, folder)


def test_killed_again_and_again_it_gives_every_verdict_once(tmp_path: Path) -> None:
    records, path, folder = timed_log(6), tmp_path / "run.jsonl", tmp_path / "state"
    path.write_bytes(encode_line(Header()))
    command = [sys.executable, "-m", "unisono", "audit", path, "--follow", "--state", folder, "--json"]
    command += ["--lateness", "500us", "--promise", "acyclic"]

    def lines() -> list[bytes]:
        return (folder / VERDICTS).read_bytes().splitlines() if (folder / VERDICTS).exists() else []

    cuts = [len(records) * i // 4 for i in range(5)]
    for i, (first, last) in enumerate(pairwise(cuts)):
        with path.open("ab") as file:
            file.writelines(map(encode_line, records[first:last]))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if i % 2:
            soon(lambda: len(lines()) > i // 2)  # noqa: B023
        else:
            soon(lambda: (folder / STATE).exists())
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = subprocess.run([*command, "--until-idle", "100ms"], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    told = [json.loads(line) for line in lines()]
    assert [batch["batch"] for batch in told] == list(range(len(told)))
    found: Counter[str] = Counter()
    for batch in told:
        for verdict in batch["verdicts"]:
            found[verdict["judge"]] += verdict["violations"]
    assert found["acyclic"]
    assert dict(found).items() <= said(records).items()
    assert sum(batch["deliveries"] for batch in told) == sum(record.kind in ("deliver", "tag") for record in records)


def soon(holds: Callable[[], bool]) -> None:
    """Waits for it."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come true within 30 s")


def test_the_command_tells_batches_and_exits_like_the_audit(run: Run, tmp_path: Path) -> None:  # noqa: F811
    records, path = timed_log(1), tmp_path / "run.jsonl"
    write_jsonl(path, Header(), records)
    ended = run("audit", path, "--follow", "--until-idle", "1us", "--lateness", "500us", "--promise", "acyclic")
    assert ended.returncode == 1, ended.stderr
    assert "deliveries judged up to the end" in ended.stdout
    assert "acyclic: e" in ended.stdout
    write_jsonl(path, Header(), [record for record in records if record.subscriber == "s0" or record.kind == "publish"])
    assert run("audit", path, "--follow", "--until-idle", "1us", "--promise", "acyclic").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--follow", "--promise", "kept"], "kept needs the whole log: audit it without --follow"),
        (["--follow", "--on", "spark"], "--follow runs here, not --on spark"),
        (["--state", "x"], "--state and --until-idle go with --follow"),
        (["--follow", "--until-idle", "1us"], "jsonl: a at s (row 1 of those taken) has no moment: a live audit needs"),
        (
            ["--follow", "--until-idle", "1us"],
            "jsonl: deliver of a (row 1 of those taken) is of moment 1700000000000000000",
        ),
    ],
)
def test_what_cannot_be_followed_is_one_line(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:  # noqa: F811
    path = tmp_path / "run.jsonl"
    moment = "" if "a at s" in says else ', "delivered_us": 1700000000000000000'
    path.write_text(f'{{"subscriber": "s", "event": "a", "position": 1{moment}}}\n')
    ended = run("audit", path, *arguments)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert run("audit", tmp_path / "nothing", "--follow").returncode == 2
    os.mkfifo(tmp_path / "pipe")
    assert "what comes through a pipe can be read once only" in run("audit", tmp_path / "pipe", "--follow").stderr
