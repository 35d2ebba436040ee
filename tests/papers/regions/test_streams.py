"""Directed cases of streams on the overlay: activation, sources that are lost and move, gaps, the end (H1-H5, H8)."""

import pytest

from tests.papers.regions.net import QUIET, RegionNet
from unisono.machine import Accepted, CutOff, Refused
from unisono.model.ids import Address
from unisono.model.predicate import EVERY_EVENT
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import (
    Attach,
    Attached,
    OpenStream,
    RegionLeave,
    ReplayStream,
    StreamGap,
    StreamItem,
)

RULES = ("R-ACTIVE", "R-EPOCH", "R-SEQ", "R-H1", "R-H3", "R-H4", "R-H5", "R-H8", "R-LOG", "R-SAFE")


def two_regions(config: RegionsConfig = QUIET) -> RegionNet:
    """Roots A and B, brokers a and b below them, publisher p at a, subscriber s at b."""
    net = RegionNet(config)
    for name in "AB":
        net.broker(name, root=True)
    net.mesh()
    for lower, upper in (("a", "A"), ("b", "B")):
        net.link(net.broker(lower), Address(upper))
    for client, broker in (("p", "a"), ("s", "b")):
        net.link(net.client(client), Address(broker))
    net.subscribe(Address("s"))
    net.settle()
    return net


P, S = Address("p"), Address("s")


def numbers(net: RegionNet, client: str = "s") -> list[int]:
    return [event.sequence for event in net.heard[Address(client)]]


def test_an_event_reaches_whoever_wants_it_and_is_confirmed_by_its_root() -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    assert numbers(net) == [1]
    assert net.outcomes[P] == [Accepted(1)]


def test_nobody_is_attached_before_every_root_knows_what_it_wants() -> None:
    net = two_regions()
    late = net.client("t")
    net.subscribe(late)
    held = net.wire(Address("A"), Address("B"))
    net.link(late, Address("b"))
    for _ in range(20):
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
    assert late in net.joined  # covered by what s wants, which every root knows
    other = two_regions()
    narrow = other.client("t", "x > 5")
    other.tell(S, _unsubscribe())
    other.pass_time(20_000_000)
    other.subscribe(narrow)
    held = other.wire(Address("A"), Address("B"))
    other.link(narrow, Address("b"))
    for _ in range(20):
        for wire, end in other.waiting():
            if wire is not held:
                other.step(wire, end)
    assert narrow not in other.joined
    other.settle()
    assert narrow in other.joined


def _unsubscribe() -> object:
    from unisono.machine import Unsubscribe
    from unisono.model.ids import Topic

    return Unsubscribe((Topic(0),))


def test_a_wave_goes_on_without_a_root_that_dies() -> None:
    """T22: whoever was waited for is lost, and its streams wait for a new source at the same instant."""
    net = two_regions()
    late = net.client("t", "x > 100")
    net.tell(S, _unsubscribe())
    net.pass_time(20_000_000)
    net.publish(P, x=1)
    net.settle()
    net.subscribe(late)
    net.link(late, Address("b"))
    held = net.wire(Address("A"), Address("B"))
    for _ in range(20):
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
    assert late not in net.joined
    net.crash(Address("A"))
    net.settle()
    assert late in net.joined
    assert net.mode(Address("B"), P) == "U"


def test_r_h1_an_event_lost_at_activation_while_the_publishers_broker_is_dead_is_brought() -> None:
    """H1: s is attached, p's first item dies with a; the next path brings it, though nobody has ever heard of p."""
    net = two_regions()
    net.publish(P, x=1)
    net.crash(Address("a"))
    net.settle()
    assert numbers(net) == []
    net.link(P, Address("A"))
    net.settle()
    assert numbers(net) == [1]


def test_r_h1_a_stream_that_moved_here_is_asked_for_since_we_were_attached() -> None:
    """H1: A has accepted the items and dies before B hears of them; a new root brings them."""
    net = two_regions()
    held = net.wire(Address("A"), Address("B"))
    net.publish(P, x=1)
    for _ in range(20):
        for wire, end in net.waiting():
            if wire is not held:
                net.step(wire, end)
    assert net.outcomes[P] == [Accepted(1)]
    held.queues[Address("B")].clear()
    net.crash(Address("A"))
    net.settle()
    root = net.broker("C", root=True)
    net.link(root, Address("B"), is_peer=True)
    net.settle()
    net.link(Address("a"), root)
    net.settle()
    assert numbers(net) == [1]


def test_whoever_joins_later_is_not_given_what_was_before() -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    net.now = Micros(net.now + 10_000_000)
    late = net.client("t")
    net.subscribe(late)
    net.link(late, Address("b"))
    net.settle()
    net.publish(P, x=2)
    net.settle()
    assert [event.sequence for event in net.heard[late]] == [2]


def test_r_h3_a_publisher_that_moves_is_heard_from_where_it_is() -> None:
    """H3: it moves below a broker that has its stream from above; the old path is no echo, and takes the new one."""
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    net.lose(net.wire(P, Address("a")))
    net.settle()
    net.link(P, Address("b"))
    net.publish(P, x=2)
    net.settle()
    assert numbers(net) == [1, 2]
    assert net.ports(Address("b"))[P].below
    assert not net.ports(Address("a"))[P].below
    assert net.stuck() == []


def test_r_epoch_a_broker_that_moves_makes_its_publishers_open_anew() -> None:
    net = two_regions()
    other = net.broker("D", root=True)
    net.link(other, Address("A"), is_peer=True)
    net.link(other, Address("B"), is_peer=True)
    net.publish(P, x=1)
    net.settle()
    net.lose(net.wire(Address("a"), Address("A")))
    net.settle()
    net.publish(P, x=2)
    net.link(Address("a"), other)
    net.settle()
    assert numbers(net) == [1, 2]
    assert net.ports(Address("B"))[P].src == other
    assert net.ports(Address("B"))[P].epoch == 2


def test_r_epoch_what_is_told_of_an_earlier_path_does_not_turn_a_stream_away() -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    net.lose(net.wire(P, Address("a")))
    net.settle()
    net.link(P, Address("A"))
    net.settle()
    port = net.ports(Address("A"))[P]
    net.tell(Address("A"), OpenStream(Address("a"), P, 1, 0, 1))
    assert (port.src, port.epoch) == (P, 2)


def test_r_epoch_an_echo_from_above_does_not_displace_the_stream_from_below() -> None:
    """T26."""
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    net.tell(Address("a"), OpenStream(Address("A"), P, 1, 1, 1))
    assert net.ports(Address("a"))[P].src == P
    net.publish(P, x=2)
    net.settle()
    assert numbers(net) == [1, 2]


def test_what_comes_from_below_goes_up_even_when_its_source_has_gone() -> None:
    """T20: the direction is the port's, so what is replayed after the child is lost goes up too."""
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    port = net.ports(Address("a"))[P]
    net.lose(net.wire(P, Address("a")))
    net.publish(P, x=2)
    net.settle()
    assert port.src is None
    assert port.below
    net.link(P, Address("a"))
    net.settle()
    assert numbers(net) == [1, 2]


def test_r_h4_a_gap_of_a_broker_reaches_its_subscribers_before_what_comes_after() -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    net.tell(Address("b"), StreamGap(Address("B"), P, 2, 4, ("p",)))
    net.settle()
    assert net.cuts[S] == [(1, CutOff((("p", 1),), "items 2 to 4 of p are kept no more"))]
    net.tell(Address("b"), StreamGap(Address("B"), P, 1, 1, ("p",)))
    net.settle()
    assert len(net.cuts[S]) == 1  # it has that one


def test_r_log_a_publisher_refuses_rather_than_forget_what_no_root_has() -> None:
    net = RegionNet(RegionsConfig(log_max=2, discovery_us=Micros(0)))
    client = net.client("p")
    for _ in range(3):
        net.publish(client, x=1)
    assert [type(item) for item in net.outcomes[client]] == [Refused]


def test_r_log_what_is_kept_no_more_is_told_as_a_gap() -> None:
    net = two_regions(RegionsConfig(log_max=2, discovery_us=Micros(0)))
    net.publish(P, x=1)
    net.settle()
    net.lose(net.wire(S, Address("b")))
    net.settle()
    for x in range(5):
        net.publish(P, x=x)
        net.settle()
    net.link(S, Address("b"))
    net.settle()
    assert numbers(net) == [1, 5, 6]
    assert [(place, cut.publishers) for place, cut in net.cuts[S]] == [(1, (("p", 1),))]


def test_r_log_what_waits_is_heard_between_two_notices() -> None:
    """s asks p for 1 and has 2 waiting when b loses what follows. A notice ends with the next event."""
    net = two_regions(RegionsConfig(log_max=2, discovery_us=Micros(0)))
    net.lose(net.wire(S, Address("b")))
    net.settle()
    net.publish(P, x=1)
    net.settle()
    net.link(S, Address("b"))
    net.settle_but("Recover")
    net.publish(P, x=2)
    net.settle_but("Recover")
    assert net.mode(S, P) == "R"
    replay = ReplayStream(Address("b"), P, net.ports(S)[P].token, (), 7, True, 5, ("p",))
    net.tell(S, replay)
    assert numbers(net) == [2]
    assert [place for place, _ in net.cuts[S]] == [0, 1]


def test_r_h5_subscribers_are_told_when_a_publisher_has_gone() -> None:
    net = two_regions(RegionsConfig(gone_us=Micros(1_000_000), discovery_us=Micros(0)))
    net.publish(P, x=1)
    net.settle()
    net.crash(P)
    net.pass_time(500_000)
    assert net.cuts[S] == []
    net.pass_time(1_000_000)
    assert net.cuts[S] == [(1, CutOff((("p", 1),), "publisher p has gone"))]
    assert all(P not in net.ports(name) for name in net.nodes)


SOON_GONE = RegionsConfig(gone_us=Micros(1_000_000), discovery_us=Micros(0))


def test_r_h5_a_publisher_that_says_goodbye_is_no_loss() -> None:
    net = two_regions(SOON_GONE)
    net.publish(P, x=1)
    net.settle()
    net.tell(P, RegionLeave())
    net.settle()
    net.crash(P)
    net.pass_time(10_000_000)
    assert net.cuts[S] == []
    assert all(P not in net.ports(name) for name in net.nodes)


@pytest.mark.parametrize("is_known", [True, False])
def test_r_h5_what_is_lost_on_its_way_after_a_goodbye_is_told(is_known: bool) -> None:
    """p has left when B dies with the event; the streams that linger tell B's successor, and so b and s, of it."""
    net = two_regions(SOON_GONE)
    if is_known:
        net.publish(P, x=1)
        net.settle()
    held = net.wire(Address("A"), Address("B"))
    net.publish(P, x=2)
    while ready := [(wire, end) for wire, end in net.waiting() if wire is not held]:
        net.step(*ready[0])
    assert Accepted(net.sequences[P]) in net.outcomes[P]
    net.tell(P, RegionLeave())
    net.crash(P)
    while ready := [(wire, end) for wire, end in net.waiting() if wire is not held]:
        net.step(*ready[0])
    net.crash(Address("B"))
    net.settle()
    net.link(net.broker("C", root=True), Address("A"), is_peer=True)
    net.link(Address("b"), Address("C"))
    net.pass_time(20_000_000)
    assert numbers(net) == ([1] if is_known else [])
    last = net.sequences[P]
    assert net.cuts[S] == [(last - 1, CutOff((("p", last - 1),), f"items {last} to {last} of p are kept no more"))]


def test_r_h5_what_a_stream_misses_before_what_waits_is_told_when_its_publisher_has_gone() -> None:
    """s asks p for item 1 and buffers what follows; p dies before it answers. What waits is heard, and 1 is told of."""
    net = two_regions(SOON_GONE)
    net.lose(net.wire(S, Address("b")))
    net.settle()
    net.publish(P, x=1)
    net.settle()
    net.link(S, Address("b"))
    net.settle_but("Recover")
    net.publish(P, x=2)
    net.settle_but("Recover")
    net.crash(P)
    net.pass_time(20_000_000)
    assert numbers(net) == [2]
    assert [cut.publishers for _, cut in net.cuts[S]] == [(("p", 0),), (("p", 2),)]


def test_r_h5_a_publisher_that_comes_back_is_heard_once() -> None:
    """Everybody has closed its stream; the tombstones say how far each had come."""
    net = two_regions(RegionsConfig(gone_us=Micros(1_000_000), discovery_us=Micros(0)))
    net.publish(P, x=1)
    net.settle()
    net.lose(net.wire(P, Address("a")))
    net.pass_time(2_000_000)
    assert P not in net.ports(S)
    net.publish(P, x=2)
    net.link(P, Address("A"))
    net.settle()
    assert numbers(net) == [1, 2]


def test_r_h8_an_earlier_turn_is_refused() -> None:
    net = two_regions()
    net.tell(Address("b"), Attach(S, 1, EVERY_EVENT))
    assert any("turn 1 after turn" in reason for reason in net.refused)
    net.tell(Address("b"), Attached(Address("B"), 99))
    assert any("nobody has asked" in reason for reason in net.refused)


def test_nobody_unknown_is_listened_to() -> None:
    """T24: a late word of a dead root does not make it a neighbour again."""
    net = two_regions()
    net.crash(Address("A"))
    net.settle()
    before = len(net.refused)
    net.tell(Address("B"), Attach(Address("A"), 9, EVERY_EVENT))
    assert len(net.refused) == before + 1
    assert Address("A") not in net.nodes[Address("B")].links  # type: ignore[attr-defined]


def test_r_safe_a_link_that_is_read_of_late_displaces_a_newer_one_and_who_dialled_that_one_hears_of_it() -> None:
    """Nobody waits for ever on a connection that only one end has: links report their own loss, these too."""
    net = two_regions()
    late = net.client("q")
    net.link(late, Address("a"))
    older = net.wire(late, Address("a"))
    net.lose(older, {late: 0, Address("a"): 2})
    net.step(older, late)
    net.publish(late, x=1)
    net.link(late, Address("a"))
    newer = net.wire(late, Address("a"))
    net.step(newer, Address("a"))
    net.settle()
    assert net.nodes[late].broker is None  # type: ignore[attr-defined]
    assert net.half_open() == []
    net.link(late, Address("a"))
    net.settle()
    assert [event.publisher for event in net.heard[S]] == ["q"]
    assert net.outcomes[late] == [Accepted(1)]


@pytest.mark.parametrize("number", [1, 3])
def test_r_seq_nothing_is_accepted_twice(number: int) -> None:
    net = two_regions()
    for x in range(3):
        net.publish(P, x=x)
    net.settle()
    net.tell(S, StreamItem(Address("b"), P, number, Micros(0), net.published[number - 1]))
    assert numbers(net) == [1, 2, 3]


def test_a_filter_that_changes_costs_one_turn_and_no_gap() -> None:
    """A parametric update: the old filter is in force until the new one is, and two messages a hop suffice."""
    net = two_regions()
    net.messages.clear()
    net.select(S, "x > 5")
    net.publish(P, x=9)
    net.settle()
    net.pass_time(10_000_000)
    assert numbers(net) == [1]
    update = net.messages["Attach"] + net.messages["Attached"]
    again = two_regions()
    again.messages.clear()
    again.tell(S, _unsubscribe())
    again.pass_time(10_000_000)
    again.subscribe(S)
    again.pass_time(10_000_000)
    assert update < again.messages["Attach"] + again.messages["Attached"]
