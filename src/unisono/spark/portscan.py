"""Collaborative port-scan detection (thesis, section 1.2.1): scanners that stay below every single site's threshold.

Sites publish what they saw of TCP handshakes, pseudonymised, as JSON: `{"t": us, "site", "src", "dst", "port", "flow",
"flag"}` with flag S (SYN), SA (SYN-ACK), A (the ACK that completes), R (RST). A handshake is incomplete when its
packets came in the order S, SA, R, or when nothing came for `timeout_us` after S, SA. A source that left incomplete
ones at `targets_min` targets of `sites_min` sites is blacklisted. Time is that of the packets, in the order of the
log, so a replay says the same.

`Watch` is the rule, without Spark. `blacklist` runs it on a stream with state per bucket of sources; `suspects` says
natively, over any range of history, which sources are worth a look.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

PACKET = "t BIGINT, site STRING, src STRING, dst STRING, port INT, flow BIGINT, flag STRING"
BUCKETS = 16
"""State is kept per bucket: each (key, batch) costs a visit, so few coarse keys."""


class Rule(Struct, frozen=True):
    """When a source is a scanner."""

    targets_min: int = 10
    sites_min: int = 3
    timeout_us: int = 2_000_000
    """A handshake without an answer for this long is incomplete."""
    window_us: int = 900_000_000
    """Evidence older than this is forgotten. Price: state per source that ever left a handshake open."""


class Packet(Struct, frozen=True):
    """What a site tells of one packet."""

    t: int
    site: str
    src: str
    dst: str
    port: int
    flow: int
    flag: str


@dataclass(slots=True)
class Watch:
    """The rule applied to packets in the order of the log. Its state is plain data."""

    rule: Rule
    open: dict[str, list[Any]] = field(default_factory=dict)
    """Handshake -> source, target, last flag, time; oldest first."""
    evidence: dict[str, dict[str, int]] = field(default_factory=dict)
    """Source -> target of an incomplete handshake -> when."""
    told: dict[str, int] = field(default_factory=dict)

    def see(self, packet: Packet) -> list[str]:
        """The sources that are found out by this packet."""
        found = self._expire(packet.t)
        key = f"{packet.site}|{packet.src}|{packet.dst}|{packet.port}|{packet.flow}"
        target = f"{packet.site}|{packet.dst}|{packet.port}"
        known = self.open.get(key)
        match packet.flag:
            case "S":
                self.open[key] = [packet.src, target, "S", packet.t]
            case "SA" if known is not None and known[2] == "S":
                del self.open[key]  # to the end: times ascend
                self.open[key] = [packet.src, target, "SA", packet.t]
            case "A" if known is not None and known[2] == "SA":
                del self.open[key]
            case "R" if known is not None:
                del self.open[key]
                if known[2] == "SA":  # a refused SYN is no scan of an open port
                    found += self._count(packet.src, target, packet.t)
            case _:
                pass
        return found

    def _expire(self, now: int) -> list[str]:
        found: list[str] = []
        for key, (source, target, flag, since) in list(self.open.items()):
            if now - since < self.rule.timeout_us:
                break
            del self.open[key]
            if flag == "SA":
                found += self._count(source, target, now)
        return found

    def _count(self, source: str, target: str, now: int) -> list[str]:
        own = self.evidence.setdefault(source, {})
        own[target] = now
        for old in [t for t, since in own.items() if now - since > self.rule.window_us]:
            del own[old]
        sites = {t.partition("|")[0] for t in own}
        if source in self.told or len(own) < self.rule.targets_min or len(sites) < self.rule.sites_min:
            return []
        self.told[source] = now
        return [source]


class ScanWatch(StatefulProcessor):
    """`Watch` as a state operator: one value per bucket."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("watch", "state STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        kept = self._state.get()
        watch = Watch(self._rule, **json.loads(kept[0])) if kept is not None else Watch(self._rule)
        for row in sorted(rows, key=lambda row: row.seq):  # a group has no order of its own
            packet = Packet(row.t, row.site, row.src, row.dst, row.port, row.flow, row.flag)
            sources = watch.see(packet)
            if sources:
                yield Row(seq=row.seq, payload=json.dumps({"blacklist": sources, "t": row.t}))
        state = {"open": watch.open, "evidence": watch.evidence, "told": watch.told}
        self._state.update((json.dumps(state),))

    def close(self) -> None:
        """Nothing is held."""


def packets(events: DataFrame) -> DataFrame:
    """`seq` and the packet of every event of the source `unisono`; what is no packet is left out."""
    parsed = events.select("seq", F.from_json(F.col("payload").cast("string"), PACKET).alias("packet"))
    return parsed.select("seq", "packet.*").where("flag IS NOT NULL AND src IS NOT NULL AND t IS NOT NULL")


def blacklist(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """A stream `seq, payload` for the sink: an event for every packet that found somebody out."""
    bucket = F.abs(F.hash("src")) % BUCKETS
    return (
        packets(events)
        .withColumn("bucket", bucket)
        .groupBy("bucket")
        .transformWithState(ScanWatch(rule), "seq BIGINT, payload STRING", outputMode="Append", timeMode="None")
    )


def suspects(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """`src, targets, sites`, natively: sources with enough incomplete handshakes in these events, whatever the window.

    One shuffle, no state: for looking back over days of the archive before anybody keeps state about anybody.
    """
    seen = packets(events)
    now = seen.agg(F.max("t").alias("now"))
    first = {flag: F.min(F.when(F.col("flag") == flag, F.col("seq"))).alias(flag) for flag in ("S", "SA", "A", "R")}
    answered = F.min(F.when(F.col("flag") == "SA", F.col("t"))).alias("answered")
    flows = seen.groupBy("site", "src", "dst", "port", "flow").agg(*first.values(), answered).crossJoin(now)
    silent = F.col("A").isNull() & F.col("R").isNull() & (F.col("now") - F.col("answered") >= rule.timeout_us)
    incomplete = (F.col("S") < F.col("SA")) & ((F.col("A").isNull() & (F.col("R") > F.col("SA"))) | silent)
    return (
        flows.where(incomplete)
        .groupBy("src")
        .agg(F.count_distinct("site", "dst", "port").alias("targets"), F.count_distinct("site").alias("sites"))
        .where((F.col("targets") >= rule.targets_min) & (F.col("sites") >= rule.sites_min))
    )
