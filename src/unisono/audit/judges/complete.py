"""`complete`: nothing is lost on a stable subscription without a gap notice, and nothing is stuck.

**A full journal** (subscribe records, and publish or timestamp records): every debt of a stable subscription is
settled, or voided for everybody (who is owed what: see `debts`).

**A plain file** with `topic` and either `number` or `publisher` and `publisher_seq`: owed is what anybody was notified
of on the same topic (by the same publisher) between the first and the last number the subscriber was notified of.
"""

from bisect import bisect_left, bisect_right

from unisono.audit.judges.debts import Book, Debts, keep_book
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed
from unisono.model.journal import Record

JUDGE = "complete"
Line = tuple[str, str]
"""Topic and publisher, "" if the topic itself is numbered."""


def judge_complete(trace: Trace) -> Verdict | None:
    """Violations: debts never settled."""
    kinds = {record.kind: None for record in trace.records}
    if "subscribe" in kinds and ("publish" in kinds or "timestamp" in kinds):
        return _judge_book(trace, keep_book(trace))
    return _judge_plain(trace)


def _judge_book(trace: Trace, book: Book) -> Verdict:
    debts = Debts(trace, book)
    unnumbered = _unnumbered(book)
    violations = 0
    witness = ""
    is_owed = trace.deliveries > 0
    for subscriber, topic, account in debts.stable():
        is_owed = is_owed or debts.owe_something(subscriber, topic, account, [event for event, _ in unnumbered])
        missing = [
            (event, f"number {number} of {topic}")
            for number, event in book.numbers.get(topic, {}).items()
            if not debts.is_told(subscriber, account, event, number)
            and (topic, number) not in book.voids
            and debts.owes_number(account, event, number)
        ]
        missing += [
            (event, f"published on {name}, never numbered" if name in book.numbers else f"published on {name}")
            for event, name in unnumbered
            if not debts.is_told(subscriber, account, event, None)
            and debts.owes_unnumbered(subscriber, topic, account, event)
        ]
        violations += len(missing)
        if missing and not witness:
            event, what = missing[0]
            witness = (
                f"{event} ({what}) was never notified to {subscriber}, which is subscribed to {topic} from number "
                f"{account.base} on; no gap, void, cut or stall covers it; {debts.fate(subscriber, event)}"
            )
    if not is_owed:
        return nothing(JUDGE, "no subscription that lasts is owed anything")
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _unnumbered(book: Book) -> list[tuple[str, str]]:
    """Event and topic of what was published, is not known to have failed, and has no number."""
    found = []
    for event, (_, topic) in book.published.items():
        outcome = book.outcomes.get(event)
        accepted = outcome.startswith("accepted") if outcome is not None else not book.outcomes
        if accepted and event not in book.number_of and not (outcome is None and topic in book.numbers):
            found.append((event, topic))
    return found


def _judge_plain(trace: Trace) -> Verdict | None:
    known: dict[Line, dict[int, str]] = {}
    own: dict[str, dict[Line, dict[int, None]]] = {}
    gaps: dict[tuple[str, Line], list[tuple[int, int]]] = {}
    places: dict[str, tuple[Line, int] | None] = {}
    for record in trace.records:
        subscriber, event = record.subscriber, record.event
        if subscriber is None:
            continue
        if record.kind in ("deliver", "tag"):
            assert event is not None
            if event not in places:
                place = places[event] = _place_of(trace, record)
                if place is not None:
                    known.setdefault(place[0], {})[place[1]] = event
            place = places[event]
            if place is not None:
                line, number = place
                lines = own.get(subscriber)
                if lines is None:
                    lines = own[subscriber] = {}
                numbers = lines.get(line)
                if numbers is None:
                    numbers = lines[line] = {}
                numbers[number] = None
        elif record.kind == "gap":
            place = _place(record.topic, record.number, record.publisher, record.publisher_seq)
            place = place or _place_of(trace, record)
            if place is not None:
                line, number = place
                last = record.last_number if record.last_number is not None else number
                gaps.setdefault((subscriber, line), []).append((number, last))
    if not known:
        return None if trace.deliveries else nothing(JUDGE, "nobody was notified of anything")
    ordered = {line: sorted(numbers) for line, numbers in known.items()}
    violations = 0
    witness = ""
    for subscriber, line, numbers in ((s, line, lines[line]) for s, lines in own.items() for line in lines):
        first, last = min(numbers), max(numbers)
        everybody = ordered[line]
        owed = everybody[bisect_left(everybody, first) : bisect_right(everybody, last)]
        if len(owed) == len(numbers):
            continue
        told = gaps.get((subscriber, line), [])
        missing = [n for n in owed if n not in numbers and not any(a <= n <= b for a, b in told)]
        violations += len(missing)
        if missing and not witness:
            topic, publisher = line
            whose = f"number {missing[0]} of {publisher} on {topic}" if publisher else f"number {missing[0]} of {topic}"
            witness = (
                f"{known[line][missing[0]]} ({whose}) was never notified to {subscriber}, though "
                f"{subscriber} was notified of numbers {first} and {last} and somebody else of this one"
            )
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _place_of(trace: Trace, record: Record) -> tuple[Line, int] | None:
    """Where the event of a record stands."""
    if record.event is None:
        return None
    publisher, seq = trace.authors.get(record.event, (None, None))
    return _place(trace.topics.get(record.event), trace.numbers.get(record.event), publisher, seq)


def _place(topic: str | None, number: int | None, publisher: str | None, seq: int | None) -> tuple[Line, int] | None:
    if topic is None:
        return None
    if number is not None:
        return (topic, ""), number
    return ((topic, publisher), seq) if publisher is not None and seq is not None else None
