"""Brokers that keep what they confirm: nothing is `stored` on the word that another payload is kept."""

import asyncio
from collections.abc import Callable

from unisono.machine import Accepted, Unknown
from unisono.runtime.confirmations import Confirmations

Told = list[Accepted | Unknown]


def play(story: Callable[[Confirmations, Told], None]) -> None:
    async def run() -> None:
        told: Told = []
        confirmations = Confirmations(60, told.append)
        story(confirmations, told)
        confirmations.stop()

    asyncio.run(run())


def test_payloads_are_confirmed_in_the_order_of_publication() -> None:
    """The home of the second topic may be nearer and number first."""

    def story(confirmations: Confirmations, told: Told) -> None:
        confirmations.add(range(1, 2), "p.a", 1)
        confirmations.add(range(2, 3), "p.a", 2)
        confirmations.numbered(2)
        confirmations.confirmed(1)
        assert told == [], "it has its number, and nobody has said that its payload is kept"
        confirmations.numbered(1)
        assert told == [Accepted(1, "stored")]
        confirmations.confirmed(1)
        assert told == [Accepted(1, "stored"), Accepted(2, "stored")]

    play(story)


def test_what_was_refused_never_left_and_is_confirmed_by_nothing() -> None:
    def story(confirmations: Confirmations, told: Told) -> None:
        confirmations.add(range(1, 4), "p.a", 1)
        confirmations.refused(2)
        for request in (1, 3):
            confirmations.numbered(request)
        confirmations.confirmed(2)
        assert told == [Accepted(1, "stored"), Accepted(3, "stored")]

    play(story)


def test_what_the_broker_has_rejected_is_counted_and_never_stored() -> None:
    """Whether it hears of its number before that, or after it."""

    def story(confirmations: Confirmations, told: Told) -> None:
        confirmations.add(range(1, 5), "p.a", 11)
        confirmations.numbered(1)
        confirmations.numbered(2)
        assert confirmations.rejected("p.a", 12) == 2
        assert confirmations.rejected("p.a", 13) == 3
        assert confirmations.rejected("p.a", 13) == 0, "once"
        confirmations.confirmed(3)
        confirmations.numbered(3)
        assert told == [Accepted(1, "stored")]
        for request in (2, 3):
            confirmations.refused(request)
        confirmations.numbered(4)
        confirmations.confirmed(1)
        assert told == [Accepted(1, "stored"), Accepted(4, "stored")]

    play(story)


def test_a_payload_that_is_not_confirmed_in_time_is_unknown() -> None:
    async def run() -> None:
        told: Told = []
        confirmations = Confirmations(0.01, told.append)
        confirmations.add(range(1, 2), "p.a", 1)
        confirmations.numbered(1)
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.01)
        assert isinstance(told[0], Unknown)
        confirmations.confirmed(1)
        assert len(told) == 1, "one outcome each"

    asyncio.run(run())
