"""How often a subscriber asks: soon when something may be lost, and seldom when everything is only on its way."""

import itertools
from typing import Any

from tests.papers.sequencer.pump import STAMP
from tests.papers.sequencer.test_delivery import payload, run, stamp
from unisono.machine import Effect, Fired, Heard, Joined, Send, SetTimer, Subscribe
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.messages import Ask, Install, Installed, Mark, Told

RULES = ("BACK-OFF", "LOSS")

X, T = Topic(1), Topic(2)
LOOK = STAMP.ask_us


class Reader:
    """A subscriber of two topics at one home, its looks, and what it asks."""

    def __init__(self) -> None:
        self.client = OrderingClient(Address("s"), {X: Address("home"), T: Address("home")}, STAMP)
        self.now = Micros(0)
        self.due: Micros | None = None
        self.asks: list[tuple[Micros, Ask]] = []
        self.tell(Subscribe((X, T)), Joined(X), Joined(T), Installed(X, 1, 0), Installed(T, 1, 0))

    def tell(self, *inputs: Any) -> None:
        for one in inputs:
            self._perform(self.client.handle(one, self.now))

    def until(self, at: int) -> None:
        while self.due is not None and self.due <= at:
            self.now, self.due = self.due, None
            self._perform(self.client.handle(Fired("ask"), self.now))
        self.now = Micros(at)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer) and effect.key == "ask":
                self.due = effect.at
            elif isinstance(effect, Send) and isinstance(effect.message, Ask):
                self.asks.append((self.now, effect.message))
            elif isinstance(effect, Send):
                assert isinstance(effect.message, Install)


def events(reader: Reader, count: int, delay: int) -> None:
    """One after the other, on both topics in turn; each gets its number that long after its payload has come."""
    for number in range(1, count + 1):
        topic = (X, T)[number % 2]
        place = (number + 1) // 2
        reader.tell(payload(topic, place))
        reader.until(reader.now + delay)
        reader.tell(stamp(topic, place))
        reader.until(reader.now + LOOK)


def test_numbers_that_come_late_are_asked_for_a_few_times_and_then_no_more() -> None:
    reader = Reader()
    events(reader, 40, 3 * LOOK)
    assert 1 <= len(reader.asks) <= 6


def test_what_is_lost_is_asked_for_at_the_second_look() -> None:
    reader = Reader()
    reader.tell(payload(X, 1), Heard(X, Mark(X, 1)))
    reader.until(3 * LOOK)
    assert [ask.number or ask.request for _, ask in reader.asks][:1] == [1]
    assert reader.asks[0][0] <= 2 * LOOK


def test_an_answer_that_helps_makes_the_next_question_prompt() -> None:
    reader = Reader()
    events(reader, 10, 10 * LOOK)
    reader.tell(payload(X, 6), Heard(X, Mark(X, 6)))
    reader.until(reader.now + 40 * LOOK)
    reader.tell(Told(X, 6, "published", run(6), 1, 6))
    asked = len(reader.asks)
    reader.tell(payload(X, 7), Heard(X, Mark(X, 7)))
    since = reader.now
    reader.until(since + 4 * LOOK)
    assert reader.asks[asked:]
    assert reader.asks[asked][0] - since <= 3 * LOOK


def test_a_home_that_was_asked_in_vain_is_asked_often_enough_to_show_that_it_is_there() -> None:
    reader = Reader()
    events(reader, 10, 10 * LOOK)
    asked, since = len(reader.asks), reader.now
    reader.tell(payload(X, 6), Heard(X, Mark(X, 6)))
    reader.until(since + STAMP.stall_us)
    times = [since, *(at for at, _ in reader.asks[asked:]), reader.now]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= STAMP.stall_us // 2


def test_what_was_in_vain_is_forgiven_in_time() -> None:
    reader = Reader()
    events(reader, 10, 10 * LOOK)
    reader.until(reader.now + 100 * STAMP.stall_us)
    asked, since = len(reader.asks), reader.now
    reader.tell(payload(X, 6), Heard(X, Mark(X, 6)))
    reader.until(since + 3 * LOOK)
    assert reader.asks[asked:]
