"""How long events took, from region to region and per topic, and what order cost of it."""

from msgspec import Struct

from unisono.audit.live.state import JournalRow
from unisono.audit.metrics import percentile
from unisono.audit.trace import Trace


class Latency(Struct, frozen=True):
    """One line of the table, of the notifications of one batch. A region is "" where nobody told it.

    `held` is what order cost: from the arrival of the payload to the notification, where the log has both.
    """

    published_in: str
    delivered_in: str
    topic: str
    notified: int = 0
    tagged: int = 0
    p50_us: int | None = None
    p99_us: int | None = None
    held_p50_us: int | None = None
    held_p99_us: int | None = None
    gaps: int = 0
    stalls: int = 0


def latencies_of(rows: list[JournalRow], trace: Trace, homes: dict[str, str]) -> list[Latency]:
    """`rows` are those of the trace; `homes` are the regions of publishers."""
    arrived: dict[tuple[str, str | None], int] = {}
    for row in rows:
        if row.record.kind == "arrive":
            key = (row.record.subscriber or row.record.who or "", row.record.event)
            arrived.setdefault(key, row.record.at_us)
    groups: dict[tuple[str, str, str], list[JournalRow]] = {}
    for row in rows:
        record = row.record
        if record.kind in ("deliver", "tag", "gap", "stalled"):
            publisher = trace.authors.get(record.event or "", (record.publisher or "", 0))[0]
            topic = trace.topics.get(record.event or "", record.topic or "")
            groups.setdefault((homes.get(publisher, ""), row.region, topic), []).append(row)
    return [_line(key, members, trace, arrived) for key, members in sorted(groups.items())]


def _line(
    key: tuple[str, str, str], rows: list[JournalRow], trace: Trace, arrived: dict[tuple[str, str | None], int]
) -> Latency:
    kinds = [row.record.kind for row in rows]
    told = [row.record for row in rows if row.record.kind in ("deliver", "tag")]
    taken = sorted(latency for record in told if (latency := trace.latency_us(record)) is not None)
    held = sorted(
        moment - arrived[record.subscriber or "", record.event]
        for record in told
        if (record.subscriber or "", record.event) in arrived and (moment := trace.delivered_us(record)) is not None
    )
    return Latency(
        *key,
        notified=len(told),
        tagged=kinds.count("tag"),
        p50_us=percentile(taken, 50) if taken else None,
        p99_us=percentile(taken, 99) if taken else None,
        held_p50_us=percentile(held, 50) if held else None,
        held_p99_us=percentile(held, 99) if held else None,
        gaps=kinds.count("gap"),
        stalls=kinds.count("stalled"),
    )
