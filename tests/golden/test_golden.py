"""Every format version that was ever written is read; an unknown one is refused in one line that names it.

A file here is never changed: a new version of a format gets new files beside the old ones.
"""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest

from unisono.archive.manifest import ArchiveMark
from unisono.archive.messages import Head, Index, decode_index, decode_rows, parse_head
from unisono.archive.reader import Archive, check
from unisono.archive.schema import ArchivedEvent, brought_up, to_events
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.audit import read
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import load_deployment
from unisono.model.time import Micros
from unisono.protocols.groups.coordinator import Share, SharesView
from unisono.protocols.groups.messages import SHARES
from unisono.runtime.archiving.groups import parse_view
from unisono.runtime.client.subscription.position import decode_position
from unisono.runtime.driver.log import FileLog
from unisono.runtime.driver.replicated import RecordPart, check_part
from unisono.turns import Logged

HERE = Path(__file__).parent
HEADERS = {"Unisono-First": "1", "Unisono-Count": "2", "Unisono-Owner": "me", "Unisono-Part": "1/1"}


def copied(name: str, to: Path) -> Path:
    return Path(shutil.copytree(HERE / name, to / name))


@pytest.mark.skipif(not (HERE.parents[1] / ".git").exists(), reason="these sources have no history")
def test_the_previous_release_is_a_commit_of_this_history() -> None:
    """The campaign upgrades from it (`tests/runtime/crash/test_upgrade.py`)."""
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip() == "true":
        pytest.skip("this clone has no history")
    commit = (HERE / "previous").read_text(encoding="utf-8").strip()
    done = subprocess.run(
        ["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=HERE, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode() or f"{commit} is no ancestor"


def test_a_journal_of_version_1_is_read() -> None:
    journal = read(HERE / "journal-1.jsonl")
    assert journal.header.promises == ("pairwise-order", "exactly-once")
    assert [record.kind for record in journal.records] == ["publish", "deliver", "gap", "end"]
    assert (journal.records[2].number, journal.records[2].last_number) == (2, 3)


def test_a_log_of_version_1_is_recovered(tmp_path: Path) -> None:
    log = FileLog(copied("log-1", tmp_path), "toy 1", str)
    snapshot, inputs = log.recover()
    assert snapshot == (7, {"n": 1})
    assert list(inputs) == [Logged(8, "b"), Logged(9, "c")]  # type: ignore[arg-type]
    log.close()


def test_an_archive_of_version_1_is_read_and_goes_on(tmp_path: Path) -> None:
    directory = copied("archive-1", tmp_path)
    rows = [
        ArchivedEvent(1, "trades", 1, "p", 1, 10, 20, None, {}, b"one"),
        ArchivedEvent(2, "quotes", 1, "p", 1, 11, 21, 500, {"unisono-attributes": '{"px":1}'}, b"two"),
    ]
    assert [row for batch in Archive(directory).read(0, 2) for row in to_events(batch)] == rows
    assert check(directory) == []
    with ArchiveWriter(directory) as writer:
        assert writer.last == 3
        assert writer.numbers() == {"trades": 4, "quotes": 1}


def test_segments_and_messages_of_version_2_are_read() -> None:
    rows = [
        ArchivedEvent(1, "trades", 1, "p", 1, 10, 20, None, {}, b"one"),
        ArchivedEvent(2, "quotes", 1, "p", 1, None, 21, None, {"unisono-attributes": '{"px":1}'}, b"two"),
    ]
    assert [row for batch in Archive(HERE / "archive-2").read(0, 2) for row in to_events(batch)] == rows
    body = (HERE / "archive-message-2.arrows").read_bytes()
    assert to_events(decode_rows("here", parse_head("here", {**HEADERS, "Unisono-Version": "1"}), body)) == rows


def test_segments_of_version_1_are_merged_with_newer_ones_and_their_wrong_moments_are_forgotten(tmp_path: Path) -> None:
    """Where version 1 has the moment of delivery as that of publication, nobody knew when it was published."""
    directory = copied("archive-1", tmp_path)
    more = [ArchivedEvent(seq, "trades", seq + 1, "p", seq, None, 30, None, {}, b"x") for seq in range(4, 9)]
    with ArchiveWriter(directory, ArchiveConfig(compact_below_rows=7)) as writer:
        writer.append(more, Micros(1))
        writer.seal(Micros(1))
        before = len(writer.manifest.segments)
        writer.compact(Micros(1))
        assert len(writer.manifest.segments) < before
    rows = [row for batch in Archive(directory).read(0, 8) for row in to_events(batch)]
    assert [row.published_us for row in rows] == [10, 11, 12, *[None] * 5]
    [batch] = Archive(directory).read(0, 2)
    lying = pc.if_else([True, False], batch.column("delivered_us"), batch.column("published_us"))
    old = batch.set_column(batch.schema.get_field_index("published_us"), "published_us", lying)
    assert brought_up(old, 1).column("published_us").to_pylist() == [None, 11]


def test_messages_of_an_archive_of_version_1_are_read() -> None:
    head = parse_head("here", {**HEADERS, "Unisono-Version": "1"})
    assert head == Head(1, 2, "me")
    batch = decode_rows("here", head, (HERE / "archive-message-1.arrows").read_bytes())
    assert [(row.seq, row.topic, row.payload) for row in to_events(batch)] == [
        (1, "trades", b"one"),
        (2, "quotes", b"two"),
    ]
    index = b'{"numbers":{"trades":4},"dropped_upto":2,"dropped_numbers":{"trades":1}}'
    assert decode_index("here", index) == Index("", {"trades": 4}, 2, {"trades": 1})


def test_a_deployment_of_version_1_is_read() -> None:
    deployment = load_deployment(HERE / "deployment-1.toml")
    assert (deployment.root.name, deployment.node("eu-1").standby) == ("hub", "127.0.0.1:7476")
    assert (deployment.archive.keep_bytes, deployment.log.patience_s) == (1_000_000, 2.0)


def test_a_position_of_version_1_is_read() -> None:
    assert decode_position((HERE / "position-1.txt").read_text()) == {"quotes": 7, "trades": 12}


def test_groups_of_versions_1_and_2_are_read() -> None:
    done = {"quotes": 7, "trades": 12}
    assert parse_view((HERE / "group-1.json").read_bytes(), "here") == SharesView(3, [Share("c1/2", 3, done)])
    view = parse_view((HERE / "group-2.json").read_bytes(), "here")
    assert (view.epoch, len(view.shares)) == (5, SHARES)
    assert [view.shares[0], view.shares[40]] == [Share("c1/2", 3, done), Share("c9/1", 5, None)]


def test_a_message_of_a_replicated_log_of_version_1_is_read() -> None:
    part = msgspec.msgpack.decode((HERE / "stream-1.msgpack").read_bytes(), type=RecordPart)
    check_part("here", part, "toy 1")
    assert (part.kind, part.parts, msgspec.msgpack.decode(part.body)) == ("inputs", 1, [[1, "a"]])


def test_unknown_versions_are_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="version 99"):
        read(HERE / "journal-99.jsonl")
    with pytest.raises(FormatError, match="log version 99 is unknown"):
        list(FileLog(copied("log-99", tmp_path), "toy 1", str).recover()[1])
    with pytest.raises(FormatError, match="version 99 is unknown"):
        Archive(HERE / "manifest-99").manifest()
    with pytest.raises(FormatError, match="version 99 is unknown"):
        ArchiveWriter(copied("manifest-99", tmp_path))
    with pytest.raises(FormatError, match="segment version 99 is unknown"):
        list(Archive(HERE / "segment-99").read(0, 2))
    with pytest.raises(FormatError, match="archive message version 99 is unknown"):
        parse_head("here", {**HEADERS, "Unisono-Version": "99"})
    with pytest.raises(FormatError, match="99 is unknown"):
        load_deployment(HERE / "deployment-99.toml")
    with pytest.raises(MisuseError, match="position version 99 is unknown"):
        decode_position((HERE / "position-99.txt").read_text())
    with pytest.raises(FormatError, match="group version 99 is unknown"):
        parse_view((HERE / "group-99.json").read_bytes(), "here")
    part = msgspec.msgpack.decode((HERE / "stream-99.msgpack").read_bytes(), type=RecordPart)
    with pytest.raises(FormatError, match="log version 99 is unknown"):
        check_part("here", part, "toy 1")


@pytest.mark.spark
def test_offsets_of_versions_1_and_2_are_read_and_others_are_refused() -> None:
    mark_of = pytest.importorskip("unisono.spark.source").mark_of
    assert mark_of(msgspec.json.decode((HERE / "offset-1.json").read_bytes())) == ArchiveMark(1234)
    assert mark_of(msgspec.json.decode((HERE / "offset-2.json").read_bytes())) == ArchiveMark(1234, "0af1", "77")
    with pytest.raises(MisuseError, match="unknown version"):
        mark_of(msgspec.json.decode((HERE / "offset-99.json").read_bytes()))
