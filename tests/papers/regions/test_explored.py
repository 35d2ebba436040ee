"""Small hierarchies in every order in which what is on its way can arrive: joining, hand-over, and both at once.

A publisher at one root, a subscriber at the other or at a broker below it. No timer fires and no link is lost: what is
left is every interleaving of the overlay, the direct connection and the subscription.
"""

from itertools import combinations
from typing import Any

import pytest

from tests.papers.regions.net import QUIET, topic_name
from unisono.machine import Accepted, CutOff, Deliver, Effect, Heard, Joined, Publish, Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.messages import RegionLeave, RegionLinkDown, RegionLinkUp
from unisono.sim.explore import Explored, Situation, explore, settle

RULES = ("R-ACTIVE", "R-CUT", "R-SEQ", "R-H5", "R-SAFE")
P, A, B, C, S, Q = map(Address, ("p", "A", "B", "c", "s", "q"))


class Still:
    """A machine whose clock stands, and whose last effects are no part of its state; a publisher dials when told to."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case ("connect", target):
                self.inside._out.begin(now)
                self.inside.publisher.connect(target)
                effects = self.inside._out.effects
            case ("disconnect", target):
                self.inside._out.begin(now)
                self.inside.publisher.disconnect(target)
                effects = self.inside._out.effects
            case _:
                effects = self.inside.handle(message, now)
        self.inside._out.effects = []
        return [effect for effect in effects if isinstance(effect, Send | Deliver)]


def linked(below: bool) -> Situation:
    """p at A, s at B or at c below it; everybody has met, and nobody wants anything yet."""
    lowest = C if below else B
    machines: dict[str, Any] = {
        P: Still(RegionClient(P, topic_name, QUIET)),
        A: Still(RegionBroker(A, True, QUIET)),
        B: Still(RegionBroker(B, True, QUIET)),
        S: Still(RegionClient(S, topic_name, QUIET)),
    }
    if below:
        machines[C] = Still(RegionBroker(C, False, QUIET))
    found = Situation.of(machines)
    links = [(A, B, "peer", "peer"), (P, A, "parent", "client"), (S, lowest, "parent", "client")]
    for one, other, mine, theirs in [*links, *([(C, B, "parent", "broker")] if below else [])]:
        found = found.tell(one, RegionLinkUp(other, mine)).tell(other, RegionLinkUp(one, theirs))
    return settle(found)


def meshed(roots: tuple[Address, ...], publishers: tuple[Address, ...]) -> Situation:
    """Publishers at A, s at B, and maybe a third root that is connected with both."""
    machines: dict[str, Any] = {name: Still(RegionBroker(name, True, QUIET)) for name in roots}
    machines |= {name: Still(RegionClient(name, topic_name, QUIET)) for name in (*publishers, S)}
    found = Situation.of(machines)
    links = [(one, other, "peer", "peer") for one, other in combinations(roots, 2)]
    links += [(name, A, "parent", "client") for name in publishers] + [(S, B, "parent", "client")]
    for one, other, mine, theirs in links:
        found = found.tell(one, RegionLinkUp(other, mine)).tell(other, RegionLinkUp(one, theirs))
    return settle(found)


def event(number: int, publisher: Address = P) -> Publish:
    return Publish(Topic(0), Event(publisher, number, "t"), number)


def heard(final: Situation, publisher: Address = P) -> list[int]:
    items = [item.message for item in final.delivered(S) if isinstance(item, Heard)]
    return [event.sequence for event in items if event.publisher == publisher]


def check(final: Situation, target: Address, count: int) -> None:
    assert heard(final) == list(range(1, count + 1))
    assert [i.request for i in final.delivered(P) if isinstance(i, Accepted)] == list(range(1, count + 1))
    port = final.machine(target).inside.ports[P]
    sessions = final.machine(P).inside.publisher.sessions
    assert (port.mode, [session.state for session in sessions.values()]) in (("O", []), ("D", ["direct"]))


@pytest.mark.parametrize(("below", "target"), [(False, B), (True, C)])
def test_r_cut_every_order_of_a_hand_over_and_back(below: bool, target: Address) -> None:
    start = settle(settle(linked(below).tell(S, Subscribe((Topic(0),)))).tell(P, event(1)))
    script = [("connect", target), event(2), ("disconnect", target), event(3)]
    found = explore(start, {P: script}, lambda final: check(final, target, 3))
    assert found.is_complete
    assert found.finals >= 2  # it was direct when it was to leave, or not yet


def joined_without_a_hole(below: bool, script: list[Any]) -> Explored:
    """What a subscriber hears ends with the last event and has no hole: it began no later than it was told so."""

    def at_end(final: Situation) -> None:
        numbers, told = heard(final), [item for item in final.delivered(S) if isinstance(item, Joined)]
        assert len(told) == 1
        assert numbers == list(range(3 - len(numbers) + 1, 4))

    return explore(linked(below), {P: script, S: [Subscribe((Topic(0),))]}, at_end)


def test_r_active_every_order_of_joining_while_events_flow() -> None:
    assert joined_without_a_hole(False, [event(1), event(2), event(3)]).is_complete


def test_r_active_every_order_of_joining_while_the_stream_is_handed_over_and_back() -> None:
    script = [event(1), ("connect", B), event(2), ("disconnect", B), event(3)]
    assert joined_without_a_hole(False, script).is_complete


def test_r_active_every_order_of_a_wave_while_a_root_dies() -> None:
    """A and B lose C at moments of their own, while s waits for both; what C still says is of a dead root."""

    def at_end(final: Situation) -> None:
        numbers, told = heard(final), [item for item in final.delivered(S) if isinstance(item, Joined)]
        assert len(told) == 1
        assert numbers == list(range(3 - len(numbers), 3))

    lost = [RegionLinkDown(C)]
    script = {P: [event(1), event(2)], S: [Subscribe((Topic(0),))], A: lost, B: lost}
    assert explore(meshed((A, B, C), (P,)), script, at_end).is_complete


def test_r_active_every_order_of_two_publishers_while_somebody_joins() -> None:
    def at_end(final: Situation) -> None:
        assert heard(final) in ([1, 2], [2], [])
        assert heard(final, Q) in ([1], [])

    script = {P: [event(1), event(2)], Q: [event(1, Q)], S: [Subscribe((Topic(0),))]}
    assert explore(meshed((A, B), (P, Q)), script, at_end).is_complete


@pytest.mark.parametrize(("below", "target"), [(False, B), (True, C)])
def test_r_h5_every_order_of_a_hand_over_and_a_goodbye(below: bool, target: Address) -> None:
    """p leaves while it is being connected, or is; nothing is lost, and nobody is told of a loss."""
    start = settle(settle(linked(below).tell(S, Subscribe((Topic(0),)))).tell(P, event(1)))

    def at_end(final: Situation) -> None:
        assert heard(final) == [1, 2]
        assert not [item for item in final.delivered(S) if isinstance(item, CutOff)]

    assert explore(start, {P: [("connect", target), event(2), RegionLeave()]}, at_end).is_complete


@pytest.mark.campaign
def test_r_cut_every_order_of_two_hand_overs_one_below_the_other() -> None:
    start = settle(settle(linked(True).tell(S, Subscribe((Topic(0),)))).tell(P, event(1)))
    script = [("connect", B), ("connect", C), event(2), ("disconnect", B), event(3)]

    def at_end(final: Situation) -> None:
        assert heard(final) == [1, 2, 3]

    assert explore(start, {P: script}, at_end, states_max=3_000_000).is_complete
