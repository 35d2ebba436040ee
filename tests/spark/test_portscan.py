"""The case study: order and reliability decide what is found, and the stream says what the rule says."""

import json
import sys
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.spark.queries import finish
from unisono.archive.schema import ArchivedEvent
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.model.time import Micros
from unisono.spark.portscan import Evidence, ObservedPacket, PacketWatch, Rule, blacklist, incomplete, suspects

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "portscan"))

from evaluate import KEY, evaluate  # pyright: ignore[reportMissingImports]
from traffic import SECOND, Traffic, generate, prepare, pseudonym  # pyright: ignore[reportMissingImports]


def packet(t: int, flag: str, port: int = 1, site: str = "a") -> ObservedPacket:
    return ObservedPacket(t, site, "src", "dst", port, port, flag)


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
    watch = PacketWatch(Rule(targets_min=1, sites_min=1, timeout_us=100))
    told = [name for i, flag in enumerate(flags) for name in watch.see(packet(i, flag))]
    told += watch.see(ObservedPacket(500, "a", "other", "dst", 9, 9, "S"))
    assert told == (["src"] if found else [])


def test_evidence_of_one_site_is_not_enough_and_old_evidence_is_forgotten() -> None:
    watch = PacketWatch(Rule(targets_min=2, sites_min=2, window_us=1000))

    def probe(t: int, port: int, site: str) -> list[str]:
        return [name for i, flag in enumerate(("S", "SA", "R")) for name in watch.see(packet(t + i, flag, port, site))]

    assert probe(0, 1, "a") == probe(10, 2, "a") == []
    assert probe(5000, 3, "b") == []
    assert probe(5100, 4, "a") == ["src"]
    assert probe(5200, 5, "b") == [], "told once"


def test_who_left_no_evidence_for_a_window_is_forgotten_and_can_be_told_again() -> None:
    evidence = Evidence(Rule(targets_min=2, sites_min=2, window_us=1000, lateness_us=10))
    told = [evidence.count("x", target, now) for now, target in ((0, "a|1"), (10, "b|1"), (20, "a|2"), (1500, "a|1"))]
    assert told == [False, True, False, False]
    assert evidence.count("x", "b|1", 1510), "after a window without evidence"
    for i in range(50):
        evidence.count(f"once{i}", "a|1", 2000 + 100 * i)
    assert len(evidence.targets) <= 12
    assert not evidence.told


def test_without_order_or_reliability_scanners_escape() -> None:
    scores = evaluate(Traffic(flows=800))
    assert scores["fifo, reliable"] == (1.0, 1.0)
    assert scores["reliable, out of order"][1] < 0.5
    assert scores["5 % lost, out of order"][1] < 0.5
    assert scores["one site alone"] == (1.0, 0.0)


def keep(told: list[ObservedPacket], directory: Path) -> list[ObservedPacket]:
    """An archive of what sites said; at the end a packet much later, so that nothing before it is waited for."""
    late = ObservedPacket(told[-1].t + 60 * SECOND, "site0", "nobody", "nothing", 1, 0, "A")
    rows = [
        ArchivedEvent(i, "packets", i, p.site, i, p.t, p.t, None, {}, msgspec.json.encode(p))
        for i, p in enumerate([*told, late], 1)
    ]
    with ArchiveWriter(directory, ArchiveConfig(seal_rows=len(rows))) as writer:
        writer.append(rows, Micros(0))
    return [*told, late]


def test_the_stream_blacklists_whom_the_rule_blacklists(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="state in Python needs pyspark[connect]")
    traffic = Traffic(flows=300, scanners=4)
    packets, scanners = generate(traffic)
    told = keep(prepare(packets, KEY), tmp_path / "archive")
    watch = PacketWatch(Rule())
    expected = {name for packet in told for name in watch.see(packet)}
    assert expected <= {pseudonym(KEY, name) for name in scanners}
    events = spark.readStream.format("unisono").option("maxRowsPerTrigger", "600").load(str(tmp_path / "archive"))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # each keeps two states, and a worker in Python, per batch
    try:
        writer = blacklist(events).writeStream.format("parquet").option("path", out)
        finish(writer.option("checkpointLocation", checkpoint))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffles or "2")
    rows = spark.read.parquet(out).collect()
    found = [name for row in rows for name in json.loads(row.payload)["blacklist"]]
    assert sorted(found) == sorted(expected), "each once"
    assert len({row.seq for row in rows}) == len(rows)
    history = spark.read.format("unisono").load(str(tmp_path / "archive"))
    assert {row.src for row in suspects(history).collect()} == expected
    candidates = incomplete(history).count()
    assert len(expected) < candidates < len(told) / 8, "state and Python see candidates, not packets"


def test_the_order_of_the_log_decides_what_a_handshake_was(spark: SparkSession) -> None:
    """Natively as by `PacketWatch`, in every order of the packets of a handshake, with a packet lost or one twice."""
    orders = [flags for n in (1, 2, 3, 4) for flags in permutations(("S", "SA", "A", "R"), n)]
    orders += [("S", "SA", "R", "S"), ("S", "S", "SA"), ("S", "SA", "SA", "A"), ("S", "SA", "R", "A", "S")]
    rule = Rule(targets_min=1, sites_min=1, timeout_us=100)
    told = [
        ObservedPacket(1000 * port + 99 - i, "a", f"src{port}", "dst", port, 1, flag)  # clocks say the reverse
        for port, flags in enumerate(orders, 1)
        for i, flag in enumerate(flags)
    ]
    told.append(ObservedPacket(10**6, "a", "nobody", "nothing", 1, 0, "A"))
    watch = PacketWatch(rule)
    expected = {name for packet in told for name in watch.see(packet)}
    rows = [(seq, msgspec.json.encode(packet)) for seq, packet in enumerate(told, 1)]
    found = incomplete(spark.createDataFrame(rows, "seq BIGINT, payload BINARY"), rule).collect()
    assert {row.src for row in found} == expected
    assert 0 < len(expected) < len(orders) / 2
