"""`kept`: what a publisher was told about an event stays true, and a number names one event for ever.

- *Stored*: an event with the outcome `accepted stored` is found by whoever reads afterwards what is kept of its topic.
  A reader says what it found by `kept` records, and by a `searched` record that it went through the whole topic;
  topics without one are not judged, nor is what was accepted after the last of them.
- *Ordered*, or *stored*, or of a strength that nobody wrote down: the event is notified, or told as a gap, to every
  stable subscription of its topic (see `debts`). A void is no excuse here: who was told `accepted` was told that there
  is something to come.
- *Refused*: nobody is notified of it. What is unknown may be either.
- *Numbers*: over all nodes, journals and restarts a number of a topic names one event, and an event has one number
  there; a number that was voided is none that it has.
"""

from collections.abc import Iterable, Iterator

from unisono.audit.judges.debts import Book, Debts, keep_book
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "kept"
STORED = "accepted stored"
OWED = (STORED, "accepted ordered", "accepted")
"""Outcomes after which something is to come; `accepted sent` says that the service beneath decides."""
NUMBERED = ("timestamp", "deliver", "tag", "kept")
"""Records that say which event a number names."""


def judge_kept(trace: Trace) -> Verdict | None:
    """Violations: stored events that no reader found, debts of accepted ones, notifications of refused ones, names in
    excess."""
    has_outcomes = any(record.kind == "outcome" for record in trace.records)
    if not has_outcomes and not any(r.number is not None and r.kind in NUMBERED for r in trace.records):
        return None if trace.deliveries else nothing(JUDGE, "the journal has neither outcomes nor numbers")
    found = list(_ambiguous(trace))
    but = ""
    if has_outcomes:
        book, places = keep_book(trace), _places(trace)
        found += [*_unreadable(trace, places), *_untold(trace, book, places), *_refused(trace, book)]
        but = _unread(trace, book, places)
    return failed(JUDGE, sum(count for count, _ in found), found[0][1]) if found else passed(JUDGE, but)


def _places(trace: Trace) -> dict[str, tuple[str, int | None]]:
    """Event -> its topic and number there, from any record that tells; without a number, what it was published on."""
    places: dict[str, tuple[str, int | None]] = {}
    for record in trace.records:
        if record.event is None or record.topic is None:
            continue
        if record.kind in NUMBERED and record.number is not None:
            places[record.event] = (record.topic, record.number)
        elif record.kind == "publish":
            places.setdefault(record.event, (record.topic, None))
    return places


def _unreadable(trace: Trace, places: dict[str, tuple[str, int | None]]) -> Iterator[tuple[int, str]]:
    """Events that were stored, of topics that a reader went through, and that no reader found."""
    found: dict[str, None] = {}
    searched: dict[str, tuple[int, str]] = {}
    for record in trace.records:
        if record.kind == "kept" and record.event is not None:
            found[record.event] = None
        elif record.kind == "searched" and record.topic is not None:
            searched[record.topic] = max(searched.get(record.topic, (0, "")), (record.at_us, record.who or "a reader"))
    if not searched:
        return
    for record in trace.records:
        event = record.event
        if record.kind != "outcome" or event is None or record.note != STORED or event in found:
            continue
        topic = places.get(event, ("", None))[0]
        if topic in searched and record.at_us <= searched[topic][0]:
            who = searched[topic][1]
            witness = (
                f"{event} was accepted as stored on {topic}, and {who}, reading everything that is kept of {topic}"
            )
            yield 1, f"{witness} afterwards, did not find it"


def _unread(trace: Trace, book: Book, places: dict[str, tuple[str, int | None]]) -> str:
    """Words: of how many stored events nobody looked whether they are kept."""
    searched = {record.topic: None for record in trace.records if record.kind == "searched"}
    stored = [event for event, outcome in book.outcomes.items() if outcome == STORED]
    unread = [event for event in stored if places.get(event, ("", None))[0] not in searched]
    return f"no reader says whether {len(unread)} events that were accepted as stored are kept" if unread else ""


def _untold(trace: Trace, book: Book, places: dict[str, tuple[str, int | None]]) -> Iterator[tuple[int, str]]:
    debts = Debts(trace, book)
    accepted = [(event, *places[event]) for event, said in book.outcomes.items() if said in OWED and event in places]
    for subscriber, topic, account in debts.stable():
        for event, name, number in accepted:
            if number is not None and name == topic:
                is_owed = debts.owes_number(account, event, number)
            else:
                is_owed = number is None and debts.owes_unnumbered(subscriber, topic, account, event)
            if is_owed and not debts.is_told(subscriber, account, event, number):
                yield 1, _explain_untold(debts, subscriber, topic, event, name, number)


def _explain_untold(debts: Debts, subscriber: str, topic: str, event: str, name: str, number: int | None) -> str:
    book = debts.book
    place = f"without a number on {name}" if number is None else f"number {number} of {name}"
    void = ", its number was voided" if number is not None and (name, number) in book.voids else ""
    return (
        f"{event} ({place}) has the outcome {book.outcomes[event]}{void}, and {subscriber}, subscribed to {topic} from "
        f"number {book.accounts[subscriber, topic].base} on, was neither notified of it nor told that it will not "
        f"come; {debts.fate(subscriber, event)}"
    )


def _refused(trace: Trace, book: Book) -> Iterator[tuple[int, str]]:
    refused = {event: None for event, outcome in book.outcomes.items() if outcome.startswith("refused")}
    for record in trace.records if refused else ():
        if record.kind in ("deliver", "tag") and record.event in refused:
            yield (
                1,
                f"{record.event} was notified to {record.subscriber}, but its publisher was told that it is refused",
            )


def _ambiguous(trace: Trace) -> Iterator[tuple[int, str]]:
    """Numbers with several events, events with several numbers: each beyond the first counts."""
    voids = {(record.topic, record.number): None for record in trace.records if record.kind == "void"}
    events: dict[tuple[str, int], dict[str, str]] = {}
    numbers: dict[tuple[str, str], dict[int, str]] = {}
    for record in trace.records:
        if record.kind not in NUMBERED:
            continue
        topic, number, event = record.topic, record.number, record.event
        if topic is None or number is None or event is None:
            continue
        said = f"{record.kind} at {record.subscriber or record.who or 'somebody'}"
        events.setdefault((topic, number), {}).setdefault(event, said)
        if (topic, number) not in voids:
            numbers.setdefault((topic, event), {}).setdefault(number, said)
    for (topic, number), named in events.items():
        if len(named) > 1:
            yield len(named) - 1, f"number {number} of {topic} names {_list(named.items())}"
    for (topic, event), given in numbers.items():
        if len(given) > 1:
            yield len(given) - 1, f"{event} has several numbers on {topic}: {_list(given.items())}"


def _list(said: Iterable[tuple[str | int, str]]) -> str:
    return " and ".join(f"{name} ({where})" for name, where in list(said)[:3])
