"""`unisono doctor --archive`: damage is found, and repaired into a gap that readers are told of."""

import json
from pathlib import Path

import pytest

from tests.archive.test_archive import NOW, SMALL, everything, rows
from tests.house.test_command_line import unisono
from unisono.archive.headers import GAP
from unisono.archive.reader import Archive, check
from unisono.archive.repair import repair
from unisono.archive.writer import ArchiveWriter
from unisono.errors import MisuseError


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


def test_an_archive_that_is_being_written_is_not_repaired(damaged: Path) -> None:
    with ArchiveWriter(damaged, SMALL), pytest.raises(MisuseError, match="has a writer already"):
        repair(damaged, NOW)
