"""The figures of merit, from columns: the same as `unisono.audit.metrics`."""

import numpy as np

from unisono.audit.columnar.log import NONE, ColumnarLog, Flags, Ints
from unisono.audit.columnar.order import Knots
from unisono.audit.columnar.streams import Streams
from unisono.audit.metrics import SECOND_US, YEAR_US, percentile, share


def measure(log: ColumnarLog, streams: Streams, knots: Knots | None) -> dict[str, float]:
    seen = np.zeros(len(log.events.names), bool)
    seen[streams.events] = True
    events = int(seen.sum())
    inverted = 0 if knots is None else int(knots.inverted.events.sum())
    metrics: dict[str, float] = {
        "events": events,
        "ordering_degree": round(_ordering_degree(streams, knots), 6),
        "inverted_share": share(inverted, events),
        "tagged_share": share(len(log.tagged), len(log.told)),
        "gaps": int(log.is_kind("gap").sum()) if "gap" in log.kinds else 0,
    }
    latencies = _latencies(log)
    if len(latencies):
        latencies.sort()
        metrics["notified_within_1s"] = share(int((latencies <= SECOND_US).sum()), len(latencies))
        metrics["latency_p50_us"] = percentile(latencies, 50)
        metrics["latency_p99_us"] = percentile(latencies, 99)
        if far := int(((latencies > YEAR_US) | (latencies < -YEAR_US)).sum()):
            metrics["latencies_beyond_a_year"] = far
    return metrics


def _ordering_degree(streams: Streams, knots: Knots | None) -> float:
    """As `metrics.ordering_degree`."""
    count = len(streams.starts) - 1
    if knots is None or not count:
        return 1.0
    degrees = [1.0] * count
    for stream, far, size in zip(*(column.tolist() for column in knots.moved())):
        degrees[stream] = (size * size - far) / size**2
    return sum(degrees) / count


def _latencies(log: ColumnarLog) -> Ints:
    answered, is_answered = log.answered(log.told)
    published, is_published = _published(log)
    known = is_answered & is_published
    answered, published = answered[known], published[known]
    extreme = 2**62
    if len(answered) and max(np.abs(answered // 2).max(), np.abs(published // 2).max()) >= extreme // 2:
        wide: Ints = answered.astype(object) - published.astype(object)  # more than 64 bits
        return wide
    return answered - published


def _published(log: ColumnarLog) -> tuple[Ints, Flags]:
    """When the event of each notification was published: by its row, any row of the event, its publish record."""
    moments, known = np.zeros(len(log.told), np.int64), np.zeros(len(log.told), bool)
    events = log.events.codes[log.told]
    told = log.numbers("published_us")
    if told is not None:
        moments, known = told.values[log.told], told.known[log.told]
        if not known.all():
            tellers = log.last_telling(told.known)[events]
            use = ~known & (tellers != NONE)
            moments, known = np.where(use, told.values[tellers], moments), known | use
    written = log.numbers("at_us")
    if written is not None and "publish" in log.kinds and not known.all():
        tellers = log.last_telling(np.ones(log.size, bool), np.flatnonzero(log.is_kind("publish")))[events]
        use = ~known & (tellers != NONE)
        moments, known = np.where(use, written.values[tellers], moments), known | use
    return moments, known
