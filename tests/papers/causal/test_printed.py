"""C1 to C9 of the specification (rules P1 to P9), section 8: what the paper prints, and what the corrected machine
does on the same trace.

What a broker asks for (C10) stands here as printed, and with members that gossip in test_gossip.py. Brokers A, B, C, D
are groups of their own, as in layer B.
"""

from itertools import product
from random import Random

from msgspec.structs import replace

from tests.papers.causal.literal import Coloured, PrintedBroker, PrintedSubscriber, PrintedVector
from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.gossip import CausalDissemination
from unisono.protocols.causal.messages import CausalFrame, CausalGossip, CausalRequest, FrameFate
from unisono.protocols.causal.order import CausalOrder, SettledFrame

CONFIG = CausalConfig(eps_ticks=1, life_ticks=3, spread_ticks=1, deadline_ticks_max=150, delay_ticks=10)
A, B, C, D = 1, 2, 3, 4
TOPIC = 100


def broker(me: int, *more: int) -> CausalOrder:
    """Of layer B: subscribed to itself since long ago."""
    order = CausalOrder(CONFIG, me)
    order.floors = dict.fromkeys((me, *more), 0)
    return order


def names(settled: list[SettledFrame], fate: FrameFate = FrameFate.DELIVERED) -> list[object]:
    return [each.frame.body for each in settled if each.fate is fate]


def test_p1_a_frame_waits_for_the_one_before_it_of_the_same_sender() -> None:
    literal, a = PrintedBroker("B", "AB"), PrintedBroker("A", "AB")
    m1, m2 = a.multicast("m1", "B", 100, 1), a.multicast("m2", "B", 100, 2)
    literal.receive(m2, 5)
    literal.receive(m1, 6)
    assert (literal.delivered, literal.discarded) == (["m2"], ["m1"])  # on time by 94

    sender, ours = broker(A), broker(B)
    f1, f2 = sender.send((B,), 100, "m1", 1), sender.send((B,), 100, "m2", 2)
    assert names(ours.receive(f2, 5)) == []
    assert names(ours.receive(f1, 6)) == ["m1", "m2"]


def test_p2_what_is_forced_out_together_leaves_in_order() -> None:
    a, b, c, d = (PrintedBroker(name, "ABCD") for name in "ABCD")
    d.multicast("m0", "C", 90, 1)
    z = d.multicast("z", "A", 90, 2)
    a.receive(z, 3)
    m1 = a.multicast("m1", "BC", 50, 4)
    b.receive(m1, 5)
    m2 = b.multicast("m2", "C", 50, 6)
    for message in (m2, m1):
        c.receive(message, 10)
    c.look(50)
    assert c.delivered == ["m2", "m1"]

    oa, ob, oc, od = (broker(each) for each in (A, B, C, D))
    od.send((C,), 90, "m0", 1)
    oa.receive(od.send((A,), 90, "z", 2), 3)
    f1 = oa.send((B, C), 50, "m1", 4)
    ob.receive(f1, 5)
    f2 = ob.send((C,), 50, "m2", 6)
    assert oc.receive(f2, 10) + oc.receive(f1, 10) + oc.pump(49) == []
    assert names(oc.pump(50)) == ["m1", "m2"]


def test_p3_a_deadline_that_nobody_looked_at_in_its_very_moment_still_counts() -> None:
    literal, a = PrintedBroker("C", "ABC"), PrintedBroker("A", "ABC")
    b = PrintedBroker("B", "ABC")
    b.receive(a.multicast("m1", "BC", 20, 1), 2)
    literal.receive(b.multicast("m2", "C", 20, 3), 4)
    literal.look(21)
    assert literal.delivered == []
    assert len(literal.waiting) == 1

    oa, ob, ours = broker(A), broker(B), broker(C)
    ob.receive(oa.send((B, C), 30, "m1", 1), 2)
    ours.receive(ob.send((C,), 20, "m2", 3), 4)
    assert names(ours.pump(21)) == ["m2"]


def test_p4_two_frames_of_one_tick_are_two() -> None:
    literal, a = PrintedBroker("B", "AB"), PrintedBroker("A", "AB")
    for name in ("m1", "m2"):
        literal.receive(a.multicast(name, "B", 100, 7), 8)
    assert literal.discarded == ["m2"]

    sender, ours = broker(A), broker(B)
    f1, f2 = sender.send((B,), 100, "m1", 7), sender.send((B,), 100, "m2", 7)
    assert (f1.stamp, f2.stamp) == (7, 8)
    assert names(ours.receive(f1, 8) + ours.receive(f2, 8)) == ["m1", "m2"]


def test_p5_a_late_frame_never_costs_one_that_is_on_time() -> None:
    literal, a = PrintedBroker("B", "AB", lambda late, wrong: late and wrong), PrintedBroker("A", "AB")
    m0, m1 = a.multicast("m0", "B", 100, 1), a.multicast("m1", "B", 10, 2)
    literal.receive(m1, 15)  # the prose: late and violating
    literal.receive(m0, 20)  # on time by 80, and now there is nothing it could be delivered before
    literal.look(100)
    assert literal.delivered == ["m1", "m0"]

    for policy, fate in (("drop", FrameFate.LATE), ("deliver", FrameFate.LATE_BLOCKED)):
        sender, ours = broker(A), CausalOrder(replace(CONFIG, late=policy), B)
        ours.floors = {B: 0}
        f0, f1 = sender.send((B,), 100, "m0", 1), sender.send((B,), 10, "m1", 2)
        assert [each.fate for each in ours.receive(f1, 15)] == [fate]
        assert names(ours.receive(f0, 20)) == ["m0"]


def figure_3() -> list[CausalFrame]:
    """red B1, yellow A1, blue B2, red B3: rounds 1 to 4, every broker delivers what the other sent."""
    a, b = broker(A, TOPIC), broker(B, TOPIC)
    frames = []
    for sender, name, stamp in ((b, "red B1", 1), (a, "yellow A1", 2), (b, "blue B2", 3), (b, "red B3", 4)):
        frame = sender.send((TOPIC,), stamp + CONFIG.life_ticks, name, stamp)
        a.receive(frame, stamp)
        b.receive(frame, stamp)
        frames.append(frame)
    return frames


def test_p6_figure_3_is_delivered_to_a_subscriber_that_misses_nothing() -> None:
    red, yellow, blue = range(3)
    literal = PrintedSubscriber("AB")
    for name, sender, colours in (
        ("red B1", "B", {"A": -1, "B": red}), ("yellow A1", "A", {"A": yellow, "B": red}),
        ("blue B2", "B", {"A": yellow, "B": blue}), ("red B3", "B", {"A": yellow, "B": red}),
    ):  # fmt: skip
        literal.receive(Coloured(name, sender, colours))
    assert literal.discarded == ["red B3"]

    ours = CausalOrder(CONFIG)
    ours.floors = {TOPIC: 0}
    got = [name for frame in figure_3() for name in names(ours.receive(frame, frame.stamp))]
    assert got == ["red B1", "yellow A1", "blue B2", "red B3"]


def test_p6_with_red_b1_lost_the_rest_leaves_together_when_it_expires() -> None:
    ours = CausalOrder(CONFIG)
    ours.floors = {TOPIC: 0}
    for frame in figure_3()[1:]:
        assert ours.receive(frame, frame.stamp) == []
    settled = ours.pump(5)
    assert names(settled) == ["yellow A1", "blue B2", "red B3"]
    assert settled[0].bypassed == (((B, 1), TOPIC),)
    assert names(ours.receive(figure_3()[0], 5), FrameFate.SUCC_DELIVERED) == ["red B1"]


def decode(colour: int, now: int, colours: int, skew: int) -> int:
    """The newest round that a colour can mean."""
    newest = now + skew
    return newest - (newest - colour) % colours


def test_p7_as_many_colours_as_rounds_are_too_few() -> None:
    assert decode(1 % 3, now=4, colours=3, skew=0) == 4  # it was stamped in round 1
    for life, delay, skew in product(range(1, 5), range(3), range(3)):
        enough = life + delay + 2 * skew + 1
        stamps = [(now, r) for now in range(20, 40) for r in range(now - life - delay - skew, now + skew + 1)]
        assert all(decode(r % enough, now, enough, skew) == r for now, r in stamps)
        assert any(decode(r % (enough - 1), now, enough - 1, skew) != r for now, r in stamps)


def test_p8_what_a_broker_has_delivered_is_before_what_it_sends() -> None:
    literal_a, literal_b, literal = PrintedVector(A), PrintedVector(B), CausalOrder(CONFIG)
    literal.floors = {TOPIC: 0}
    l1 = literal_a.frame(1, TOPIC, 3)
    literal_b.deliver(l1)
    l2 = literal_b.frame(2, TOPIC, 3)
    assert [e.frame.sender for e in literal.receive(l2, 2) + literal.receive(l1, 2)] == [B, A]

    a, b, ours = broker(A, TOPIC), broker(B, TOPIC), CausalOrder(CONFIG)
    ours.floors = {TOPIC: 0}
    f1 = a.send((TOPIC,), 4, "f1", 1)
    b.receive(f1, 1)
    f2 = b.send((TOPIC,), 5, "f2", 2)
    assert names(ours.receive(f2, 2) + ours.receive(f1, 2)) == ["f1", "f2"]


def test_p10_vectors_say_what_is_known_and_not_what_can_be_had() -> None:
    """Request(m) asks for whatever the other's matrix has beyond one's own: also what is for others, but never for what
    is missing beneath the newest."""
    asker, a = PrintedBroker("C", "ABC"), PrintedBroker("A", "ABC")
    a.multicast("to B alone", "B", 90, 1)
    a.multicast("lost", "C", 90, 2)
    second = a.multicast("newest", "C", 20, 3)
    assert asker.wants(a.past) == [("A", "B"), ("A", "C")]  # the first is not for C
    asker.receive(second, 4)
    asker.look(20)
    assert asker.delivered == ["newest"]
    assert asker.wants(a.past) == []  # and something is missing

    ours = CausalDissemination(Address("c"), "local", broker(C), (), Random(1))
    sender = broker(A)
    sender.send((B,), 90, "to B alone", 1)
    lost, newest = sender.send((C,), 90, "lost", 2), sender.send((C,), 20, "newest", 3)
    theirs = CausalDissemination(Address("a"), "local", sender, (), Random(1))
    for frame in (lost, newest):
        theirs.keep(frame, 3)
    ours._order.receive(newest, 4)
    heard = CausalGossip(theirs.me(4), 4, digest=theirs.digest((C,)))
    (request,) = [effect.message.ids for effect in ours.hear(heard, 4) if isinstance(effect.message, CausalRequest)]
    assert request == (lost.id,)


def test_p9_a_subscriber_outside_a_group_does_not_wait_for_it() -> None:
    other = TOPIC + 1
    literal = PrintedVector(A)  # per broker, without groups
    literal.frame(1, TOPIC, 3)
    l2 = literal.frame(2, TOPIC, 3)
    outside = CausalOrder(CONFIG)
    outside.floors = {TOPIC: 0}
    assert outside.receive(l2, 2) == []  # waits for a frame that was never for it

    a, ours = broker(A), CausalOrder(CONFIG)
    ours.floors = {other: 0}
    a.send((TOPIC,), 4, "f1", 1)
    assert names(ours.receive(a.send((other,), 5, "f2", 2), 2)) == ["f2"]
