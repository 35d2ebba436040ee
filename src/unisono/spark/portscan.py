"""Collaborative port-scan detection (thesis, section 1.2.1): scanners that stay below every single site's threshold.

Sites publish what they saw of TCP handshakes, pseudonymised, as JSON: `{"t": us, "site", "src", "dst", "port", "flow",
"flag"}` with flag S (SYN), SA (SYN-ACK), A (the ACK that completes), R (RST). A handshake is incomplete when its
packets came in the order S, SA, R, or when nothing came for `timeout_us` after S, SA. A source that left incomplete
ones at `targets_min` targets of `sites_min` sites is blacklisted. Time is that of the packets, in the order of the
log, so a replay says the same.

`Watch` is the rule, without Spark. `incomplete` finds the handshakes natively, over a stream as over history: only
they, a small part of the packets, reach Python and the state that `blacklist` keeps about sources. `suspects` says
which sources are worth a look in any range of history.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
class Evidence:
    """Who left handshakes incomplete, and where. Plain data."""

    rule: Rule
    targets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Source -> target of an incomplete handshake -> when."""
    told: dict[str, int] = field(default_factory=dict)

    def count(self, source: str, target: str, now: int) -> bool:
        """Whether the source is found out by this one."""
        own = self.targets.setdefault(source, {})
        own[target] = now
        for old in [t for t, since in own.items() if now - since > self.rule.window_us]:
            del own[old]
        sites = {t.partition("|")[0] for t in own}
        if source in self.told or len(own) < self.rule.targets_min or len(sites) < self.rule.sites_min:
            return False
        self.told[source] = now
        return True


@dataclass(slots=True)
class Watch:
    """The rule applied to packets in the order of the log."""

    rule: Rule
    evidence: Evidence = field(init=False)
    open: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    """Handshake -> source, target, last flag, time; oldest first."""

    def __post_init__(self) -> None:
        self.evidence = Evidence(self.rule)

    def see(self, packet: Packet) -> list[str]:
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
    """`Evidence` as a state operator, in one value: each (key, batch) costs a visit, and candidates are few."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("evidence", "state STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        kept = self._state.get()
        evidence = Evidence(self._rule, *json.loads(kept[0])) if kept is not None else Evidence(self._rule)
        found: dict[int, list[str]] = {}
        for end_us, source, target in sorted((row.end_us, row.src, row.target) for row in rows):
            if evidence.count(source, target, end_us):
                found.setdefault(end_us, []).append(source)
        self._state.update((json.dumps([evidence.targets, evidence.told]),))
        for end_us, sources in found.items():
            yield Row(seq=end_us, payload=json.dumps({"blacklist": sources, "t": end_us - self._rule.timeout_us}))

    def close(self) -> None:
        """Nothing is held."""


def packets(events: DataFrame) -> DataFrame:
    """`seq` and the packet of every event of the source `unisono`; what is no packet is left out."""
    parsed = events.select("seq", F.from_json(F.col("payload").cast("string"), PACKET).alias("packet"))
    return parsed.select("seq", "packet.*").where("flag IS NOT NULL AND src IS NOT NULL AND t IS NOT NULL")


def incomplete(events: DataFrame, rule: Rule = Rule()) -> DataFrame:
    """`end_us, src, site, target` of every incomplete handshake, natively; it ends `timeout_us` behind its last packet.

    A handshake is a session of packets. Its flags in the order of the log run through the states of `Watch`: the order
    that the transport kept, not that of the clocks of sites, decides what it was. A stream tells it when no packet that
    could still belong to it is waited for.
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
    from the beginning says the same again.
    """
    return (
        incomplete(events, rule)
        .withColumn("all", F.lit(0))
        .groupBy("all")
        .transformWithState(ScanWatch(rule), "seq BIGINT, payload STRING", outputMode="Append", timeMode="None")
    )


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
