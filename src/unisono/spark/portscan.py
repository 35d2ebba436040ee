"""Collaborative port-scan detection (thesis, section 1.2.1): scanners that stay below every single site's threshold.

Sites publish what they saw of TCP handshakes, pseudonymised, as JSON: `{"t": us, "site", "src", "dst", "port", "flow",
"flag"}` with flag S (SYN), SA (SYN-ACK), A (the ACK that completes), R (RST). A handshake is incomplete when its
packets came in the order S, SA, R, or when nothing came for `timeout_us` after S, SA. A source that left incomplete
ones at `targets_min` targets of `sites_min` sites is blacklisted. Time is that of the packets, in the order of the
log, so a replay says the same.

`PacketWatch` is the rule, without Spark. `incomplete` finds the handshakes natively, over a stream as over history:
only they, a small part of the packets, reach Python and the state that `blacklist` keeps by source. `suspects` says
which sources are worth a look in any range of history.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

PACKET = "t BIGINT, site STRING, src STRING, dst STRING, port INT, flow BIGINT, flag STRING"


class Rule(Struct, frozen=True):
    """When a source is a scanner."""

    targets_min: int = 10
    sites_min: int = 3
    timeout_us: int = 2_000_000
    """A handshake without an answer for this long is incomplete."""
    lateness_us: int = 1_000_000
    """How much later than packets of other sites a packet may stand in the log. Price: the stream waits for it."""
    window_us: int = 900_000_000
    """Evidence older than this is forgotten. Price: state per source that ever left a handshake open."""


class ObservedPacket(Struct, frozen=True):
    """What a site tells of one packet."""

    t: int
    site: str
    src: str
    dst: str
    port: int
    flow: int
    flag: str


@dataclass(slots=True)
class Evidence:
    """Who left handshakes incomplete, and where. Plain data; sources without evidence for a window are forgotten."""

    rule: Rule
    targets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Source -> target of an incomplete handshake -> when; who left one last stands last."""
    told: dict[str, int] = field(default_factory=dict)
    """Who was found out, and when; for as long as there is evidence."""

    def count(self, source: str, target: str, now: int) -> bool:
        """Whether the source is found out by this one."""
        own = self.targets.pop(source, {})
        for old in [t for t, since in own.items() if now - since > self.rule.window_us]:
            del own[old]
        if not own:
            self.told.pop(source, None)
        own[target] = now
        self.targets[source] = own
        self._forget(now)
        sites = {t.partition("|")[0] for t in own}
        if source in self.told or len(own) < self.rule.targets_min or len(sites) < self.rule.sites_min:
            return False
        self.told[source] = now
        return True

    def newest(self) -> int:
        """Of all evidence."""
        return max((moment for own in self.targets.values() for moment in own.values()), default=0)

    def _forget(self, now: int) -> None:
        """Those that stand first, with a margin for packets that are not quite in the order of their clocks."""
        oldest = now - self.rule.window_us - self.rule.lateness_us
        while (first := next(iter(self.targets))) and max(self.targets[first].values()) < oldest:
            del self.targets[first]
            self.told.pop(first, None)


@dataclass(slots=True)
class PacketWatch:
    """The rule applied to packets in the order of the log."""

    rule: Rule
    evidence: Evidence = field(init=False)
    open: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    """Handshake -> source, target, last flag, time; oldest first."""

    def __post_init__(self) -> None:
        self.evidence = Evidence(self.rule)

    def see(self, packet: ObservedPacket) -> list[str]:
        """The sources that are found out by this packet."""
        found = self._expire(packet.t)
        key = f"{packet.site}|{packet.src}|{packet.dst}|{packet.port}|{packet.flow}"
        target = f"{packet.site}|{packet.dst}|{packet.port}"
        known = self.open.get(key)
        match packet.flag:
            case "S":
                self.open[key] = (packet.src, target, "S", packet.t)
            case "SA" if known is not None and known[2] == "S":
                del self.open[key]  # to the end: times ascend
                self.open[key] = (packet.src, target, "SA", packet.t)
            case "A" if known is not None and known[2] == "SA":
                del self.open[key]
            case "R" if known is not None:
                del self.open[key]
                # A refused SYN is no scan of an open port.
                if known[2] == "SA" and self.evidence.count(packet.src, target, packet.t):
                    found.append(packet.src)
            case _:
                pass
        return found

    def _expire(self, now: int) -> list[str]:
        found: list[str] = []
        for key, (source, target, flag, since) in list(self.open.items()):
            if now - since < self.rule.timeout_us:
                break
            del self.open[key]
            if flag == "SA" and self.evidence.count(source, target, now):
                found.append(source)
        return found


class ScanWatch(StatefulProcessor):
    """`Evidence` of one source as a state operator. A timer ends it when the last of it is older than the window."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("evidence", "state STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        kept = self._state.get()
        evidence = self._evidence(kept)
        for end_us, source, target in sorted((row.end_us, row.src, row.target) for row in rows):
            if evidence.count(source, target, end_us):
                yield Row(seq=end_us, src=source)
        self._state.update((json.dumps([evidence.targets, evidence.told]),))
        if kept is None:
            self._handle.registerTimer(self._expiry_ms(evidence))

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:
        expiry_ms = self._expiry_ms(self._evidence(self._state.get()))
        if expiry_ms > expiredTimerInfo.getExpiryTimeInMs():  # there is newer evidence
            self._handle.registerTimer(expiry_ms)
        else:
            self._state.clear()
        return iter(())

    def _evidence(self, kept: Any) -> Evidence:
        return Evidence(self._rule) if kept is None else Evidence(self._rule, *json.loads(kept[0]))

    def _expiry_ms(self, evidence: Evidence) -> int:
        return (evidence.newest() + self._rule.window_us) // 1000 + 1

    def close(self) -> None:
        """Nothing is held."""


def packets(events: DataFrame) -> DataFrame:
    """`seq` and the packet of every event of the source `unisono`; what is no packet is left out."""
    parsed = events.select("seq", F.from_json(F.col("payload").cast("string"), PACKET).alias("packet"))
    return parsed.select("seq", "packet.*").where("flag IS NOT NULL AND src IS NOT NULL AND t IS NOT NULL")


def incomplete(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """`ended, end_us, src, site, target` of every incomplete handshake, natively. It ends `timeout_us` after its last
    packet.

    A handshake is a session of packets. Its flags in the order of the log run through the states of `PacketWatch`: the
    order that the transport kept, not that of the clocks of sites, decides what it was. A stream tells it when no
    packet that could still belong to it is waited for.
    """
    seen = packets(events).withColumn("at", F.timestamp_micros("t"))
    session = F.session_window("at", f"{rule.timeout_us} microseconds")
    flags = F.array_sort(F.collect_list(F.struct("seq", "flag")))
    last = F.aggregate(flags, F.lit(""), _next_state)
    return (
        seen.withWatermark("at", f"{rule.lateness_us} microseconds")
        .groupBy(session.alias("session"), "site", "src", "dst", "port", "flow")
        .agg(last.alias("state"))
        .where("state IN ('SA', 'SA R')")
        .select(
            F.window_time("session").alias("ended"),
            F.unix_micros("session.end").alias("end_us"),
            *("src", "site"),
            F.concat_ws("|", "site", "dst", "port").alias("target"),
        )
    )


def _next_state(state: Column, packet: Column) -> Column:
    flag = packet["flag"]
    return (
        F.when(state == "SA R", state)
        .when(flag == "S", "S")
        .when((flag == "SA") & (state == "S"), "SA")
        .when((flag == "R") & (state == "SA"), "SA R")
        .when((flag == "R") | ((flag == "A") & (state == "SA")), "")
        .otherwise(state)
    )


def blacklist(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """A stream `seq, payload` for the sink: an event for every moment at which somebody is found out.

    `seq` is that moment in the time of the packets. What a stream tells later is later, so it ascends, and a replay
    from the beginning says the same again. State is kept by source, and for as long as there is evidence.
    """
    found = (
        incomplete(events, rule)
        .groupBy("src")
        .transformWithState(ScanWatch(rule), "seq BIGINT, src STRING", outputMode="Append", timeMode="EventTime")
    )

    def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handshakes that end at one moment are told in one batch, whoever's they are."""
        sources: dict[int, list[str]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                sources.setdefault(row["seq"], []).append(row["src"])
        said = [json.dumps({"blacklist": sorted(sources[seq]), "t": seq - rule.timeout_us}) for seq in sorted(sources)]
        if sources:
            yield pa.record_batch({"seq": pa.array(sorted(sources), pa.int64()), "payload": pa.array(said)})

    return found.repartition(1).mapInArrow(together, "seq BIGINT, payload STRING")


def suspects(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """`src, targets, sites`, natively: sources with enough incomplete handshakes in these events, whatever the window.

    No state: for looking back over days of the archive before anybody keeps state about anybody.
    """
    now = packets(events).agg(F.max("t").alias("now"))
    return (
        incomplete(events, rule)
        .crossJoin(now)
        .where("end_us <= now")
        .groupBy("src")
        .agg(F.count_distinct("target").alias("targets"), F.count_distinct("site").alias("sites"))
        .where((F.col("targets") >= rule.targets_min) & (F.col("sites") >= rule.sites_min))
    )
