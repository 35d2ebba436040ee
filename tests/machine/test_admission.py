"""A node listens before it serves, shows how far it is, and numbers for nobody who may ask again for what it forgot."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.machine.toys import Counting
from unisono.audit import judge
from unisono.machine import Broadcast, Deliver, Effect, Fired, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.admission import (
    Admission,
    AdmissionConfig,
    Disconnected,
    HasForgotten,
    Listens,
    PartyConnected,
    Reached,
    Serving,
)
from unisono.protocols.sequencer.arrangements import ClientArrangement
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.lives import Began, Height, Lives, Reminds, Seal, Witness
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.sim.scenario import load, play
from unisono.structures.hosting import Lapse
from unisono.structures.sessions import Handled, Reborn, Sessions

NODE, GHOST = Address("n"), Address("ghost")
SEAL = Seal("d", NODE, "token")
ASKS = Creates(Address("ghost/p"), (Wanted(Topic(1), 1),))


class Play:
    """The door of a node whose log has this height, in its life "b"."""

    def __init__(self, height: int | None = 9, incarnation: int = 0, held_max: int = 3) -> None:
        self.height = height or 0
        self.lives = Lives(Sessions(Counting(GHOST), NODE, (), Any, Any))
        if incarnation:
            self.lives.handle(Reborn(incarnation), Micros(0))
        for life, began in (("a", 0), ("b", 9)):
            self.lives.handle(Began(life, began), Micros(0))
        self.witness = Witness()
        count: Callable[[], int] | None = (lambda: self.height) if height is not None else None
        owner = lambda address: Address(address.split("/")[0])  # noqa: E731
        asker = lambda message: message.publisher if isinstance(message, Creates) else None  # noqa: E731
        config = AdmissionConfig(held_max=held_max)
        self.door = Admission(self.lives, SEAL, "b", count, owner, self.witness, asker, config)

    def give(self, *messages: Any) -> list[Any]:
        """What is let in, or said to the driver, and what is sent; timers aside."""
        effects: list[Effect] = [effect for each in messages for effect in self.door.handle(each, Micros(0))]
        return [e.item if isinstance(e, Deliver) else e for e in effects if isinstance(e, Deliver | Send)]

    def serves(self) -> "Play":
        self.give(Began("b", 9), Listens(), Fired("listen"))
        return self

    def shown(self, height: int = 9) -> Height:
        return SEAL.put(self.lives.incarnation, "b", height)


def test_what_is_said_while_it_listens_is_held_in_its_order_and_acknowledgements_are_not() -> None:
    play = Play()
    handled = Handled(Address("m"), 3)
    assert play.give(Listens(), "one", handled, "two") == [handled]
    assert play.give(Fired("listen")) == [Serving(), "one", "two"]
    assert play.give("three") == ["three"]


def test_no_more_is_held_than_there_is_room_for() -> None:
    play = Play(held_max=2)
    play.give(Listens(), "one", "two")
    assert play.door.is_full
    assert play.give("three", Fired("listen")) == [Serving(), "one", "two"]


def test_a_node_without_a_log_has_nothing_to_listen_for_and_nothing_to_show() -> None:
    assert Play(height=None).give(Listens(), "one", PartyConnected(GHOST), Reached((GHOST,))) == [Serving(), "one"]


def test_who_was_shown_more_than_the_log_has_stops_the_node_and_a_seal_that_is_not_ours_does_not() -> None:
    play = Play()
    assert play.give(Reminds(GHOST, play.shown(9))) == []
    assert play.give(Reminds(GHOST, Seal("d", NODE, "a guess").put(0, "b", 99))) == []
    (found,) = play.give(Reminds(GHOST, play.shown(10)))
    assert isinstance(found, HasForgotten)


def test_a_height_is_shown_with_every_letter_to_who_connects_and_to_all_when_it_has_grown() -> None:
    play = Play().serves()
    assert play.give(PartyConnected(GHOST)) == [Send(GHOST, play.shown())]
    assert play.give(Reached((GHOST,))) == [Send(GHOST, play.shown())]
    play.height = 12
    assert play.give(Fired("show"), Fired("show")) == [Send(GHOST, play.shown(12))], "once"
    play.height = 13
    assert play.give(Disconnected(GHOST), Fired("show")) == []


def test_a_life_is_shown_to_nobody_before_it_is_in_the_log_and_has_listened() -> None:
    """The newest data, put back, does not know of a life that ended since its data was too old."""
    play = Play()
    assert play.give(Listens(), PartyConnected(GHOST), Began("b", 9), Reached((GHOST,))) == []
    assert play.give(Fired("listen")) == [Serving(), Send(GHOST, play.shown())]
    early = Play()
    assert early.give(Listens(), PartyConnected(GHOST), Fired("listen")) == [Serving()]
    assert early.give(Began("b", 9), Fired("show")) == [Send(GHOST, early.shown())]


def test_a_reborn_node_numbers_nothing_for_a_client_that_has_not_shown_that_it_knows() -> None:
    """It may ask again for what an earlier incarnation has numbered: crash campaign, seeds 12 and 13 of ff32879."""
    play = Play(incarnation=5).serves()
    assert play.give(ASKS) == [Send(GHOST, play.shown())]
    assert play.give(Reminds(GHOST, SEAL.put(0, "a", 1))) == [Send(GHOST, play.shown())]
    assert play.give(ASKS) == [Send(GHOST, play.shown())]
    assert play.give(Reminds(GHOST, play.shown()), ASKS) == [ASKS]
    lapse = Lapse(Address("ghost/p"))
    assert play.give(lapse, ASKS) == [lapse, Send(GHOST, play.shown())]


def test_another_node_is_handed_back_what_it_has_shown_before_anything_else() -> None:
    play, other = Play().serves(), Seal("d", Address("m"), "token").put(0, "x", 4)
    assert play.give(other, PartyConnected(Address("m"))) == [
        Send(Address("m"), Reminds(NODE, other)),
        Send(Address("m"), play.shown()),
    ]


def test_what_a_client_has_asked_before_it_knew_leaves_before_it_says_that_it_knows() -> None:
    before, after = (Send(NODE, Creates(GHOST, (Wanted(Topic(1), i),))) for i in (1, 2))
    knows = Deliver(HomeReborn(NODE))
    payload = Broadcast(Topic(1), "payload")
    arranged = ClientArrangement().arrange([payload, before, knows, after])
    assert arranged == [before, knows, after, payload]


@pytest.mark.parametrize("seed", [0, 6, 8, 11])
def test_nodes_that_lose_data_are_told_so_and_no_number_names_two_events(seed: int) -> None:
    scenario = load("sequencer/listening")
    journal = play(scenario, seed)
    assert [verdict for verdict in judge(journal, scenario.promised) if verdict.is_violated] == []
