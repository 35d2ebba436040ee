"""`complete`: nothing is lost on a stable subscription without a gap notice, and nothing is stuck.

**A full journal** (subscribe records, and publish or timestamp records). A subscription is stable from its
`subscribe` record to the end of the journal: it was not ended, and its process is not down at the end. Owed is every
number of the topic above the base, and every accepted event without a number that was published after the `subscribe`
record (in a journal without outcomes: every published event; refused and unknown ones are never owed). A `subscribe`
record with `published_us` does not owe what was published before that moment. A debt is settled by a notification
(tagged or not), by a gap notice, by a void, or by a `stalled` notice with no delivery of that topic after it. A
subscription by content is owed what its filter selects, and a `cut` excuses what the publishers it names were not
heard of (see `selection`). If the journal has an `end` record, all debts count; else only the holes: numbers below
one the subscriber was notified of later.

**A plain file** with `topic` and either `number` or `publisher` and `publisher_seq`: owed is what anybody was notified
of on the same topic (by the same publisher) between the first and the last number the subscriber was notified of.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from unisono.audit.selection import Cuts, filter_of, selects
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed
from unisono.model.interest import covers
from unisono.model.journal import Record
from unisono.model.predicate import Filter

JUDGE = "complete"


@dataclass(slots=True)
class _Account:
    """One subscriber's subscription to one topic, and what settles its debts."""

    since: int
    process: str
    base: int
    published_from_us: int | None
    where: Filter | None = None
    highest: int = 0
    stalled: bool = False
    gaps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Book:
    """Everything the journal says about who is owed what."""

    accounts: dict[tuple[str, str], _Account] = field(default_factory=dict)
    down: dict[str, None] = field(default_factory=dict)
    notified: dict[str, dict[str, None]] = field(default_factory=dict)  # subscriber -> events, delivered or given up
    arrived: dict[tuple[str, str], int] = field(default_factory=dict)
    published: dict[str, tuple[int, str]] = field(default_factory=dict)  # event -> row, topic
    outcomes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, dict[int, str]] = field(default_factory=dict)  # topic -> number -> event
    number_of: dict[str, int] = field(default_factory=dict)
    voids: dict[tuple[str, int], None] = field(default_factory=dict)
    has_end: bool = False


def judge_complete(trace: Trace) -> Verdict | None:
    """Violations: debts never settled."""
    kinds = {record.kind: None for record in trace.records}
    if "subscribe" in kinds and ("publish" in kinds or "timestamp" in kinds):
        return _judge_book(trace, _keep_book(trace))
    return _judge_plain(trace)


def _keep_book(trace: Trace) -> _Book:
    book = _Book()
    for row, record in enumerate(trace.records):
        subscriber, topic, event = record.subscriber or "", record.topic, record.event
        if topic is None and event is not None:
            topic = trace.topics.get(event)
        match record.kind:
            case "deliver" | "tag":
                assert event is not None
                book.notified.setdefault(subscriber, {})[event] = None
                number = record.number if record.number is not None else book.number_of.get(event)
                account = book.accounts.get((subscriber, topic or ""))
                if account is not None:
                    account.stalled = False
                    if number is not None and record.kind == "deliver":
                        account.highest = max(account.highest, number)
            case "gap":
                if event is not None:
                    book.notified.setdefault(subscriber, {})[event] = None
                account = book.accounts.get((subscriber, topic or ""))
                if account is not None and record.number is not None:
                    last = record.last_number if record.last_number is not None else record.number
                    account.gaps.append((record.number, last))
            case "stalled":
                account = book.accounts.get((subscriber, topic or ""))
                if account is not None:
                    account.stalled = True
            case "subscribe" if topic is not None:
                process = record.who or subscriber
                base = record.number or 0
                book.accounts[subscriber, topic] = _Account(
                    row, process, base, record.published_us, filter_of(record.note)
                )
            case "unsubscribe":
                for key in [key for key in book.accounts if key[0] == subscriber and topic in (None, key[1])]:
                    del book.accounts[key]
            case "crash" if record.who is not None:
                book.down[record.who] = None
            case "restart" if record.who is not None:
                book.down.pop(record.who, None)
            case "arrive" if event is not None:
                book.arrived.setdefault((record.subscriber or record.who or "", event), record.at_us)
            case "publish" if event is not None and topic is not None:
                book.published.setdefault(event, (row, topic))
            case "outcome" if event is not None:
                book.outcomes[event] = record.note or ""
            case "timestamp" if event is not None and topic is not None and record.number is not None:
                book.numbers.setdefault(topic, {})[record.number] = event
                book.number_of[event] = record.number
            case "void" if topic is not None and record.number is not None:
                book.voids[topic, record.number] = None
            case "end":
                book.has_end = True
            case _:
                pass
    return book


def _judge_book(trace: Trace, book: _Book) -> Verdict:
    unnumbered: dict[str, list[str]] = {}
    if book.has_end:
        for event, (_, topic) in book.published.items():
            outcome = book.outcomes.get(event)
            accepted = outcome.startswith("accepted") if outcome is not None else not book.outcomes
            if accepted and event not in book.number_of and not (outcome is None and topic in book.numbers):
                unnumbered.setdefault(topic, []).append(event)
    cuts = Cuts(trace)
    violations = 0
    witness = ""
    for (subscriber, topic), account in book.accounts.items():
        if account.process in book.down or account.stalled:
            continue
        notified = book.notified.get(subscriber, {})
        missing = [
            (event, f"number {number} of {topic}")
            for number, event in book.numbers.get(topic, {}).items()
            if number > account.base
            and (book.has_end or number < account.highest)
            and event not in notified
            and (topic, number) not in book.voids
            and not any(first <= number <= last for first, last in account.gaps)
            and not _is_too_early(trace, account, event)
            and (event not in book.published or selects(account.where, trace.records[book.published[event][0]]))
        ]
        missing += [
            (event, f"published on {name}, never numbered" if name in book.numbers else f"published on {name}")
            for name, events in unnumbered.items()
            if covers(topic, name)
            for event in events
            if book.published[event][0] > account.since
            and event not in notified
            and not _is_too_early(trace, account, event)
            and selects(account.where, trace.records[book.published[event][0]])
            and not cuts.excuse(subscriber, trace.records[book.published[event][0]])
        ]
        violations += len(missing)
        if missing and not witness:
            event, what = missing[0]
            arrived = book.arrived.get((subscriber, event))
            fate = (
                f"it arrived at {arrived} us and is stuck" if arrived is not None else "there is no word of its arrival"
            )
            witness = (
                f"{event} ({what}) was never notified to {subscriber}, which is subscribed to {topic} from number "
                f"{account.base} on; no gap, void, cut or stall covers it; {fate}"
            )
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _is_too_early(trace: Trace, account: _Account, event: str) -> bool:
    """Stamp mode of the sequencer: a payload published before the subscriber could hear the topic is not owed."""
    if account.published_from_us is None:
        return False
    published = trace.published_us.get(event)
    return published is not None and published < account.published_from_us


def _judge_plain(trace: Trace) -> Verdict | None:
    known: dict[tuple[str, str], dict[int, str]] = {}
    own: dict[tuple[str, str, str], dict[int, None]] = {}
    gaps: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for record in trace.records:
        if record.subscriber is None:
            continue
        if record.kind in ("deliver", "tag"):
            line = _line_of(trace, record)
            if line is not None:
                topic, publisher, number = line
                known.setdefault((topic, publisher), {})[number] = record.event or ""
                own.setdefault((record.subscriber, topic, publisher), {})[number] = None
        elif record.kind == "gap":
            line = _line(record.topic, record.number, record.publisher, record.publisher_seq)
            line = line or _line_of(trace, record)
            if line is not None:
                topic, publisher, number = line
                last = record.last_number if record.last_number is not None else number
                gaps.setdefault((record.subscriber, topic, publisher), []).append((number, last))
    if not known and trace.deliveries:
        return None
    ordered = {key: sorted(numbers) for key, numbers in known.items()}
    violations = 0
    witness = ""
    for (subscriber, topic, publisher), numbers in own.items():
        first, last = min(numbers), max(numbers)
        everybody = ordered[topic, publisher]
        owed = everybody[bisect_left(everybody, first) : bisect_right(everybody, last)]
        if len(owed) == len(numbers):
            continue
        told = gaps.get((subscriber, topic, publisher), [])
        missing = [n for n in owed if n not in numbers and not any(a <= n <= b for a, b in told)]
        violations += len(missing)
        if missing and not witness:
            whose = f"number {missing[0]} of {publisher} on {topic}" if publisher else f"number {missing[0]} of {topic}"
            witness = (
                f"{known[topic, publisher][missing[0]]} ({whose}) was never notified to {subscriber}, though "
                f"{subscriber} was notified of numbers {first} and {last} and somebody else of this one"
            )
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _line_of(trace: Trace, record: Record) -> tuple[str, str, int] | None:
    """Where the event of a record stands."""
    if record.event is None:
        return None
    publisher, seq = trace.authors.get(record.event, (None, None))
    return _line(trace.topics.get(record.event), trace.numbers.get(record.event), publisher, seq)


def _line(topic: str | None, number: int | None, publisher: str | None, seq: int | None) -> tuple[str, str, int] | None:
    """Topic, publisher ("" if the topic itself is numbered), number."""
    if topic is None:
        return None
    if number is not None:
        return topic, "", number
    return (topic, publisher, seq) if publisher is not None and seq is not None else None
