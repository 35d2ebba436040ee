"""Whatever members say in sound datagrams, machines go on: nobody's word stops a broker or a client, or grows without
bound."""

from random import Random
from typing import Any

import msgspec
import pytest

from tests.papers.causal.test_gossip import CONFIG, ME, PEER, THIRD, G, T, frame, member, said
from unisono.machine import Effect, Fired, Refuse, Restarted, Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.causal.broker import CausalBroker
from unisono.protocols.causal.client import CausalClient
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.messages import (
    CausalDigest,
    CausalEmitted,
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalMember,
    CausalPublication,
    CausalRequest,
    FromMember,
)
from unisono.protocols.causal.wire import (
    DATAGRAM_BYTES,
    FRAME_BYTES_MAX,
    FRAMES,
    BadDatagram,
    DatagramCodec,
    pack_frame,
)

RULES = ("WIRE", "CLIENT")
INCARNATION = 5
GROUPS = CausalGroups(("a.>", "b.*"))
CODEC = DatagramCodec(CONFIG)
NOW = 1000


class Stranger:
    """Says what the wire has room for, most of it near what others say."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)

    def number(self) -> int:
        near = NOW + self.dice.randint(-260, 12)
        return self.dice.choice((near, near, near, 0, 2**16 - 1, 2**62, self.dice.randrange(2**62)))

    def frame(self) -> CausalFrame:
        dice = self.dice
        stamp = dice.choice((NOW + dice.randint(-200, 4), NOW, self.number()))
        groups = tuple(sorted({dice.choice((0, 1, 2, 2**16 - 1)) for _ in range(dice.randint(1, 3))}))
        past = {}
        for _ in range(dice.choice((0, 1, 3, 40))):
            age, lasts = dice.randint(1, 220), dice.randint(0, CONFIG.deadline_ticks_max)
            if stamp > 300:
                past[dice.randrange(2**16), dice.choice((0, 1, 2, 9))] = (
                    stamp - age,
                    max(stamp - age + lasts, stamp - 4),
                )
        names = ("a.x", "b.y", "t", "", "a.*", ">", "no topic!", "x" * 300)
        body = tuple(
            Event(dice.choice(("p", "p.t", "")), self.number(), dice.choice(names), dice.randbytes(dice.randint(0, 20)))
            for _ in range(dice.randint(0, 3))
        )
        sender = dice.choice((INCARNATION, 1, 2, 2**16 - 1))
        return CausalFrame(sender, stamp, groups, stamp + dice.randint(0, CONFIG.deadline_ticks_max), past, body)

    def message(self, source: Address) -> FromMember:
        dice = self.dice
        frames = tuple(self.frame() for _ in range(dice.randint(0, 3)))
        ids = tuple((self.number(), self.number()) for _ in range(dice.randint(0, 30)))
        match dice.randrange(3):
            case 0:
                return CausalFrames(source, frames)
            case 1:
                return CausalRequest(source, ids)
        digests = tuple(
            CausalDigest(dice.choice((1, 2, -7, 2**63)), self.number(), dice.randbytes(dice.choice((0, 4, 60))))
            for _ in range(dice.randint(0, 4))
        )
        others = tuple(
            CausalMember(Address(dice.choice(("x", "", "1.2.3.4:5", str(PEER)))), "?", (0, -3, 7), self.number())
            for _ in range(dice.randint(0, 20))
        )
        left = tuple((Address(dice.choice(("x", str(THIRD)))), self.number()) for _ in range(dice.randint(0, 20)))
        return CausalGossip(CausalMember(source, "?", (0,), 0), self.number(), frames, digests, others, left)


def travels(message: FromMember) -> list[FromMember]:
    """As the datagrams of it are read."""
    read = []
    for data in CODEC.encode(message):
        assert len(data) <= DATAGRAM_BYTES
        got, _ = CODEC.decode(data)
        read += [] if got is None else [got]
    return read


def spoken(effects: list[Effect]) -> None:
    """Whatever is answered can be said."""
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, FromMember):
            list(CODEC.encode(effect.message))


def machines() -> tuple[CausalBroker, CausalClient]:
    broker = CausalBroker(PEER, INCARNATION, GROUPS, CONFIG, Random(1))
    client = CausalClient(ME, lambda topic: f"t{topic}" if topic else "a.>", GROUPS, CONFIG, Random(2))
    broker.handle(Restarted(), Micros((NOW - 100) * T))
    client.handle(Subscribe((Topic(0), Topic(1))), Micros((NOW - 100) * T))
    return broker, client


@pytest.mark.parametrize("seed", range(8))
def test_whatever_strangers_say_brokers_and_clients_go_on(seed: int) -> None:
    stranger, (broker, client) = Stranger(seed), machines()
    now = Micros(NOW * T)
    for turn in range(150):
        for message in travels(stranger.message(Address(f"10.0.0.{turn % 40}:1"))):
            for machine in (broker, client):
                spoken(machine.handle(message, now))
        if turn % 5 == 0:
            for machine in (broker, client):
                spoken(machine.handle(Fired("round"), now))
                spoken(machine.handle(Fired("due"), now))
    event = Event("c.t1", 1, "t1")
    publication = CausalPublication(Address("c"), INCARNATION, 1, GROUPS.of("t1"), (event,), (), 0, NOW + 10)
    effects = broker.handle(publication, now)
    late = broker.handle(Fired("emit"), Micros((NOW + 9) * T))
    assert said(effects + late, CausalEmitted) != []


def test_what_others_say_in_our_name_is_refused_and_our_own_word_still_leaves() -> None:
    """Taken for ours, it would make our own next frame a copy, and stop us."""
    broker, _ = machines()
    now = Micros(NOW * T)
    forged = tuple(frame(stamp, sender=INCARNATION) for stamp in range(NOW, NOW + CONFIG.eps_ticks + 1))
    refused = broker.handle(CausalFrames(THIRD, (*forged, frame(NOW, sender=9))), now)
    assert [type(effect) for effect in refused if isinstance(effect, Refuse)] == [Refuse]
    assert broker.report()["in_our_name"] == len(forged)
    assert broker.mesh.gossip.held == 1
    event = Event("c.t1", 1, "t1")
    publication = CausalPublication(Address("c"), INCARNATION, 1, GROUPS.of("t1"), (event,), (), 0, NOW + 10)
    assert said(broker.handle(publication, now), CausalEmitted) != []
    own = next(f for f in broker.mesh.gossip._have.values() if f.sender == INCARNATION)
    broker.handle(CausalFrames(THIRD, (own,)), now)  # our own word, passed on to us
    assert broker.report()["in_our_name"] == len(forged)


def test_a_frame_that_nobody_could_pass_on_is_not_taken() -> None:
    large = frame(NOW, body=(Event("p", 1, "t", bytes(FRAME_BYTES_MAX)),))
    content = msgspec.msgpack.encode([ME])
    too_large = CODEC._look_up(pack_frame(large, CONFIG))
    assert CODEC.decode(CODEC._seal(FRAMES, content, [too_large])) == (CausalFrames(ME, ()), [BadDatagram.FRAME])
    short = replaced_form(frame(NOW, body=tuple(Event("p", i, "t") for i in range(1000))))
    (taken,), bad = _frames(CODEC._seal(FRAMES, content, [CODEC._look_up(short)]))
    assert bad == []
    both = CausalFrames(ME, (taken, frame(NOW)))
    assert [one for data in CODEC.encode(both) for one in _frames(data)[0]] == [taken, frame(NOW)]  # as it came
    forgotten = DatagramCodec(CONFIG)
    assert [one for data in forgotten.encode(both) for one in _frames(data)[0]] == [frame(NOW)]


def replaced_form(sound: CausalFrame) -> bytes:
    """The same with events in the shortest form that can be read: what has a default is left out."""
    ours = msgspec.msgpack.encode(sound.body)
    rows = [{"publisher": e.publisher, "sequence": e.sequence, "topic": e.topic} for e in sound.body]
    short = msgspec.msgpack.encode(rows)
    data = pack_frame(sound, CONFIG)
    return data[: -len(ours) - 4] + len(short).to_bytes(4, "big") + short


def _frames(data: bytes) -> tuple[tuple[CausalFrame, ...], list[BadDatagram]]:
    message, bad = CODEC.decode(data)
    assert isinstance(message, CausalFrames)
    return message.frames, bad


def test_who_describes_himself_at_length_is_not_told_on() -> None:
    for wordy in (
        member(Address("x" * 200)),
        member(ME, region="r" * 300),
        member(ME, groups=tuple(range(300))),
    ):
        (data,) = CODEC.encode(CausalGossip(wordy, NOW))
        assert CODEC.decode(data) == (None, [BadDatagram.CONTENT])
    fine: Any = member(ME, region="r" * 255, groups=tuple(range(256)))
    (data,) = CODEC.encode(CausalGossip(fine, NOW, left=((ME, NOW),)))
    assert CODEC.decode(data)[1] == []
    assert G in fine.groups
