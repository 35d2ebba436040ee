"""Hostile parties: whatever well-formed messages a client or a peer invents, a node answers or refuses, and lives.

Random bytes are in test_frames; here are random values of every message type, with small numbers so that they collide
with what exists, and enormous ones so that they do not.
"""

import contextlib
import random
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Meta, Struct

from unisono.errors import PeerError, UnisonoError
from unisono.machine import Send
from unisono.model.homes import slot
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.naming import messages as naming
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import BrokerMessage, Creates, Mark, Pieces, Stamps, Taken, Void, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.sequencer_codec import ATTRIBUTES, from_item, to_item
from unisono.runtime.links import control
from unisono.runtime.links.frames import Codec, FrameReader, Hello, Letter, Rejected, decode_hello, encode_frame
from unisono.runtime.node.ordering import TREE_TOPICS
from unisono.structures.sessions import Frame, Sessions

CLIENTS = [t for t in get_args(control.Logged) if isinstance(t, type) and t in get_args(control.FromClients["tree"])]
"""What a client may send and the machine gets; the rest is refused, or answered by the process."""
NAMES = ("a", "b", "b.c", "", "x y", "_unisono.x", "n", "c1", "c1/1", "c2/p", "hub")


def invent(dice: random.Random, kind: Any, depth: int = 0) -> Any:
    """A random value of a type as messages have it."""
    kind = getattr(kind, "__supertype__", kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return within(invent(dice, inner[0], depth), inner[1])
    if kind is Any:
        return dice.choice([None, 0, "x", [], {}])
    if kind is int:
        return dice.choice([0, 1, 2, 3, dice.randrange(20), topic(dice), -1, 2**62])
    if kind is str:
        return dice.choice(NAMES)
    if kind is bool:
        return dice.random() < 0.5
    if kind is float:
        return dice.random()
    if kind is bytes:
        return dice.randbytes(dice.randrange(5))
    if kind is type(None):
        return None
    if origin is Literal:
        return dice.choice(inner)
    if origin in (Union, types.UnionType):
        return invent(dice, dice.choice(inner), depth)
    count = dice.randrange(3 if depth < 3 else 1)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is ...:
            return tuple(invent(dice, inner[0], depth + 1) for _ in range(count))
        return tuple(invent(dice, each, depth + 1) for each in inner)
    if origin is list:
        return [invent(dice, inner[0], depth + 1) for _ in range(count)]
    if origin is dict:
        return {invent(dice, inner[0], depth + 1): invent(dice, inner[1], depth + 1) for _ in range(count)}
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, tuple):
        return kind(*(invent(dice, hints[name], depth + 1) for name in kind._fields))
    assert issubclass(kind, Struct), kind
    return kind(**{name: invent(dice, hints[name], depth + 1) for name in kind.__struct_fields__})


def within(value: Any, bounds: Meta) -> Any:
    """What passes the door: numbers outside are refused there (tests/runtime/hostile)."""
    if isinstance(value, int):
        most = bounds.le if bounds.le is not None else bounds.lt - 1 if bounds.lt is not None else value
        return max(int(bounds.ge or 0), min(int(most), value))
    return value


def topic(dice: random.Random) -> int:
    """One of the topics that are born first."""
    return dice.randrange(1, 4) << 16 | slot(Address("n"))


def node() -> Sessions:
    me = Address("n")
    topic_names = TopicNames(
        me, TopicManager(me, None, (Address("hub"),), (), {}, SequencerConfig()), None, TREE_TOPICS
    )
    return Sessions(topic_names, me, (Address("hub"),), control.NodeMessage, BrokerMessage)


def honest(machine: Sessions, number: int) -> bool:
    """An honest client opens a topic and gets its numbers, whatever happened before."""
    client = Address(f"honest{number}")
    machine.handle(naming.OpenTopics(client, number, ("a",)), Micros(number))
    topic_names = machine.inside
    assert isinstance(topic_names, TopicNames)
    mine = topic_names.mine["a"]
    effects = machine.handle(Creates(client, (Wanted(mine, 1, 3),)), Micros(number))
    return any(isinstance(effect, Send) and effect.message == Taken({mine: 3}) for effect in effects)


def attack(seed: int, count: int) -> None:
    dice = random.Random(seed)
    machine = node()
    machine.handle(naming.OpenTopics(Address("c1"), 1, ("a", "b", "b.c")), Micros(0))
    for number in range(count):
        kind = dice.choice(CLIENTS)
        message = invent(dice, kind)
        machine.handle(message, Micros(number))
    assert honest(machine, count)
    msgspec.msgpack.encode(machine.snapshot())


@pytest.mark.parametrize("seed", range(10))
def test_no_client_can_break_a_node_or_stall_others(seed: int) -> None:
    attack(seed, 1_000)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 300))
def test_no_client_can_break_a_node_in_many_tries(seed: int) -> None:
    attack(seed, 5_000)


@pytest.mark.parametrize("kind", get_args(control.ToNode), ids=lambda kind: getattr(kind, "__name__", str(kind)))
def test_every_letter_to_a_node_says_whose_it_is(kind: Any) -> None:
    """Nobody is asked to prove that he is whom a message names, unless `claims` finds the name."""
    letter = Frame(Address("n"), 1, None) if get_origin(kind) is Frame else invent(random.Random(1), kind)
    names = [name for name in ("source", "client", "sid", "publisher", "node") if name in letter.__struct_fields__]
    assert control.claims(letter) == getattr(letter, names[0])


@pytest.mark.parametrize("seed", range(3))
def test_every_message_survives_the_wire_and_damage_is_a_typed_refusal(seed: int) -> None:
    mangle(seed, 2_000)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 150))
def test_a_million_damaged_frames_are_typed_refusals(seed: int) -> None:
    mangle(seed, 20_000)


def samples(dice: random.Random) -> list[bytes]:
    """Whole frames of every kind of message that a connection may carry, alone and inside a session's frame."""
    codec = Codec(control.Letters)
    kinds = [kind for kind in get_args(control.Letters) if isinstance(kind, type) and not issubclass(kind, Frame)]
    found = [encode_frame(Hello("client", (Address("c1"),), nonce=b"n")), encode_frame(Rejected("no"))]
    for kind in kinds * 5 + list(get_args(control.NodeMessage)) * 5:
        try:
            message = invent(dice, kind)
            if kind in get_args(control.NodeMessage):
                message = Frame(Address("hub"), dice.randrange(5), message)
            frame = encode_frame([Letter(Address("n"), message)])
        except (OverflowError, UnisonoError):  # a number that no wire carries, or a value that refuses to exist
            continue
        assert codec.decode(frame[4:]) == [Letter(Address("n"), message)]
        found.append(frame)
    return found


def damage(dice: random.Random, whole: bytes) -> bytes:
    data = bytearray(whole)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0 if at < len(data):
                data[at] = dice.randrange(256)
            case 1:
                del data[at : at + dice.randrange(1, 5)]
            case 2:
                data[:4] = (len(data) - 4).to_bytes(4, "big")  # the length is right again: the body has to be read
            case _:
                data[at:at] = dice.randbytes(dice.randrange(1, 5))
    return bytes(data)


def mangle(seed: int, count: int) -> None:
    """Damaged frames, one after the other and cut anywhere, end in messages or in a PeerError, and are not kept."""
    dice = random.Random(seed)
    codec, longest = Codec(control.Letters), 4096
    good = [frame for frame in samples(dice) if len(frame) < longest]
    reader = FrameReader(longest)
    for _ in range(count):
        data = damage(dice, dice.choice(good))
        cut = dice.randrange(len(data) + 1)
        try:
            for body in [*reader.feed(data[:cut]), *reader.feed(data[cut:])]:
                (codec.decode if dice.random() < 0.9 else decode_hello)(body)
        except PeerError:
            reader = FrameReader(longest)  # its connection is closed
        assert len(reader._rest) <= longest + 4


@pytest.mark.parametrize("seed", range(3))
def test_damaged_items_of_a_broker_are_typed_refusals(seed: int) -> None:
    scramble(seed, 2_000)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_damaged_items_of_a_broker_are_typed_refusals(seed: int) -> None:
    scramble(seed, 20_000)


def scramble(seed: int, count: int) -> None:
    """Stamps, marks and voids as anybody may publish them where the broker does not tell nodes from clients."""
    dice = random.Random(seed)
    items = []
    for kind in [Stamps, Pieces, Void, Mark] * 10:
        with contextlib.suppress(OverflowError):
            items.append(to_item("a", invent(dice, kind), True))
    for _ in range(count):
        item = dice.choice(items)
        headers = {ATTRIBUTES: dice.choice(["", "{}", '{"a":1}', "["])}
        plain = Item("a", item.payload, "c1/p", dice.choice([0, 1, -1, 2**62]), False, headers)
        for each in (Item("a", damage(dice, item.payload), control=True), plain):
            with contextlib.suppress(PeerError):
                from_item(each)
