"""Gossip: what is pushed, named and asked for, by members that hold frames, and machines of brokers and clients."""

from random import Random
from typing import Any

from msgspec.structs import replace

from unisono.machine import (
    Effect,
    Send,
)
from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.gossip import CausalDissemination
from unisono.protocols.causal.mesh import CausalMesh, order_of
from unisono.protocols.causal.messages import (
    CausalDigest,
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalMember,
    CausalRequest,
    FrameFate,
)
from unisono.protocols.causal.views import CausalView

RULES = ("P10", "GOSSIP", "H13")
CONFIG = CausalConfig()
T = CONFIG.tick_us
G, OTHER = 0, 1
ME, PEER, THIRD = Address("me"), Address("peer"), Address("third")


def member(address: Address, seen: int = 100, groups: tuple[int, ...] = (G,), region: str = "local") -> CausalMember:
    return CausalMember(address, region, groups, seen)


def gossip_of(address: Address = ME, groups: tuple[int, ...] = (G,)) -> CausalDissemination:
    order = order_of(CONFIG)
    order.floors = dict.fromkeys(groups, 0)
    made = CausalDissemination(address, "local", order, (), Random(1))
    made.view.add(member(PEER), 100)
    return made


def frame(stamp: int, sender: int = 1, group: int = G, deadline: int = 0, body: Any = ()) -> CausalFrame:
    return CausalFrame(sender, stamp, (group,), deadline or stamp + CONFIG.life_ticks, {}, body)


def said(effects: list[Effect], kind: type) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def test_a_frame_is_pushed_once_and_named_while_it_is_on_time() -> None:
    gossip = gossip_of()
    gossip.keep(frame(100), 100)
    first, second = (said(gossip.round(clock), CausalGossip)[0] for clock in (100, 102))
    assert [f.stamp for f in first.push] == [100]
    assert second.push == ()
    assert second.digest == (CausalDigest(1, 100, b"\x01"),)
    later = [gossip.round(141 + i) for i in range(CONFIG.idle_rounds)]
    assert [bool(effects) for effects in later] == [False] * (CONFIG.idle_rounds - 1) + [True]
    assert said(later[-1], CausalGossip)[0].digest == ()


def test_who_knows_nobody_is_answered_at_once_and_nobody_else() -> None:
    gossip = gossip_of()
    gossip.view.add(member(PEER), 100)
    alone = CausalGossip(member(THIRD), 100)
    assert [message.member.address for message in said(gossip.hear(alone, 100), CausalGossip)] == [ME]
    assert said(gossip.hear(alone, 100), CausalGossip) == []
    other = CausalGossip(member(Address("other")), 100, members=(member(PEER),))
    assert said(gossip.hear(other, 100), CausalGossip) == []
    assert gossip.held == 0


def test_a_digest_states_what_is_held_and_not_what_is_known() -> None:
    """The paper's summary is the newest stamp known: what is missing beneath it cannot be asked for (C10)."""
    gossip = gossip_of()
    for stamp in (100, 102, 109):
        gossip.keep(frame(stamp), 110)
    assert gossip.digest() == (CausalDigest(1, 100, bytes([0b101, 0b10])),)


def test_a_digest_leaves_out_what_is_of_no_use_to_its_reader() -> None:
    """By the paper a member asks for whatever somebody else's vector has, also what is for others (C10)."""
    gossip = gossip_of()
    gossip.keep(frame(100, group=OTHER), 100)
    assert said(gossip.round(100), CausalGossip)[0].digest == ()
    assert gossip.digest((OTHER,)) != ()


def ask(gossip: CausalDissemination, *stamps: int, clock: int = 110) -> tuple[tuple[int, int], ...]:
    first = min(stamps)
    bits = sum(1 << (stamp - first) for stamp in stamps)
    digest = (CausalDigest(1, first, bits.to_bytes(40, "little")),)
    heard = CausalGossip(member(PEER, clock), clock, digest=digest)
    requests = said(gossip.hear(heard, clock), CausalRequest)
    return requests[0].ids if requests else ()


def test_what_is_lacking_is_asked_for_the_oldest_first() -> None:
    gossip = gossip_of()
    gossip.keep(frame(103), 110)
    assert ask(gossip, 105, 103, 101) == ((1, 101), (1, 105))
    assert ask(gossip, 105) == ()  # it is on its way
    assert ask(gossip, 105, clock=110 + CONFIG.round_ticks) == ((1, 105),)
    assert len(ask(gossip_of(), *range(100, 130), clock=130)) == CONFIG.request_max


def test_nothing_is_asked_for_that_could_not_be_taken() -> None:
    gossip = gossip_of()
    assert ask(gossip, 110 + CONFIG.eps_ticks + 1) == ()  # from the future
    gossip._order.floors = {G: 108}
    assert ask(gossip, 105) == ()  # before the subscription
    assert ask(gossip, 108) == ((1, 108),)


def test_a_request_is_answered_within_bounds() -> None:
    gossip = gossip_of()
    for stamp in range(100, 130):
        gossip.keep(frame(stamp), 130)
    request = CausalRequest(PEER, tuple((1, stamp) for stamp in range(99, 130)))
    (answer,) = said(gossip.answer(request, 130), CausalFrames)
    assert [f.stamp for f in answer.frames] == list(range(100, 99 + CONFIG.request_max))
    assert gossip.answer(CausalRequest(PEER, ((1, 99),)), 130) == []
    for _ in range(CONFIG.requests_per_round):
        gossip.answer(request, 130)
    assert gossip.answer(request, 130) == []
    assert gossip.counts["requests_refused"] > 0
    gossip.round(131)
    assert said(gossip.answer(request, 131), CausalFrames) != []
    assert said(gossip.answer(request, 150), CausalFrames)[0].frames[0].stamp == 110  # the older ones are over


def test_what_is_held_for_others_has_a_bound_and_own_frames_none() -> None:
    order = order_of(replace(CONFIG, held_max=2), 5)
    gossip = CausalDissemination(ME, "local", order, (), Random(1))
    for stamp in (100, 101, 102):
        gossip.keep(frame(stamp), 102)
    gossip.keep(frame(102, sender=5), 102)
    assert [(row.sender, row.first) for row in gossip.digest()] == [(1, 100), (5, 102)]
    assert gossip.counts == {"not_held": 1}


def test_a_frame_for_others_is_passed_on_and_asked_for_once() -> None:
    order = order_of(CONFIG)
    order.floors = {OTHER: 0}
    mesh = CausalMesh(ME, "local", order, (), Random(1))
    assert [s.fate for s in mesh.take((frame(100),), 100)] == [FrameFate.NOT_MINE]
    assert mesh.gossip.held == 1
    for clock in (101, 150, 200):
        assert ask(mesh.gossip, 100, clock=clock) == ()
        mesh.gossip.round(clock)


# Whom a member knows.


def view(**settings: Any) -> CausalView:
    return CausalView(ME, "eu", replace(CONFIG, **settings), Random(3))


def test_a_view_is_bounded_and_without_ourselves() -> None:
    made = view(view_max=4)
    for i in range(20):
        made.add(member(Address(f"m{i}")), 100)
    made.add(member(ME), 100)
    assert len(made) == 4
    assert ME not in made


def test_who_is_not_heard_of_fades_and_is_not_told_of_again() -> None:
    made = view(fade_ticks=50)
    made.add(member(PEER, 100), 100)
    made.add(member(THIRD, 140), 140)
    made.fade(151)
    assert (PEER in made, THIRD in made) == (False, True)
    made.add(member(PEER, 100), 151)  # somebody still tells of it
    assert PEER not in made
    made.add(member(PEER, 10**9), 151)  # nobody is alive in the future
    assert made._members[PEER].seen == 151


def test_who_has_left_is_not_believed_to_be_there_for_a_while() -> None:
    made = view()
    made.add(member(PEER), 100)
    made.remove(PEER, 100, 101)
    made.add(member(PEER), 101)
    assert PEER not in made
    assert made.left() == ((PEER, 100),)
    made.fade(101 + CONFIG.spread_ticks)
    made.add(member(PEER, 130), 130)
    assert PEER in made


def test_most_partners_are_of_the_own_region() -> None:
    made = view(far=0.15)
    for i in range(15):
        made.add(member(Address(f"m{i}"), region="eu" if i % 2 else "us"), 100)
    far = sum(partner.region == "us" for _ in range(400) for partner in made.partners(3))
    assert 0.10 < far / 1200 < 0.25
    assert {p.region for _ in range(20) for p in view_of_strangers().partners(2)} == {"us"}


def view_of_strangers() -> CausalView:
    made = view(far=0.0)
    for i in range(4):
        made.add(member(Address(f"m{i}"), region="us"), 100)
    return made


def test_whoever_knows_nobody_asks_the_brokers() -> None:
    made = view()
    made.seed((member(PEER), member(ME)))
    assert [partner.address for partner in made.partners(3)] == [PEER]
