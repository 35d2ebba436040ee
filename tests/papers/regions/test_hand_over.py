"""Directed cases of hand-overs between overlay and direct connections (specs: entourage, sections 0, 7 and 10)."""

from typing import Any

import msgspec
import pytest

from tests.papers.regions.net import QUIET, RegionNet, Wire
from tests.papers.regions.test_streams import P, S, numbers, two_regions
from unisono.model.ids import Address

RULES = ("R-CUT", "R-H3", "R-H6", "R-H7", "R-H8")
B, b = Address("B"), Address("b")


def started() -> RegionNet:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    return net


def direct(target: Address) -> RegionNet:
    net = started()
    net.connect(P, target)
    net.settle()
    assert net.session(P, target) == "direct"
    assert net.mode(target, P) == "D"
    return net


@pytest.mark.parametrize("target", [B, b, S])
def test_a_hand_over_and_back_loses_and_repeats_nothing(target: Address) -> None:
    net = started()
    for x in range(40):
        net.publish(P, x=x)
        if x == 10:
            net.connect(P, target)
        if x == 25:
            net.settle()
            net.disconnect(P, target)
        for wire, end in net.waiting()[: x % 4]:
            net.step(wire, end)
    net.settle()
    assert numbers(net) == list(range(1, 42))
    assert net.mode(target, P) == "O"
    assert net.session(P, target) is None
    assert "Recover" not in net.messages


def test_what_is_direct_does_not_come_over_the_overlay() -> None:
    net = direct(b)
    held = net.wire(B, b)
    net.publish(P, x=2)
    assert not any(getattr(m, "number", None) == 3 for m in held.queues[b])
    net.settle()
    assert numbers(net) == [1, 2]
    assert net.ports(B)[P].pruned == {b: 1}


def test_the_target_takes_the_direct_stream_only_when_the_overlay_has_come_so_far() -> None:
    """T16: what is under way on the overlay is not thrown away."""
    net = started()
    held = net.wire(B, b)
    net.publish(P, x=2)
    net.connect(P, b)
    for _ in range(30):
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
        net.publish(P, x=3)
    assert net.mode(b, P) == "W"
    net.settle()
    assert net.mode(b, P) == "D"
    assert numbers(net) == list(range(1, len(net.published) + 1))


def test_a_connection_while_the_link_above_is_replaced_is_refused() -> None:
    """T19: a target without a source cannot know where the overlay stands."""
    net = started()
    net.lose(net.wire(b, B))
    net.settle()
    net.publish(P, x=2)
    net.connect(P, b)
    net.settle()
    assert net.session(P, b) is None
    net.link(b, B)
    net.publish(P, x=3)
    net.settle()
    assert numbers(net) == [1, 2, 3]


def test_a_source_lost_while_waiting_for_the_start_is_made_up_by_the_publisher() -> None:
    net = started()
    held = net.wire(B, b)
    net.connect(P, b)
    for _ in range(20):
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
    net.publish(P, x=2)
    net.lose(held, {B: 0, b: 0})
    net.settle()
    assert net.mode(b, P) == "D"
    assert numbers(net) == [1, 2]


def test_a_start_that_never_comes_leaves_the_target_where_it_was() -> None:
    net = started()
    net.connect(P, b)
    wire = net.wire(P, b, P)
    net.step(wire, b)
    net.step(wire, b)
    wire.queues[P].clear()
    net.pass_time(400_000)
    assert net.mode(b, P) == "O"


def test_r_h3_a_publisher_that_moves_below_its_target_ends_the_session() -> None:
    net = direct(b)
    net.lose(net.wire(P, Address("a")))
    net.settle()
    net.link(P, b)
    net.publish(P, x=2)
    net.settle()
    assert net.session(P, b) is None
    assert net.mode(b, P) == "O"
    assert numbers(net) == [1, 2]


def test_r_h6_a_broken_connection_puts_both_ends_back_on_the_overlay() -> None:
    """H6 (a): the loss of the connection alone."""
    net = direct(b)
    net.publish(P, x=2)
    net.lose(net.wire(P, b, P), {P: 0, b: 0})
    net.publish(P, x=3)
    net.settle()
    assert net.session(P, b) is None
    assert net.mode(b, P) == "O"
    assert numbers(net) == [1, 2, 3]


def test_r_h6_a_stop_nobody_waits_for_is_answered() -> None:
    """H6 (b): the target has left the session already; the publisher does not wait for ever."""
    net = direct(b)
    net.disconnect(P, b)
    node: Any = net.nodes[b]
    node._out.begin(net.now)
    node._ports._break(node._ports.ports[P])
    node._ports._wait_for_source(node._ports.ports[P])
    net.perform(b, node._out.effects)
    net.publish(P, x=2)
    net.settle()
    net.pass_time(4_000_000)
    assert net.session(P, b) is None
    assert net.mode(b, P) == "O"
    assert numbers(net) == [1, 2]


def test_r_h6_a_session_that_never_gets_an_answer_is_dropped() -> None:
    """H6 (c)."""
    net = started()
    net.connect(P, b)
    net.wire(P, b, P).queues[b].clear()
    net.pass_time(4_000_000)
    assert net.session(P, b) is None


def test_r_h7_whoever_connects_again_before_the_loss_is_noticed_is_refused_once() -> None:
    net = direct(b)
    old = net.wire(P, b, P)
    net.lose(old, {P: 0, b: 0})
    net.step(old, P)
    net.publish(P, x=2)
    net.connect(P, b)
    net.settle()
    assert net.mode(b, P) in ("O", "D")
    net.publish(P, x=3)
    net.settle()
    assert numbers(net) == [1, 2, 3]


def test_r_h8_a_new_link_forgets_what_was_pruned_on_the_old_one() -> None:
    net = direct(b)
    net.lose(net.wire(b, B))
    net.settle()
    assert net.ports(B)[P].pruned == {}
    net.link(b, B)
    net.settle()
    assert net.ports(B)[P].pruned == {b: 1}  # and the target says it again


def test_leaving_is_cut_where_the_overlay_is_open_again() -> None:
    """What the overlay filtered before it was open again comes directly, up to the stop."""
    net = direct(b)
    held = net.wire(B, b)
    net.disconnect(P, b)
    for x in range(5):
        net.publish(P, x=x)
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
    assert net.mode(b, P) == "V"
    net.settle()
    assert net.mode(b, P) == "O"
    assert numbers(net) == list(range(1, 7))


def test_a_source_lost_while_leaving_makes_the_stop_stale() -> None:
    """The stop answers what was open on a link that is lost; what came in between is in no buffer."""
    net = direct(b)
    net.disconnect(P, b)
    held = net.wire(P, b, P)
    net.step(held, b)
    read_all_but(net, held)
    net.step(held, P)
    assert [type(m).__name__ for m in held.queues[b]] == ["DirectStop"]
    net.lose(net.wire(b, B), {b: 0, B: 0})
    read_all_but(net, held)
    net.publish(P, x=2)
    read_all_but(net, held)
    net.link(b, B)
    read_all_but(net, held)
    assert net.mode(b, P) == "V"
    net.publish(P, x=3)
    net.settle()
    assert net.mode(b, P) == "O"
    assert numbers(net) == [1, 2, 3]


def read_all_but(net: RegionNet, held: Wire) -> None:
    while ready := [(wire, end) for wire, end in net.waiting() if wire is not held]:
        net.step(*ready[0])


def test_a_remote_root_prunes_at_the_publishers_root() -> None:
    """T25."""
    net = direct(B)
    assert net.ports(Address("A"))[P].pruned == {B: 1}
    net.publish(P, x=2)
    net.settle()
    assert numbers(net) == [1, 2]


def test_ancestor_and_descendant_may_both_be_direct() -> None:
    net = direct(B)
    net.connect(P, S)
    net.settle()
    for x in range(5):
        net.publish(P, x=x)
    net.settle()
    assert net.mode(S, P) == "D"
    net.disconnect(P, B)
    net.disconnect(P, S)
    net.publish(P, x=9)
    net.settle()
    assert numbers(net) == list(range(1, 8))
    assert net.stuck() == []


def test_a_mark_waits_in_a_broker_that_is_being_repaired() -> None:
    """T18: B asks p for what it has lost; the mark of a start may not overtake that on its way to b."""
    net = started()
    net.lose(net.wire(Address("A"), B))
    net.publish(P, x=2)
    net.settle()
    net.link(B, Address("A"), is_peer=True)
    net.settle_but("Recover")
    assert (net.mode(B, P), net.mode(b, P)) == ("R", "O")
    net.connect(P, b)
    net.settle_but("Recover")
    net.publish(P, x=3)
    net.settle_but("Recover")
    assert net.mode(b, P) == "W"
    assert numbers(net) == [1]
    net.pass_time(3_000_000)
    assert net.mode(b, P) == "D"
    assert numbers(net) == [1, 2, 3]


def test_leaving_waits_until_the_new_link_feeds_it() -> None:
    """T21: b is below a root that has not been answered yet; what p says goes on directly until that root opens."""
    net = direct(b)
    net.lose(net.wire(b, B))
    net.settle()
    other = net.broker("C", root=True)
    net.link(other, Address("A"), is_peer=True)
    net.link(b, other)
    held = net.wire(other, Address("A"))

    def read() -> None:
        while ready := [(wire, end) for wire, end in net.waiting() if wire is not held]:
            net.step(*ready[0])

    read()
    net.disconnect(P, b)
    net.publish(P, x=2)
    read()
    assert net.mode(b, P) == "V"
    assert numbers(net) == [1, 2]
    net.settle()
    net.publish(P, x=3)
    net.settle()
    assert net.mode(b, P) == "O"
    assert numbers(net) == [1, 2, 3]
    assert net.session(P, b) is None


def test_a_target_takes_so_many_direct_connections_whatever_a_publisher_can_afford() -> None:
    """Who says it could afford more is refused with a reason, is counted, and is heard over the overlay."""
    net = two_regions(msgspec.structs.replace(QUIET, sessions_max=1))
    other = net.client("q")
    net.link(other, Address("a"))
    for publisher in (P, other):
        net.publish(publisher, x=1)
        net.settle()
        net.connect(publisher, b)
        net.settle()
    assert (net.session(P, b), net.session(other, b)) == ("direct", None)
    target: Any = net.nodes[b]
    assert target.refusals == {"sessions": 1}
    net.publish(other, x=2)
    net.settle()
    assert [(e.publisher, e.sequence) for e in net.heard[S]] == [("p", 1), ("q", 1), ("q", 2)]
