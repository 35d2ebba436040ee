"""The live audit: takes rows as they come, from several regions, and judges what is closed, exactly and for good.

A row is of the past when it is older than the *watermark*: the newest moment of the region that is least far, less
`lateness_us`. An event is *open* while something told of it is not of the past, and so is everything that comes after
an open event in a stream, to the end of that thought. What is not open is *closed*: no stream leads from an open event
back to a closed one, so every knot is wholly open or wholly closed, and the judges may look at closed events alone.
Added up over all batches their findings are those of the whole log without its late rows.

*Late* is a row that would change what was judged: of an event that is closed, or before the end of a judged stream. It
is handed back and counted, never judged. An event that nobody was notified of yet is only kept in mind.

Everything is bounded (`LiveLimits`), and what a bound does is counted: `forced`, `forgotten`. No clock, no files: a
driver brings rows, keeps the state by batch, and writes down what `close` says.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from unisono.audit.judges.deadline import JUDGE as DEADLINE
from unisono.audit.judges.once import JUDGE as ONCE
from unisono.audit.live.carried import LIVE, add, judge_part
from unisono.audit.live.latencies import Latency, latencies_of
from unisono.audit.live.state import JournalRow, JudgedEvent, LiveLimits, LiveState, Notified, moment_of
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record

ANSWERS = ("deliver", "tag", "gap", "stalled")
"""Kinds of rows that somebody was told something by."""
FACTS = ("publish", "timestamp", "outcome", "arrive")
"""Kinds of rows that tell of an event, and that a live judge uses."""
LOOSE = ("gap", "stalled", "restart")
"""Kinds of rows that are of use without an event."""

MOMENT_END_US = 4_102_444_800_000_000
"""The year 2100: no clock is there, but nanoseconds are."""
END = 2**63 - 1
"""The watermark when no row is to come any more."""


class BatchReport(Struct, frozen=True):
    """What one batch brought. `verdicts` are of what was closed in it; the rest is counted from the beginning."""

    batch: int
    deliveries: int
    """Notifications that were judged in this batch."""
    events: int
    verdicts: list[Verdict]
    latencies: list[Latency]
    watermark_us: int | None
    open_rows: int
    remembered: int
    late: int
    forced: int
    forgotten: int
    silent: list[str]
    """Regions that no longer hold the others up."""


class LiveAudit:
    """`take` rows of any number of sources, then `close` the batch; `state` is all there is."""

    def __init__(self, limits: LiveLimits = LiveLimits(), state: LiveState | None = None) -> None:
        self.limits = limits
        self.state = state or LiveState()
        self._again: list[Verdict] = []
        self._before = (self.state.deliveries, self.state.events)

    def expect(self, region: str) -> None:
        """A region that has told nothing yet holds the watermark back until it does, or is silent for too long."""
        self.state.regions.setdefault(region, None)

    def take(self, records: Iterable[Record], region: str = "") -> list[Record]:
        """Rows in the order they were written; returns those that are late."""
        late = []
        for record in records:
            self.state.ordinal += 1
            row = JournalRow(self.state.ordinal, region, record)
            moment = moment_of(record)
            if not moment and record.kind in ("deliver", "tag"):
                raise MisuseError(
                    f"{record.event} at {record.subscriber} (row {row.ordinal} of those taken) has no moment: a live "
                    "audit needs delivered_us or at_us in every notification; without them audit the whole file"
                )
            if moment >= MOMENT_END_US:
                raise MisuseError(
                    f"{record.kind} of {record.event} (row {row.ordinal} of those taken) is of moment {moment}, "
                    "after 2100: all that follows would be late. Moments are microseconds; correct the row, or "
                    "leave it out"
                )
            if moment:
                highest = self.state.regions.get(region)
                self.state.regions[region] = moment if highest is None else max(highest, moment)
            self.state.is_timed = self.state.is_timed or record.at_us != 0
            if not self._keep(row):
                late.append(record)
        self.state.late += len(late)
        return late

    def close(self, upto_us: int | None = None) -> BatchReport:
        """Ends a batch: judges what is closed by now.

        `upto_us` is for sources that have further rows ready: the newest moment of the one that is least far. Nothing
        closes that those rows may tell of.
        """
        state = self.state
        watermark = self._watermark(upto_us)
        verdicts: list[Verdict] = []
        latencies: list[Latency] = []
        for mark in self._marks(watermark):
            found, lines = self._judge(self._closed(mark), mark)
            verdicts += found
            latencies += lines
        self._forget()
        state.batch += 1
        batch = BatchReport(
            state.batch,
            state.deliveries - self._before[0],
            state.events - self._before[1],
            _merged(verdicts),
            latencies,
            state.watermark,
            self._open_rows(),
            state.remembered,
            state.late,
            state.forced,
            state.forgotten,
            self._silent(),
        )
        self._before = (state.deliveries, state.events)
        return batch

    def finish(self) -> BatchReport:
        """The last batch: no row is to come any more."""
        self.state.watermark = END
        return self.close()

    def report(self) -> list[Verdict]:
        """All batches so far as one verdict per judge that had columns."""
        return [
            Verdict(judge, not total.violations, total.violations, total.witness)
            for judge in LIVE
            if (total := self.state.sums.get(judge)) is not None
        ]

    def unjudged(self, judge: str) -> Verdict:
        """What is to be said of a judge that `report` does not have."""
        why = "nothing is closed yet" if judge in LIVE else f"{judge} needs the whole log: audit it without --follow"
        return nothing(judge, why)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _keep(self, row: JournalRow) -> bool:
        """Puts a row where it belongs; False if it is late."""
        state, record = self.state, row.record
        if record.kind == "restart" and record.who is not None:
            state.restarts[record.who] = row.ordinal
        if record.event is None:
            if record.kind in LOOSE:
                state.loose.append(row)
            return True
        if record.kind not in ANSWERS and record.kind not in FACTS:
            return True
        if record.kind == "publish" and record.publisher is not None:
            state.homes[record.publisher] = row.region
        judged = state.judged.get(record.event)
        if judged is not None:
            return self._is_told_again(row, judged)
        if record.kind == "deliver" and self._is_before_the_end(record):
            return False
        state.open.setdefault(record.event, []).append(row)
        return True

    def _is_before_the_end(self, record: Record) -> bool:
        end = self.state.ends.get(record.subscriber or "")
        return end is not None and record.position is not None and record.position < end

    def _is_told_again(self, row: JournalRow, judged: JudgedEvent) -> bool:
        """A row of an event that was judged: a repetition can still be judged, all else is late."""
        record = row.record
        if record.kind == "outcome":
            if (record.note or "").startswith("refused") and not judged.is_refused:
                judged.is_refused = True
                words = f"{record.event} was notified, but its publisher was told that it is refused"
                self._find(ONCE, judged.notifications, words)
            return True
        if record.kind == "arrive":
            return True
        first = judged.notified.get(record.subscriber or "") if record.kind in ("deliver", "tag") else None
        if first is None:
            return False
        is_tag = record.kind == "tag"
        if not is_tag and not first.is_tag and (record.position or 0) < (first.position or 0):
            return False
        if not is_tag and first.is_tag:
            return False  # in order, after it was judged out of order: a place in the stream
        judged.notifications += 1
        self.state.deliveries += 1
        is_replay = (
            first.is_tag == is_tag
            and first.position == record.position
            and self.state.restarts.get(record.who or record.subscriber or "", 0) > first.ordinal
        )
        violations = (not is_replay) + judged.is_refused
        self._find(
            ONCE, violations, f"{record.event} twice at {record.subscriber}: again at position {record.position}"
        )
        deadline = judged.deadline_us if record.deadline_us is None else record.deadline_us
        if deadline is not None:
            late_us = row.moment - deadline
            words = f"{record.subscriber} had {record.event} again {late_us} us after its deadline of {deadline} us"
            self._find(DEADLINE, int(late_us > 0), words)
        return True

    def _find(self, judge: str, violations: int, witness: str) -> None:
        """Something about an event that was judged before."""
        verdict = failed(judge, violations, witness) if violations else passed(judge)
        add(self.state, verdict)
        self._again.append(verdict)

    # -- what is closed -------------------------------------------------------------------------------------------

    def _watermark(self, upto_us: int | None) -> int | None:
        """Never goes back."""
        state, least = self.state, self._least()
        if least is not None:
            low = min(max(least, least if top is None else top) for top in state.regions.values())
            low = (low if upto_us is None else min(low, upto_us)) - self.limits.lateness_us
            state.watermark = low if state.watermark is None else max(state.watermark, low)
        return state.watermark

    def _least(self) -> int | None:
        """The moment that the watermark is taken of even where a region is not as far."""
        tops = [top for top in self.state.regions.values() if top is not None]
        return max(tops) - self.limits.silence_us if tops else None

    def _silent(self) -> list[str]:
        least = self._least()
        tops = self.state.regions.items()
        return [] if least is None else sorted(region for region, top in tops if top is None or top < least)

    def _marks(self, watermark: int | None) -> Iterator[int]:
        """The watermark; then, if that leaves more open than may be, a higher one, and one that closes all."""
        if watermark is not None:
            yield watermark
        if self._open_rows() <= self.limits.rows_max:
            return
        moments = sorted(row.moment for row in self._answered())
        for mark in (moments[len(moments) // 2], moments[-1]) if moments else ():
            if self._open_rows() > self.limits.rows_max:
                self.state.forced += 1
                self.state.watermark = max(mark, self.state.watermark or mark)
                yield self.state.watermark

    def _answered(self) -> Iterator[JournalRow]:
        yield from self.state.loose
        for rows in self.state.open.values():
            if any(row.record.kind in ANSWERS for row in rows):
                yield from rows

    def _open_rows(self) -> int:
        return sum(map(len, self.state.open.values())) + len(self.state.loose)

    def _closed(self, watermark: int) -> list[str]:
        """The open events that are closed at this watermark."""
        events = self.state.open
        ended = watermark == END
        closed = {
            event: None
            for event, rows in events.items()
            if (ended or any(row.record.kind in ANSWERS for row in rows))
            and all(row.moment <= watermark for row in rows)
        }
        if len(closed) == len(events):
            return list(closed)
        streams = self._streams()
        of_event: dict[str, list[tuple[str, int]]] = {}
        for subscriber, stream in streams.items():
            for i, event in enumerate(stream):
                of_event.setdefault(event, []).append((subscriber, i))
        cuts = {subscriber: len(stream) for subscriber, stream in streams.items()}
        opened = [event for event in events if event not in closed]
        while opened:
            for subscriber, i in of_event.get(opened.pop(), ()):
                for j in range(i + 1, cuts[subscriber]):
                    event = streams[subscriber][j]
                    if event in closed:
                        del closed[event]
                        opened.append(event)
                cuts[subscriber] = min(cuts[subscriber], i + 1)
        return list(closed)

    def _streams(self) -> dict[str, list[str]]:
        """Subscriber -> its open events in the order of its stream."""
        firsts: dict[str, dict[str, tuple[int, int]]] = {}
        for event, rows in self.state.open.items():
            for row in rows:
                record = row.record
                if record.kind == "deliver":
                    assert record.subscriber is not None
                    assert record.position is not None
                    place = (record.position, row.ordinal)
                    own = firsts.setdefault(record.subscriber, {})
                    own[event] = min(own.get(event, place), place)
        return {subscriber: sorted(own, key=own.__getitem__) for subscriber, own in firsts.items()}

    # -- judging --------------------------------------------------------------------------------------------------

    def _judge(self, closed: list[str], watermark: int) -> tuple[list[Verdict], list[Latency]]:
        state = self.state
        rows = [row for event in closed for row in state.open.pop(event)]
        loose = [row for row in state.loose if row.record.kind != "restart" and row.moment <= watermark]
        restarts = [row for row in state.loose if row.record.kind == "restart"]
        oldest = min((row.ordinal for left in state.open.values() for row in left), default=state.ordinal)
        state.loose = [
            row
            for row in state.loose
            if (row.ordinal > oldest if row.record.kind == "restart" else row.moment > watermark)
        ]
        found, self._again = self._again, []
        if not rows and not loose:
            return found, []
        rows = sorted([*rows, *loose, *restarts], key=lambda row: row.ordinal)
        trace = Trace(Journal(Header(), [row.record for row in rows]))
        trace.is_timed = state.is_timed
        state.deliveries += trace.deliveries
        state.events += len(closed)
        found += judge_part(trace, state, self.limits.causal_window)
        latencies = latencies_of(rows, trace, state.homes)
        self._remember(closed, rows)
        return found, latencies

    def _remember(self, closed: list[str], rows: list[JournalRow]) -> None:
        for event in closed:
            self.state.judged[event] = JudgedEvent()
        for row in rows:
            record = row.record
            if record.event is None:
                continue
            judged = self.state.judged[record.event]
            if record.kind == "outcome" and (record.note or "").startswith("refused"):
                judged.is_refused = True
            if record.kind == "publish" and record.deadline_us is not None:
                judged.deadline_us = record.deadline_us
            if record.kind not in ("deliver", "tag"):
                continue
            judged.notifications += 1
            found = Notified(row.ordinal, record.position, record.kind == "tag")
            known = judged.notified.get(record.subscriber or "")
            if known is None or _is_first(found, known):
                judged.notified[record.subscriber or ""] = found
        self.state.remembered += sum(_weight(self.state.judged[event]) for event in closed)

    def _forget(self) -> None:
        """Holds everything to its bound."""
        state, limits = self.state, self.limits
        while state.remembered > limits.remembered_max:
            state.remembered -= _weight(state.judged.pop(next(iter(state.judged))))
            state.forgotten += 1
        surplus = self._open_rows() - limits.rows_max  # of events that nobody was notified of
        for event in list(state.open) if surplus > 0 else ():
            if surplus > 0:
                surplus -= len(state.open.pop(event))
                state.forgotten += 1
        for lines in (state.fifo, state.publisher_order):
            surplus = sum(map(len, lines.values())) - limits.lines_max
            while surplus > 0:
                surplus -= len(lines.pop(next(iter(lines))))
                state.forgotten += 1
        tables: tuple[dict[str, Any], ...] = (state.ends, state.clocks, state.needs, state.homes, state.restarts)
        for table in tables:
            while len(table) > limits.lines_max:
                del table[next(iter(table))]
                state.forgotten += 1


def _weight(judged: JudgedEvent) -> int:
    return max(1, len(judged.notified))


def _is_first(found: Notified, known: Notified) -> bool:
    """A delivery before a tag, the lower position, the earlier row: as a trace takes them."""
    return not found.is_tag and (
        known.is_tag or (found.position or 0, found.ordinal) < (known.position or 0, known.ordinal)
    )


def _merged(verdicts: list[Verdict]) -> list[Verdict]:
    """One of each judge, in the order of `LIVE`."""
    merged = []
    for judge in LIVE:
        own = [verdict for verdict in verdicts if verdict.judge == judge]
        if own:
            violations = sum(verdict.violations for verdict in own)
            witness = next((verdict.witness for verdict in own if verdict.witness), "")
            merged.append(Verdict(judge, not violations, violations, witness))
    return merged
