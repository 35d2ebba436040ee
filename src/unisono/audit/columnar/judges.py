"""The judges on columns. One door for all engines: `unisono.audit.JUDGES`. A judge that has a columnar form here is
counted by it; any other gets all rows as the reference wants them, if they have what it needs. Witnesses are the
reference's own words: it is asked again about the few rows that show one violation.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from unisono.audit.columnar.causal import by_causes, by_clock
from unisono.audit.columnar.inversions import Inverted
from unisono.audit.columnar.lines import ambiguous, missing
from unisono.audit.columnar.log import NONE, ColumnarLog, Ints
from unisono.audit.columnar.metrics import measure
from unisono.audit.columnar.order import DeliveryRows, Knots, tangled
from unisono.audit.columnar.sorting import distinct, falls, has_repeats, ranks
from unisono.audit.columnar.streams import Streams, streams_of
from unisono.audit.judges.fifo import NO_AUTHOR, NO_TOPIC
from unisono.audit.judges.table import JUDGES, judge_trace
from unisono.audit.metrics import measure as measure_trace
from unisono.audit.report import Report
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, nothing, passed
from unisono.model.journal import Header, Journal, Record

SEARCHED_ROWS_MAX = 20_000
"""Of a knot in which the reference looks for the shortest cycle."""


class Case:
    """A log under audit, and what several judges need of it."""

    def __init__(self, log: ColumnarLog) -> None:
        self.log = log

    @cached_property
    def streams(self) -> Streams:
        return streams_of(self.log)

    @cached_property
    def knots(self) -> Knots | None:
        """What of the streams lies in knots, None if nothing does."""
        streams = self.streams
        inside, labels = tangled(len(self.log.events.names), streams.subscribers, streams.events)
        if not len(inside):
            return None
        which = np.searchsorted(streams.starts, inside, side="right") - 1
        places, lengths = inside - streams.starts[which], np.diff(streams.starts)[which]
        return Knots(DeliveryRows(which, streams.events[inside], places, lengths, inside), labels)

    def delivered(self, knotted: Ints) -> list[Record]:
        """The deliveries of these rows of knots, in the order of the log."""
        assert self.knots is not None
        return self.log.records(np.sort(self.streams.rows[self.knots.rows.at[knotted]]))

    def reference(self, judge: str) -> Verdict | None:
        """The judge on all rows."""
        return JUDGES[judge](self.log.trace)

    def verdict(self, judge: str, violations: int, records: list[Record]) -> Verdict:
        """The count, and what the judge says of records that show one violation."""
        if not violations:
            return passed(judge)
        shown = JUDGES[judge](Trace(Journal(Header(), records)))
        assert shown is not None
        assert shown.witness
        return Verdict(judge, holds=False, violations=violations, witness=shown.witness)


def examine(log: ColumnarLog) -> Report:
    """`examine(load("run.parquet"))`: what `unisono.audit.examine` says of the same rows."""
    case = Case(log)
    if not len(log.told):
        trace = log.trace
        return Report(0, 0, judge_trace(trace), measure_trace(trace))
    verdicts = [ask(case, name) for name in JUDGES]
    subscribers = len(distinct(log.subscribers.codes[log.told]))
    found = [verdict for verdict in verdicts if verdict is not None]
    return Report(len(log.told), subscribers, found, measure(log, case.streams, case.knots))


def ask(case: Case, name: str) -> Verdict | None:
    """What one judge says; None if the log has nothing for it."""
    judge, log = JUDGES[name], case.log
    if not log.columns.keys() >= {*judge.columns} or not log.kinds.keys() >= {*judge.kinds}:
        return None
    return NATIVE[name](case) if name in NATIVE else case.reference(name)


def _pairwise(case: Case) -> Verdict | None:
    return _inverted(case, "pairwise-order", lambda knots: knots.inverted)


def _local(case: Case) -> Verdict | None:
    return _inverted(case, "local-order", lambda knots: knots.local)


def _inverted(case: Case, judge: str, counted: Callable[[Knots], Inverted]) -> Verdict | None:
    if case.knots is None:
        return passed(judge)
    found = counted(case.knots)
    shown = case.delivered(case.knots.showing(found.example)) if found.pairs else []
    return case.verdict(judge, found.pairs, shown)


def _acyclic(case: Case) -> Verdict | None:
    if case.knots is None:
        return passed("acyclic")
    shown = case.knots.showing_cycle(SEARCHED_ROWS_MAX)
    return case.verdict("acyclic", case.knots.count, case.delivered(shown))


def _fifo(case: Case) -> Verdict | None:
    return _published_order(case, "fifo", None)


def _publisher_order(case: Case) -> Verdict | None:
    topics = case.log.topics
    return None if topics is None else _published_order(case, "publisher-order", topics.codes)


def _published_order(case: Case, judge: str, topics: Ints | None) -> Verdict | None:
    """`topics` of events, if only events of one topic are compared."""
    authors, streams = case.log.authors, case.streams
    if authors is None:
        return None
    is_in = authors.publishers != NONE if topics is None else (authors.publishers != NONE) & (topics != NONE)
    if not case.log.tells_of_notified(is_in):
        return nothing(judge, NO_AUTHOR if topics is None else NO_TOPIC)
    at = np.flatnonzero(is_in[streams.events])
    events = streams.events[at]
    lines = streams.subscribers[at] * authors.publishers_count + authors.publishers[events]
    if topics is not None:
        lines = ranks(lines) * (int(topics.max()) + 1) + topics[events]
    low, top = falls(lines, authors.seqs[events])
    shown = case.log.known_records(np.sort(streams.rows[at[[low[0], top[0]]]])) if len(low) else []
    return case.verdict(judge, len(low), shown)


def _exactly_once(case: Case) -> Verdict | None:
    """Counted by the reference, among the notifications that a violation can be of."""
    log, streams = case.log, case.streams
    suspect = np.zeros(log.size, bool)
    events, subscribers = log.events.codes, log.subscribers.codes
    keys = np.empty(0, np.int64)
    if len(streams.surplus) or len(log.tagged):
        keys = subscribers[log.told] * len(log.events.names) + events[log.told]
    if has_repeats(keys):
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        suspect[log.told[counts[inverse] > 1]] = True
    positions = log.numbers("position")
    assert positions is not None or not len(streams.rows)
    if positions is not None:
        places = positions.values[streams.rows]
        same = (places[1:] == places[:-1]) & (streams.subscribers[1:] == streams.subscribers[:-1])
        suspect[streams.rows[1:][same]] = suspect[streams.rows[:-1][same]] = True
    if "outcome" in log.kinds:
        asked = np.zeros(len(log.events.names) + 1, bool)
        asked[events[log.is_kind("outcome")]] = True
        suspect[log.told[asked[events[log.told]]]] = True
    if not suspect.any():
        return passed("exactly-once")
    suspect |= log.is_kind("outcome", "restart")
    trace = Trace(Journal(log.header, log.records(np.flatnonzero(suspect))))
    return JUDGES["exactly-once"](trace)


def _deadline(case: Case) -> Verdict | None:
    log = case.log
    deadlines = log.numbers("deadline_us")
    if deadlines is None:
        return None
    rows = np.flatnonzero(log.is_kind("deliver", "tag", "gap", "stalled"))
    due, is_due = deadlines.values[rows], deadlines.known[rows]
    if "publish" in log.kinds:
        published = log.last_telling(deadlines.known, np.flatnonzero(log.is_kind("publish")))
        events = log.events.codes[rows]
        teller = np.where(events != NONE, published[events], NONE) if len(published) else np.full(len(rows), NONE)
        use = ~is_due & (teller != NONE)
        due, is_due = np.where(use, deadlines.values[teller], due), is_due | use
    answered, is_answered = log.answered(rows)
    judged = is_due & is_answered
    if not judged.any():
        return None
    late = np.flatnonzero(judged & (answered > due))
    if not len(late):
        return passed("deadline")
    by = answered[late].astype(np.uint64) - due[late].astype(np.uint64)  # the difference may need the 64th bit
    worst = late[np.argmax(by)]
    record = log.records(rows[[worst]])[0]
    record = replace(record, deadline_us=int(due[worst]), delivered_us=int(answered[worst]))
    return case.verdict("deadline", len(late), [record])


def _causal(case: Case) -> Verdict | None:
    """By clocks, or by lists of causes; from records by the reference."""
    log = case.log
    if "clock" in log.columns and log.authors is not None:
        tellers = log.telling_causes("clock")
        if (tellers != NONE).any():
            both = [tellers != NONE, log.authors.publishers != NONE]
            if not all(map(log.tells_of_notified, both)):
                return case.reference("causal")  # which says what is missing
            return case.verdict("causal", *by_clock(log, case.streams, log.authors, tellers))
    if "depends_on" in log.columns:
        tellers = log.telling_causes("depends_on")
        if (tellers != NONE).any():
            if not log.tells_of_notified(tellers != NONE):
                return case.reference("causal")
            records = by_causes(log, case.streams, tellers)
            return JUDGES["causal"](Trace(Journal(log.header, records))) if records else passed("causal")
    return case.reference("causal") if "publish" in log.kinds else None


def _complete(case: Case) -> Verdict | None:
    log = case.log
    if "subscribe" in log.kinds and ("publish" in log.kinds or "timestamp" in log.kinds):
        return case.reference("complete")
    found = missing(log)
    return None if found is None else case.verdict("complete", *found)


def _kept(case: Case) -> Verdict | None:
    log = case.log
    if "outcome" in log.kinds or "void" in log.kinds:
        return case.reference("kept")
    found = ambiguous(log)
    return None if found is None else case.verdict("kept", *found)


NATIVE: Mapping[str, Callable[[Case], Verdict | None]] = {
    "pairwise-order": _pairwise,
    "local-order": _local,
    "acyclic": _acyclic,
    "fifo": _fifo,
    "publisher-order": _publisher_order,
    "causal": _causal,
    "exactly-once": _exactly_once,
    "complete": _complete,
    "kept": _kept,
    "deadline": _deadline,
}
"""Judges that have a columnar form."""
