"""Who is owed what, and what settles a debt: the accounts that `complete` and `kept` read.

A subscription is stable from its `subscribe` record to the end of the journal: it was not ended, and its process is not
down at the end. Owed is every number of the topic above the base, and every accepted event without a number that was
published after the `subscribe` record (in a journal without outcomes: every published event; refused and unknown ones
are never owed). A `subscribe` record with `published_us` does not owe what was published before that moment. A debt is
settled by a notification (tagged or not), by a gap notice, or by a `stalled` notice with no delivery of that topic
after it. A subscription by content is owed what its filter selects, and a `cut` excuses what the publishers it names
were not heard of (see `selection`). A subscription that takes effect again without having been ended, since the home of
its topic has forgotten, goes on: what it was owed before the new base it is owed still. If the journal has an `end`
record, all debts count; else only the holes: numbers below one the subscriber was notified of later.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from unisono.audit.judges.selection import Cuts, filter_of, selects
from unisono.audit.trace import Trace
from unisono.model.interest import covers
from unisono.model.predicate import Filter


@dataclass(slots=True)
class Account:
    """One subscriber's subscription to one topic, and what settles its debts."""

    since: int
    """The row from which on it is owed something, and that in which it took effect for the last time."""
    effective: int
    process: str
    base: int
    published_from_us: int | None
    where: Filter | None = None
    highest: int = 0
    stalled: bool = False
    is_over: bool = False
    """Its process has crashed: what subscribes next is another subscription."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    before: list[tuple[int, int | None]] = field(default_factory=list)
    """`base` and `published_from_us` of the times it took effect before, without having been ended in between."""

    def again(self, later: "Account") -> "Account":
        """It took effect once more: what it was owed until then it is owed still."""
        later.since, later.gaps, later.highest = self.since, self.gaps, self.highest
        later.before = [*self.before, (self.base, self.published_from_us)]
        return later


@dataclass(slots=True)
class Book:
    """Everything the journal says about who is owed what."""

    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    down: dict[str, None] = field(default_factory=dict)
    notified: dict[str, dict[str, None]] = field(default_factory=dict)  # subscriber -> events, delivered or given up
    arrived: dict[tuple[str, str], int] = field(default_factory=dict)
    published: dict[str, tuple[int, str]] = field(default_factory=dict)  # event -> row, topic
    outcomes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, dict[int, str]] = field(default_factory=dict)  # topic -> number -> event
    number_of: dict[str, int] = field(default_factory=dict)
    voids: dict[tuple[str, int], None] = field(default_factory=dict)
    has_end: bool = False


def keep_book(trace: Trace) -> Book:
    """Reads the records once."""
    book = Book()
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
                known = book.accounts.get((subscriber, topic))
                account = Account(row, row, process, base, record.published_us, filter_of(record.note))
                if known is not None and not known.is_over:
                    account = known.again(account)
                book.accounts[subscriber, topic] = account
            case "unsubscribe":
                for key in [key for key in book.accounts if key[0] == subscriber and topic in (None, key[1])]:
                    del book.accounts[key]
            case "crash" if record.who is not None:
                book.down[record.who] = None
                for account in book.accounts.values():
                    account.is_over = account.is_over or account.process == record.who
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


class Debts:
    """What stable subscriptions are owed, and whether they were told."""

    def __init__(self, trace: Trace, book: Book) -> None:
        self._trace, self.book, self._cuts = trace, book, Cuts(trace)

    def stable(self) -> Iterator[tuple[str, str, Account]]:
        """Subscriber, topic and account of everyone that counts at the end."""
        for (subscriber, topic), account in self.book.accounts.items():
            if account.process not in self.book.down and not account.stalled:
                yield subscriber, topic, account

    def is_told(self, subscriber: str, account: Account, event: str, number: int | None) -> bool:
        """Whether a notification or a gap notice has settled it."""
        if event in self.book.notified.get(subscriber, {}):
            return True
        return number is not None and any(first <= number <= last for first, last in account.gaps)

    def owes_number(self, account: Account, event: str, number: int) -> bool:
        """Of an event with this number in the topic of the account."""
        times = [*account.before, (account.base, account.published_from_us)]
        heard_from_us = [since for base, since in times if number > base]
        return (
            bool(heard_from_us)
            and (self.book.has_end or number < account.highest)
            and not self._is_too_early(heard_from_us[-1], event)
            and self._is_selected(account, event)
        )

    def owes_unnumbered(self, subscriber: str, topic: str, account: Account, event: str) -> bool:
        """Of an event that was published and has no number, on any topic that the subscription covers."""
        row, name = self.book.published[event]
        return (
            self.book.has_end
            and covers(topic, name)
            and row > account.since
            and not self._is_from_before(account, row)
            and not self._is_too_early(account.published_from_us, event)
            and self._is_selected(account, event)
            and not self._cuts.excuse(subscriber, self._trace.records[row])
        )

    def _is_from_before(self, account: Account, row: int) -> bool:
        """It was published before the home of its topic was reborn, and has no number since: what it had has been given
        up, if all numbers from then have been."""
        return row < account.effective and any(last >= account.base > 0 for _, last in account.gaps)

    def owe_something(self, subscriber: str, topic: str, account: Account, unnumbered: list[str]) -> bool:
        """Whether there is any debt, settled or not."""
        numbers = self.book.numbers.get(topic, {})
        return any(self.owes_number(account, event, number) for number, event in numbers.items()) or any(
            self.owes_unnumbered(subscriber, topic, account, event) for event in unnumbered
        )

    def fate(self, subscriber: str, event: str) -> str:
        """Words: what is known of an event that was never notified."""
        arrived = self.book.arrived.get((subscriber, event))
        return f"it arrived at {arrived} us and is stuck" if arrived is not None else "there is no word of its arrival"

    def _is_selected(self, account: Account, event: str) -> bool:
        published = self.book.published.get(event)
        return published is None or selects(account.where, self._trace.records[published[0]])

    def _is_too_early(self, heard_from_us: int | None, event: str) -> bool:
        """Stamp mode of the sequencer: a payload published before the subscriber could hear the topic is not owed."""
        if heard_from_us is None:
            return False
        published = self._trace.published_us.get(event)
        return published is not None and published < heard_from_us
