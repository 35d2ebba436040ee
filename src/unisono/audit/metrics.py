"""The papers' figures of merit, for a journal as a whole."""

from typing import Any

from unisono.audit.trace import Trace

SECOND_US = 1_000_000
YEAR_US = 366 * 86_400 * SECOND_US
"""A latency beyond it is none: a moment of another unit, or a clock that nobody has set."""


def measure(trace: Trace) -> dict[str, float]:
    """Shares are between 0 and 1; times only where the journal has them."""
    events, told = len(trace.events), trace.deliveries
    metrics: dict[str, float] = {
        "events": events,
        "ordering_degree": round(ordering_degree(trace), 6),
        "inverted_share": share(sum(len(found.events) for found in trace.inversions), events),
        "tagged_share": share(len(trace.tags), told),
        "gaps": sum(record.kind == "gap" for record in trace.records),
    }
    latencies = sorted(
        latency
        for record in trace.records
        if record.kind in ("deliver", "tag") and (latency := trace.latency_us(record)) is not None
    )
    if latencies:
        metrics["notified_within_1s"] = share(sum(latency <= SECOND_US for latency in latencies), len(latencies))
        metrics["latency_p50_us"] = percentile(latencies, 50)
        metrics["latency_p99_us"] = percentile(latencies, 99)
        if far := sum(abs(latency) > YEAR_US for latency in latencies):
            metrics["latencies_beyond_a_year"] = far
    return metrics


def ordering_degree(trace: Trace) -> float:
    """Paper 001, section V: sum of (S - D) f(D) over S squared, per stream of length S; here the mean over subscribers.

    D is how far an event is displaced from its place in the reference order: the one order that explains all streams
    if there is one (the degree is then 1), else the same with each knot sorted by mean rank.
    """
    rank = [0] * len(trace.events)
    for i, event in enumerate(trace.union.order):
        rank[event] = i
    degrees = []
    for stream in trace.streams:
        size = len(stream.events)
        if size and trace.union.knots:
            right = {event: i for i, event in enumerate(sorted(stream.events, key=rank.__getitem__))}
            kept = sum(size - abs(right[event] - i) for i, event in enumerate(stream.events))
            degrees.append(kept / size**2)
        elif size:
            degrees.append(1.0)
    return sum(degrees) / len(degrees) if degrees else 1.0


def share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def percentile(ordered: Any, percent: int) -> int:
    """Nearest rank: the least value that `percent` of the values do not exceed."""
    return int(ordered[max(0, -(-percent * len(ordered) // 100) - 1)])
