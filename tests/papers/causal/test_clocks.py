"""Clocks: whose are wrong, what is said of it, and that nobody else has to suffer for it."""

import pytest
from msgspec.structs import replace

from tests.papers.causal.test_gossip import CONFIG, PEER, G, T, frame, member, said
from tests.papers.causal.test_parties import Party, delivered, event, heard, subscribed
from unisono.machine import Effect, Fired, Gap, Heard, Refused
from unisono.model.ids import Address, Topic
from unisono.protocols.causal.clocks import OFF_ROUNDS, ClockComparison
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.messages import CausalGoodbye, CausalGossip, CausalPublication

RULES = ("CLOCK",)
FAR = CONFIG.eps_ticks + 2
BROKERS = (Address("b1"), Address("b2"), Address("b3"))


def watch(is_broker: bool = False) -> ClockComparison:
    return ClockComparison(CONFIG, is_broker)


def rounds(clocks: ClockComparison, many: int, brokers: tuple[int, ...], others: tuple[int, ...] = ()) -> list[str]:
    """So many rounds in which these are heard; what has turned out in them."""
    found = []
    for _ in range(many):
        for place, ahead in enumerate(brokers):
            clocks.hear(BROKERS[place], ahead, True)
        for place, ahead in enumerate(others):
            clocks.hear(Address(f"c{place}"), ahead, False)
        change = clocks.end_round()
        found += [change] if change is not None else []
    return found


@pytest.mark.parametrize("far", [FAR, -FAR])
def test_a_clock_is_off_when_most_brokers_disagree_for_some_rounds(far: int) -> None:
    clocks = watch()
    assert rounds(clocks, OFF_ROUNDS - 1, (far, far, 0)) == []
    assert rounds(clocks, 3, (far, far, 0)) == ["off"]
    assert clocks.off_by == far
    assert rounds(clocks, 2, (1, 0, -1)) == ["right"]
    assert clocks.off_by == 0


@pytest.mark.parametrize("heard", [(FAR, 0), (FAR, -FAR), (FAR - 1, FAR - 1, 0), (FAR, 0, -FAR)])
def test_who_is_contradicted_by_no_more_than_half_is_right(heard: tuple[int, ...]) -> None:
    assert rounds(watch(), 2 * OFF_ROUNDS, heard) == []
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, heard) == []


@pytest.mark.parametrize("brokers", [(), (0,), (0, 0), (0, 0, 0)])
@pytest.mark.parametrize("far", [FAR, -FAR])
def test_however_many_subscribers_have_a_wrong_clock_no_broker_stops_for_them(
    brokers: tuple[int, ...], far: int
) -> None:
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, brokers, (far,) * 9) == []
    assert rounds(watch(), 2 * OFF_ROUNDS, brokers, (far,) * 9) == []


def test_of_two_brokers_that_one_is_wrong_with_which_most_disagree() -> None:
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, (FAR,)) == []  # each could say so of the other
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, (FAR,), (0, 0)) == []
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, (FAR,), (FAR, 0)) == ["off"]
    assert rounds(watch(is_broker=True), 2 * OFF_ROUNDS, (FAR,), (-FAR, -FAR, -FAR)) == []


def test_where_there_is_one_broker_a_client_that_disagrees_with_it_is_wrong() -> None:
    assert rounds(watch(), 2 * OFF_ROUNDS, (FAR,)) == ["off"]


def test_one_broker_that_is_heard_alone_proves_nothing_where_there_are_more() -> None:
    clocks = watch()
    rounds(clocks, 1, (0, 0))
    assert rounds(clocks, 2 * OFF_ROUNDS, (FAR,)) == []
    clocks = watch()
    rounds(clocks, 1, (0, 0))
    rounds(clocks, CONFIG.fade_ticks // CONFIG.round_ticks, ())  # the others are down
    assert rounds(clocks, 2 * OFF_ROUNDS, (FAR,)) == ["off"]


def test_datagrams_that_waited_do_not_put_a_clock_off() -> None:
    clocks = watch()
    for _ in range(9):
        for ahead in (-40, -20, 0):
            for broker in BROKERS:
                clocks.hear(broker, ahead, True)
        assert clocks.end_round() is None


# What is said of it.


def gossip(party: Party, clock: int) -> list[Effect]:
    """One round in which the broker is heard."""
    party.tell(CausalGossip(member(PEER, clock), clock))
    return party.tell(Fired("round"))


def seeded(knowledge: CausalKnowledge | None = None) -> Party:
    return Party(seeds=(member(PEER),), knowledge=knowledge)


def put_off(party: Party, ahead: int) -> list[Effect]:
    clock = party.now // T
    return [effect for _ in range(OFF_ROUNDS) for effect in gossip(party, clock + ahead)]


@pytest.mark.parametrize(("ahead", "words"), [(50, "is 500 ms slow"), (-50, "is 500 ms fast")])
def test_who_finds_its_clock_off_tells_its_subscribers_once_and_publishes_nothing(ahead: int, words: str) -> None:
    party = seeded()
    subscribed(party, 0)
    (gap,) = [item for item in delivered(put_off(party, ahead)) if isinstance(item, Gap)]
    assert words in gap.reason
    assert "does not come" in gap.reason
    assert delivered(put_off(party, ahead)) == []
    (refused,) = delivered(party.publish(1))
    assert isinstance(refused, Refused)
    assert words in refused.reason


def test_a_clock_that_is_right_again_is_a_gap_and_nothing_that_came_is_lost() -> None:
    party = seeded()
    subscribed(party, 0)
    clock = party.now // T
    waits = replace(frame(clock, body=(event(1),)), past={(7, G): (clock - 1, clock + 30)})
    assert heard(party, waits) == []
    put_off(party, 50)
    missed, got, gap = delivered(gossip(party, clock))
    assert (missed.publisher, got) == ("broker-7", Heard(Topic(0), event(1)))
    assert "clock of this machine was off" in gap.reason
    assert party.client.mesh.order.floors == {G: clock + CONFIG.eps_ticks + 1}
    assert said(party.publish(1), CausalPublication) != []


def test_what_a_stream_finds_of_the_clock_counts_for_the_publisher_of_its_session() -> None:
    knowledge = CausalKnowledge()
    told, speaks = seeded(knowledge), Party(knowledge=knowledge)
    subscribed(told, 0)
    put_off(told, 50)
    (refused,) = delivered(speaks.publish(1))
    assert "is 500 ms slow" in refused.reason
    told.tell(CausalGoodbye())  # nobody is left who could say that it is right again
    assert said(speaks.publish(2), CausalPublication) != []


def test_a_broker_whose_clock_is_off_takes_nothing_and_says_how_wrong_it_is() -> None:
    party = Party()
    party.broker.mesh.order.knowledge.clock_off_by = -50
    party.publish(1)
    party.answer(CausalPublication)
    (refused,) = delivered(party.last)
    assert "the clock of this broker is 500 ms fast, by those of the brokers" in refused.reason
