"""`unisono doctor --archive`: damage is found, and repaired into a gap that readers are told of."""

import json
from pathlib import Path

import pytest

from tests.archive.test_archive import NOW, SMALL, everything, rows
from tests.house.test_command_line import unisono
from unisono.archive.headers import GAP
from unisono.archive.manifest import MANIFEST
from unisono.archive.reader import Archive, check
from unisono.archive.repair import repair
from unisono.archive.writer import ArchiveWriter
from unisono.errors import FormatError, MisuseError


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Three segments of seven rows, the second with a flipped bit."""
    with ArchiveWriter(tmp_path, SMALL) as writer:
        for first in (1, 8, 15):
            writer.append(rows(first, 7), NOW)
        path = tmp_path / writer.manifest.segments[1].file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return tmp_path


def test_damage_is_found_and_named(damaged: Path) -> None:
    done = unisono("doctor", "--archive", str(damaged), "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert "00000008-00000000000000000014.arrow: its checksum is wrong" in finding["detail"]


def test_repair_makes_the_damaged_rows_a_gap_and_keeps_the_others(damaged: Path) -> None:
    done = unisono("doctor", "--archive", str(damaged), "--repair")
    assert done.returncode == 0, done.stderr
    assert check(damaged) == []
    found = everything(damaged)
    assert found[:7] == rows(1, 7)
    assert found[14:] == rows(15, 7)
    assert [row.seq for row in found] == list(range(1, 22))
    gaps = {row.topic: (int(row.headers[GAP]), row.number) for row in found[7:14]}
    lost = rows(8, 7)
    assert gaps == {
        topic: (min(r.number for r in lost if r.topic == topic), max(r.number for r in lost if r.topic == topic))
        for topic in ("quotes", "trades")
    }
    assert Archive(damaged).prefix().numbers == {"quotes": rows(20, 1)[0].number, "trades": rows(21, 1)[0].number}


def test_a_segment_that_is_gone_is_named_by_all_that_read_and_made_a_gap(damaged: Path) -> None:
    """Only retention takes segments away, and says so in the manifest: whoever waited for that would wait for ever."""
    gone = next(damaged.glob("seg-*14.arrow"))
    gone.unlink()
    archive = Archive(damaged)
    for use in (
        lambda: everything(damaged),
        lambda: archive.fetch("trades", 1, 30),
        lambda: archive.locate("trades", 5),
    ):
        with pytest.raises(
            FormatError, match=f"{gone.name}: rows 8 to 14: there is no such file; restore the file, or"
        ):
            use()
    assert any("rows 8 to 14 are a gap now" in line for line in repair(damaged, NOW))
    assert [row.seq for row in everything(damaged)] == list(range(1, 22))


def test_an_archive_that_is_being_written_is_not_repaired(damaged: Path) -> None:
    with ArchiveWriter(damaged, SMALL), pytest.raises(MisuseError, match="has a writer already"):
        repair(damaged, NOW)


def test_a_manifest_that_is_gone_or_older_than_the_rows_costs_no_rows(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    with ArchiveWriter(place, SMALL) as writer:
        writer.append(rows(1, 7), NOW)
        old = (place / MANIFEST).read_bytes()
        for first in (8, 15):
            writer.append(rows(first, 7), NOW)
        writer.append(rows(22, 3), NOW)
        archive = writer.manifest.archive
    for manifest in (old, None):
        if manifest is None:
            (place / MANIFEST).unlink()
        else:
            (place / MANIFEST).write_bytes(manifest)
        with pytest.raises(FormatError, match=r"holds rows from .* older than the rows; put the newest manifest back"):
            ArchiveWriter(place, SMALL)
        assert len(list(place.glob("seg-*"))) == 3, "nothing is removed"
        assert any("rows 15 to 21 are in the manifest again" in line for line in repair(place, NOW))
        assert everything(place) == rows(1, 21)
        with ArchiveWriter(place, SMALL) as writer:
            assert (writer.last, writer.manifest.archive) == (24, archive)


def test_a_manifest_that_is_gone_after_retention_comes_back_with_its_first_row(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path, SMALL) as writer:
        for first in (1, 8, 15):
            writer.append(rows(first, 7), NOW)
    (tmp_path / writer.manifest.segments[0].file).unlink()
    (tmp_path / MANIFEST).unlink()
    repair(tmp_path, NOW)
    assert everything(tmp_path) == rows(8, 14)
    assert Archive(tmp_path).dropped().numbers == {"quotes": 4, "trades": 4}


def test_a_segment_of_another_archive_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with ArchiveWriter(tmp_path / name, SMALL) as writer:
            writer.append(rows(1, 7), NOW)
    for file in (writer.manifest.segments[0].file, MANIFEST):
        (tmp_path / "a" / file).write_bytes((tmp_path / "b" / file).read_bytes())
    assert everything(tmp_path / "a") == rows(1, 7)
    mine, other = (json.loads((tmp_path / name / MANIFEST).read_bytes()) for name in ("a", "b"))
    (tmp_path / "a" / MANIFEST).write_text(json.dumps({**mine, "archive": "0123"}))
    with pytest.raises(FormatError, match=f"belongs to archive {other['archive']}, and this is archive 0123"):
        everything(tmp_path / "a")


def test_a_folder_that_is_no_archive_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for more in ((), ("--repair",)):
        done = unisono("doctor", "--archive", str(tmp_path), *more)
        assert done.returncode == 1
        assert "is not an archive" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
