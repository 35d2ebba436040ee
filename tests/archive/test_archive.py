"""The archive: what was appended stays, what is offered is whole, and a crash at any step needs no hand."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from unisono.archive.disk import RealDisk
from unisono.archive.manifest import load_manifest
from unisono.archive.reader import Archive, check
from unisono.archive.schema import SCHEMA, ArchivedEvent, to_batch, to_events
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.model.time import Micros

NOW = Micros(1_000)
SMALL = ArchiveConfig(seal_rows=7, compact_below_rows=5)
TOPICS = ("quotes", "trades")


def rows(first: int, count: int) -> list[ArchivedEvent]:
    return [
        ArchivedEvent(
            seq, TOPICS[seq % 2], seq // 2 + 1, "p", seq, seq, seq + 5, None, {"n": str(seq)}, b"x" * (seq % 9)
        )
        for seq in range(first, first + count)
    ]


def everything(directory: Path) -> list[ArchivedEvent]:
    archive = Archive(directory)
    first, last = archive.bounds()
    return [event for batch in archive.read(first - 1, last) for event in to_events(batch)]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        writer.append(rows(1, 20), NOW)
        writer.append(rows(21, 3), NOW)
        assert everything(tmp_path) == rows(1, 20)
        assert writer.last == 23
        writer.seal(NOW)
    assert everything(tmp_path) == rows(1, 23)
    archive = Archive(tmp_path)
    assert [e for b in archive.read(4, 9) for e in to_events(b)] == rows(5, 5)
    assert [e for b in archive.read(0, 23, ("trades",)) for e in to_events(b)] == rows(1, 23)[::2]


def test_an_unsealed_tail_is_durable_but_not_offered(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        writer.append(rows(1, 5), NOW)
    assert everything(tmp_path) == []
    with ArchiveWriter(tmp_path) as writer:
        assert writer.last == 5
        assert writer.numbers() == {"trades": 3, "quotes": 3}
        writer.seal(NOW)
    assert everything(tmp_path) == rows(1, 5)


def test_age_seals_and_small_segments_are_merged(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        for first in range(1, 31, 2):
            writer.append(rows(first, 2), NOW)
            writer.tick(Micros(NOW + SMALL.seal_age_us))
        sizes = [segment.last - segment.first + 1 for segment in writer.manifest.segments]
    assert sum(sizes) == 30
    assert len(sizes) <= 6
    assert everything(tmp_path) == rows(1, 30)


def test_reading_below_retention_is_an_explicit_loss(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, ArchiveConfig(seal_rows=10, keep_bytes=1)) as writer:
        for first in range(1, 41, 10):
            writer.append(rows(first, 10), NOW)
        writer.retain(NOW)
    archive = Archive(tmp_path)
    assert archive.bounds() == (31, 40)
    with pytest.raises(DataLossError, match="rows 6 to 30"):
        list(archive.read(5, 40))
    with pytest.raises(DataLossError, match="numbers 1 to 4 of trades"):
        archive.fetch("trades", 1, 4)
    with pytest.raises(MisuseError, match="not sealed"):
        list(archive.read(30, 41))
    assert archive.prefix().numbers == {"trades": 20, "quotes": 21}


def test_one_event_is_found_by_topic_and_number(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        writer.append(rows(1, 21), NOW)
    archive = Archive(tmp_path)
    assert [archive.locate(event.topic, event.number) for event in rows(1, 21)] == list(range(1, 22))
    assert archive.fetch("quotes", 3, 5) == [event for event in rows(1, 21) if event.topic == "quotes"][1:4]
    assert archive.locate("trades", 99) == 21
    assert archive.locate("nothing", 1) == 0


def test_a_reader_survives_compaction_under_its_hands(tmp_path: Path) -> None:
    config = ArchiveConfig(seal_rows=2, compact_below_rows=6)
    with ArchiveWriter(tmp_path, config) as writer:
        for first in range(1, 21, 2):
            writer.append(rows(first, 2), NOW)
        reading = Archive(tmp_path).read(0, 20)
        seen = to_events(next(reading))
        for _ in range(5):
            writer.compact(NOW)
        for batch in reading:
            seen += to_events(batch)
    assert seen == rows(1, 20)


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path), pytest.raises(MisuseError, match="writer already"):
        ArchiveWriter(tmp_path)


def test_rows_that_do_not_continue_the_sequence_are_refused(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path) as writer:
        writer.append(rows(1, 3), NOW)
        with pytest.raises(MisuseError, match="next row is 4"):
            writer.append(rows(5, 1), NOW)


def test_damage_at_rest_is_found(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        writer.append(rows(1, 14), NOW)
        victim = tmp_path / writer.manifest.segments[0].file
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    assert check(tmp_path) == [f"{victim.name}: its checksum is wrong"]


def test_a_folder_that_is_no_archive_is_not_read_as_an_empty_one(tmp_path: Path) -> None:
    assert Archive(tmp_path).bounds() == (1, 0), "nobody has written yet"
    (tmp_path / "hub" / "archive" / "groups").mkdir(parents=True)
    with ArchiveWriter(tmp_path / "hub" / "archive", SMALL) as writer:
        assert Archive(tmp_path / "hub" / "archive").bounds() == (1, 0)
        writer.append(rows(1, 3), NOW)
        assert Archive(tmp_path / "hub" / "archive").bounds() == (1, 0), "what has come is not sealed"
        writer.append(rows(4, 11), NOW)
    with pytest.raises(MisuseError, match=r"hub is not an archive: no manifest.json, but archive$"):
        Archive(tmp_path / "hub").bounds()
    (tmp_path / "hub" / "archive" / "manifest.json").unlink()
    with pytest.raises(FormatError, match=r"missing, and there are segments: put it back, or .* --repair"):
        Archive(tmp_path / "hub" / "archive").bounds()


@pytest.mark.parametrize("version", ["3", ""])
def test_a_segment_of_an_unknown_version_is_refused(tmp_path: Path, version: str) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        writer.append(rows(1, 7), NOW)
        victim = tmp_path / writer.manifest.segments[0].file
    strange = SCHEMA.with_metadata({"unisono.segment": version})
    with pa.ipc.new_file(victim, strange) as file:
        file.write_batch(to_batch(rows(1, 7)).cast(strange))
    with pytest.raises(FormatError, match="version"):
        everything(tmp_path)


def test_a_manifest_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 9}')
    with pytest.raises(FormatError, match="version 9"):
        load_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": ')
    with pytest.raises(FormatError, match=r"manifest\.json"):
        load_manifest(tmp_path)


class PowerCut(Exception):
    """The machine stopped here."""


class StoppingDisk(RealDisk):
    """Stops at step number `stop`, with the step undone, half done or done."""

    def __init__(self, stop: int, done: float) -> None:
        self.steps = 0
        self.stop = stop
        self.done = done

    def _step(self) -> bool:
        self.steps += 1
        return self.steps == self.stop

    def append(self, path: Path, data: bytes) -> None:
        if self._step():
            super().append(path, data[: int(len(data) * self.done)])
            raise PowerCut
        super().append(path, data)

    def write(self, path: Path, data: bytes) -> None:
        if self._step():
            super().write(path, data[: int(len(data) * self.done)])
            raise PowerCut
        super().write(path, data)

    def rename(self, old: Path, new: Path) -> None:
        stops = self._step()
        if not stops or self.done > 0.5:
            super().rename(old, new)
        if stops:
            raise PowerCut

    def remove(self, path: Path) -> None:
        stops = self._step()
        if not stops or self.done > 0.5:
            super().remove(path)
        if stops:
            raise PowerCut


def life(directory: Path, disk: RealDisk, appended: list[int], offered: list[int]) -> None:
    """A few segments are born, merged and dropped; notes what it was told is durable and what it saw offered."""
    with ArchiveWriter(directory, SMALL, disk) as writer:
        dice = random.Random(5)
        while writer.last < 25:
            count = dice.randint(1, 4)
            writer.append(rows(writer.last + 1, count), NOW)
            appended.append(writer.last)
            if dice.random() < 0.5:
                writer.seal(NOW)
            offered.append(Archive(directory).bounds()[1])
            writer.compact(NOW)


@pytest.mark.parametrize("done", [0.0, 0.4, 1.0])
def test_a_crash_at_every_step_of_a_segments_life_needs_no_hand(tmp_path: Path, done: float) -> None:
    clean = StoppingDisk(-1, done)
    life(tmp_path / "clean", clean, [], [])
    for stop in range(1, clean.steps + 1):
        directory = tmp_path / f"{stop}"
        appended, offered = [0], [0]
        with pytest.raises(PowerCut):
            life(directory, StoppingDisk(stop, done), appended, offered)
        with ArchiveWriter(directory, SMALL) as writer:
            assert writer.last >= appended[-1], "a row that was acknowledged is gone"
            assert Archive(directory).bounds()[1] >= offered[-1], "a row that was offered is gone"
            writer.append(rows(writer.last + 1, 3), NOW)
            writer.seal(NOW)
            last = writer.last
        assert everything(directory) == rows(1, last)
        assert check(directory) == []
        assert not [path for path in directory.iterdir() if path.name.endswith(".new")]
