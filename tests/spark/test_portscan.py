"""The case study: order and reliability decide what is found, and the stream says what the rule says."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.spark.queries import finish
from unisono.archive.schema import ArchivedEvent
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.model.time import Micros
from unisono.spark.portscan import Packet, Rule, Watch, blacklist, suspects

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "portscan"))

from evaluate import KEY, evaluate  # pyright: ignore[reportMissingImports]
from traffic import Traffic, generate, prepare, pseudonym  # pyright: ignore[reportMissingImports]


def packet(t: int, flag: str, port: int = 1, site: str = "a") -> Packet:
    return Packet(t, site, "src", "dst", port, port, flag)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["S", "SA", "R"], True),
        (["S", "SA", "A"], False),
        (["S", "R"], False),
        (["S", "R", "SA"], False),
        (["SA", "R"], False),
        (["S", "SA"], True),
    ],
)
def test_a_handshake_is_incomplete_in_one_order_only(flags: list[str], found: bool) -> None:
    watch = Watch(Rule(targets_min=1, sites_min=1, timeout_us=100))
    told = [name for i, flag in enumerate(flags) for name in watch.see(packet(i, flag))]
    told += watch.see(Packet(500, "a", "other", "dst", 9, 9, "S"))
    assert told == (["src"] if found else [])


def test_evidence_of_one_site_is_not_enough_and_old_evidence_is_forgotten() -> None:
    watch = Watch(Rule(targets_min=2, sites_min=2, window_us=1000))

    def probe(t: int, port: int, site: str) -> list[str]:
        return [name for i, flag in enumerate(("S", "SA", "R")) for name in watch.see(packet(t + i, flag, port, site))]

    assert probe(0, 1, "a") == probe(10, 2, "a") == []
    assert probe(5000, 3, "b") == []
    assert probe(5100, 4, "a") == ["src"]
    assert probe(5200, 5, "b") == [], "told once"


def test_without_order_or_reliability_scanners_escape() -> None:
    scores = evaluate(Traffic(flows=800))
    assert scores["fifo, reliable"] == (1.0, 1.0)
    assert scores["reliable, out of order"][1] < 0.5
    assert scores["5 % lost, out of order"][1] < 0.5
    assert scores["one site alone"] == (1.0, 0.0)


def keep(told: list[Packet], directory: Path) -> list[Packet]:
    """An archive of what sites said; returns what of it is sealed."""
    rows = [
        ArchivedEvent(i, "packets", i, p.site, i, p.t, p.t, None, {}, msgspec.json.encode(p))
        for i, p in enumerate(told, 1)
    ]
    sealed = len(rows) - len(rows) % 400
    with ArchiveWriter(directory, ArchiveConfig(seal_rows=400)) as writer:
        for start in range(0, sealed, 400):
            writer.append(rows[start : start + 400], Micros(0))
    return told[:sealed]


def test_the_stream_blacklists_whom_the_rule_blacklists(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="state in Python needs pyspark[connect]")
    traffic = Traffic(flows=300, scanners=4)
    packets, scanners = generate(traffic)
    sealed = keep(prepare(packets, KEY), tmp_path / "archive")
    watch = Watch(Rule())
    expected = [(seq, name) for seq, p in enumerate(sealed, 1) for name in watch.see(p)]
    events = spark.readStream.format("unisono").option("maxRowsPerTrigger", "700").load(str(tmp_path / "archive"))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    finish(blacklist(events).writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint))
    found = {name for row in spark.read.parquet(out).collect() for name in json.loads(row.payload)["blacklist"]}
    # A timeout is noticed by the next packet of the same bucket, a little later than the rule over all packets.
    assert found <= {name for _, name in expected}
    assert len(found) >= len(expected) - 1
    assert found <= {pseudonym(KEY, name) for name in scanners}
    seqs = [row.seq for row in spark.read.parquet(out).collect()]
    assert len(seqs) == len(set(seqs))
    history = spark.read.format("unisono").load(str(tmp_path / "archive"))
    assert {row.src for row in suspects(history).collect()} == {name for _, name in expected}
