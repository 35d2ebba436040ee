"""Datagrams: what goes out comes in, and whatever is wrong with one is told by its name."""

from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from tests.papers.causal.histories import Histories, case_of
from unisono.errors import MisuseError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.causal import wire
from unisono.protocols.causal.config import ENTRIES_MAX, CausalConfig, check_causal, spread_of
from unisono.protocols.causal.messages import (
    CausalDigest,
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalMember,
    CausalRequest,
    FromMember,
)
from unisono.protocols.causal.wire import BadDatagram, DatagramCodec, pack_frame, unpack_frame

RULES = ("WIRE",)
CONFIG = CausalConfig()
CODEC = DatagramCodec(CONFIG, "d", "secret")
ME = Address("127.0.0.1:4000")
FRAME = CausalFrame(3, 1000, (1, 4), 1040, {(3, 1): (999, 1039), (5, 4): (990, 1020)}, (Event("c", 1, "t", b"x"),))


def messages() -> list[FromMember]:
    member = CausalMember(ME, "eu", (1, 4), 1000)
    return [
        CausalGossip(member, 1000, (FRAME,), (CausalDigest(3, 990, b"\x05"),), (member,), ((Address("gone"), 990),)),
        CausalRequest(ME, ((3, 1000), (5, 7))),
        CausalFrames(ME, (FRAME, replace(FRAME, stamp=1001))),
    ]


def one(codec: DatagramCodec, message: FromMember) -> bytes:
    (data,) = codec.encode(message)
    return data


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_what_goes_out_comes_in(message: FromMember) -> None:
    assert CODEC.decode(one(CODEC, message)) == (message, [])


def test_what_was_over_long_ago_is_still_a_sound_entry() -> None:
    """Where late frames are delivered entries stay until the horizon, longer than any deadline."""
    config = replace(CONFIG, late="deliver")
    old = CONFIG.horizon_ticks + CONFIG.eps_ticks
    frame = replace(FRAME, past={(5, 4): (FRAME.stamp - old, FRAME.stamp - old + 9)})
    (entry,) = unpack_frame(pack_frame(frame, config), config).past.values()
    assert entry == (FRAME.stamp - old, FRAME.stamp - old + CONFIG.deadline_ticks_max)


def test_every_frame_of_random_worlds_survives_the_wire() -> None:
    frames = 0
    for seed in range(3):
        world = Histories(case_of("all"), seed)
        config = world.case.config
        for member in world.run().clients:
            for frame in member.accepted:
                frames += 1
                assert unpack_frame(pack_frame(frame, config), config) == frame
    assert frames > 50


def test_an_entry_that_is_over_reads_as_over_within_eps() -> None:
    frame = replace(FRAME, past={(5, 4): (900, 910)})
    (entry,) = unpack_frame(pack_frame(frame, CONFIG), CONFIG).past.values()
    assert entry == (900, frame.stamp - CONFIG.eps_ticks)


def test_many_frames_travel_in_several_datagrams() -> None:
    large = tuple(replace(FRAME, stamp=1000 + i, body=(Event("c", i, "t", bytes(9000)),)) for i in range(1, 9))
    gossip = replace(messages()[0], push=large)
    datagrams = list(CODEC.encode(gossip))
    assert len(datagrams) == 3
    assert max(map(len, datagrams)) < wire.DATAGRAM_BYTES
    got = [frame for data in datagrams for frame in _frames_of(CODEC.decode(data)[0])]
    assert got == list(large)


def test_small_frames_travel_in_datagrams_that_are_read() -> None:
    stamps = range(1000, 1001 + wire.FRAMES_MAX)
    many = tuple(replace(FRAME, stamp=stamp, deadline=stamp + 40, past={}) for stamp in stamps)
    datagrams = list(CODEC.encode(CausalFrames(ME, many)))
    assert [len(_frames_of(CODEC.decode(data)[0])) for data in datagrams] == [wire.FRAMES_MAX, 1]


def test_whatever_is_changed_in_a_datagram_breaks_its_tag() -> None:
    """Also in a frame of which an unchanged copy has come before: that is hashed once, and compared in full."""
    codec = DatagramCodec(CONFIG, "d", "secret")
    assert codec.decode(GOOD) == (messages()[0], [])
    for place in range(8, len(GOOD)):
        for codec in (CODEC, DatagramCodec(CONFIG, "d", "secret")):
            message, bad = codec.decode(GOOD[:place] + bytes([GOOD[place] ^ 1]) + GOOD[place + 1 :])
            assert (message, bad[0] in (BadDatagram.TAG, BadDatagram.CONTENT)) == (None, True)


def _frames_of(message: FromMember | None) -> tuple[CausalFrame, ...]:
    assert isinstance(message, CausalGossip | CausalFrames)
    return message.push if isinstance(message, CausalGossip) else message.frames


def sealed(kind: int, content: bytes, *frames: bytes) -> bytes:
    return CODEC._seal(kind, content, [CODEC._look_up(frame) for frame in frames])


GOOD = one(CODEC, messages()[0])


@pytest.mark.parametrize(
    ("data", "bad"),
    [
        (b"", BadDatagram.SHORT),
        (GOOD[:12], BadDatagram.SHORT),
        (bytes(wire.DATAGRAM_BYTES + 1), BadDatagram.OVERSIZED),
        (b"\0" + GOOD[1:], BadDatagram.MAGIC),
        (GOOD[:2] + b"\7" + GOOD[3:], BadDatagram.VERSION),
        (GOOD[:3] + b"\7" + GOOD[4:], BadDatagram.KIND),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), BadDatagram.TAG),
        (one(DatagramCodec(CONFIG, "d", "other"), messages()[0]), BadDatagram.TAG),
        (one(DatagramCodec(CONFIG, "d"), messages()[0]), BadDatagram.TAG),
        (one(DatagramCodec(CONFIG, "e", "secret"), messages()[0]), BadDatagram.CONSTANTS),
        (one(DatagramCodec(replace(CONFIG, eps_ticks=5), "d", "secret"), messages()[0]), BadDatagram.CONSTANTS),
        (sealed(wire.GOSSIP, b"\xc1"), BadDatagram.CONTENT),
        (sealed(wire.REQUEST, msgspec.msgpack.encode(["a", [[-1, 2]]])), BadDatagram.CONTENT),
        (sealed(wire.REQUEST, msgspec.msgpack.encode(["a", [[1, 2**63]]])), BadDatagram.CONTENT),
        (sealed(wire.GOSSIP, b"\x91" * 5000), BadDatagram.CONTENT),
        (GOOD[:8] + b"\0\0\xff\xff" + GOOD[12:], BadDatagram.CONTENT),
        (GOOD[: -wire.TAG_BYTES] + b"\0\0\0" + GOOD[-wire.TAG_BYTES :], BadDatagram.CONTENT),
        (sealed(wire.FRAMES, msgspec.msgpack.encode([ME]), *[b""] * (wire.FRAMES_MAX + 1)), BadDatagram.CONTENT),
    ],
    ids=lambda value: value.value if isinstance(value, BadDatagram) else "",
)
def test_what_is_wrong_with_a_datagram_is_told(data: bytes, bad: BadDatagram) -> None:
    assert CODEC.decode(data) == (None, [bad])


@pytest.mark.parametrize(
    "frame",
    [
        replace(FRAME, groups=()),
        replace(FRAME, groups=(4, 1)),
        replace(FRAME, groups=(1, 1)),
        replace(FRAME, deadline=FRAME.stamp + CONFIG.deadline_ticks_max + 1),
        replace(FRAME, past={(3, 1): (1000, 1010)}),
        replace(FRAME, past={(i, 1): (990, 1030) for i in range(ENTRIES_MAX + 1)}),
        replace(FRAME, past={(3, 1): (1000 - 254, 1000)}),
        replace(FRAME, past={(3, 1): (999, 1000 + CONFIG.deadline_ticks_max + 1)}),
        replace(FRAME, stamp=3, deadline=10, past={(3, 1): (-1, 5)}),
        replace(FRAME, stamp=2**62 + 1, deadline=2**62 + 2, past={}),
    ],
)
def test_a_frame_that_nobody_says_is_left_out_and_its_neighbour_stays(frame: CausalFrame) -> None:
    content = msgspec.msgpack.encode([ME])
    data = sealed(wire.FRAMES, content, pack_frame(frame, CONFIG), pack_frame(FRAME, CONFIG))
    assert CODEC.decode(data) == (CausalFrames(ME, (FRAME,)), [BadDatagram.FRAME])


def test_a_vector_has_one_form() -> None:
    data = pack_frame(FRAME, CONFIG)
    at = data.index(b"\x00\x03\x00\x01\x01")
    swapped = data[:at] + data[at + 6 : at + 12] + data[at : at + 6] + data[at + 12 :]
    with pytest.raises(ValueError, match="sorted"):
        unpack_frame(swapped, CONFIG)


def signed_again(data: bytes) -> bytes:
    """What somebody sends who has the token, and says anything."""
    cut = CODEC._cut(data)
    return data if cut is None else data[: -wire.TAG_BYTES] + CODEC._tag(*cut)


def test_noise_is_never_more_than_a_count() -> None:
    dice = Random(5)
    for _ in range(3000):
        data = bytearray(GOOD)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(8, len(data) - wire.TAG_BYTES)] = dice.randrange(256)
        message, bad = CODEC.decode(signed_again(bytes(data)))
        assert message is not None or bad
    for _ in range(3000):
        content = pack_frame(FRAME, CONFIG)
        torn = bytearray(content[: dice.randrange(len(content))])
        try:
            unpack_frame(bytes(torn), CONFIG)
        except ValueError:
            continue
        raise AssertionError("a frame that is cut off was believed")


def test_copies_are_read_once_and_another_frame_of_that_name_by_itself() -> None:
    codec = DatagramCodec(CONFIG, "d", "secret")
    other = replace(FRAME, body=(Event("c", 2, "t", b"y"),))
    read = [codec.decode(one(CODEC, CausalFrames(ME, (frame,))))[0] for frame in (FRAME, FRAME, other)]
    assert read == [CausalFrames(ME, (FRAME,)), CausalFrames(ME, (FRAME,)), CausalFrames(ME, (other,))]
    first, again, _ = read
    assert isinstance(first, CausalFrames)
    assert isinstance(again, CausalFrames)
    assert again.frames[0] is first.frames[0]


def test_the_vector_takes_six_bytes_an_entry_and_the_papers_less() -> None:
    for entries, paper in ((8, 4), (16, 8)):
        frame = replace(FRAME, past={(i, 1): (990, 1030) for i in range(entries)})
        assert len(wire.pack_vector(frame, CONFIG)) == 2 + 6 * entries
        assert wire.packed_bytes(entries, 9, 1) == paper


def test_constants_that_contradict_each_other_are_refused() -> None:
    for config in (CausalConfig.local(), CausalConfig.region(), CausalConfig.planet()):
        assert check_causal(config) is config
    for wrong, words in (
        (replace(CONFIG, tick_us=0), "tick_us"),
        (replace(CONFIG, spread_ticks=50), "spread_ticks"),
        (replace(CONFIG, deadline_ticks_max=240), "longer ticks"),
        (replace(CONFIG, fanout=0), "fanout"),
    ):
        with pytest.raises(MisuseError, match=words):
            check_causal(wrong)
    assert spread_of(50) == 9
    assert spread_of(200, 2) == 22
