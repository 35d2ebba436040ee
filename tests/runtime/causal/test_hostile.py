"""Datagrams nobody should send: each is turned away by its name, counted, and the honest are served."""

import asyncio
import socket
import time
from collections.abc import Callable

import msgspec
from msgspec import structs

import unisono
from tests.runtime.causal.test_causal import mesh, role, running
from tests.runtime.overlay.test_overlay import take, until, url
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.causal.deployed import causal_config
from unisono.protocols.causal.messages import CausalFrame, CausalFrames
from unisono.protocols.causal.wire import DATAGRAM_BYTES, FRAMES, DatagramCodec
from unisono.runtime.client.causal import CausalSession

Craft = Callable[[Deployment, Address], list[bytes]]


def tick(deployment: Deployment) -> int:
    return time.time_ns() // 1000 // causal_config(deployment).tick_us


def sealed(deployment: Deployment, me: Address, *frames: CausalFrame) -> list[bytes]:
    return list(DatagramCodec(causal_config(deployment), deployment.name).encode(CausalFrames(me, frames)))


def frame(deployment: Deployment, **other: object) -> CausalFrame:
    now = tick(deployment)
    sound = CausalFrame(60_000, now, (0,), now + 40, {}, (Event("a.t", 1, "t"),))
    return structs.replace(sound, **other)


def strange_deployment(deployment: Deployment) -> Deployment:
    return structs.replace(deployment, causal=structs.replace(deployment.causal, eps_ms=1.0))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def signed(deployment: Deployment, kind: int, content: bytes, *frames: bytes) -> bytes:
    codec = DatagramCodec(causal_config(deployment), deployment.name)
    return codec._seal(kind, content, [codec._look_up(frame) for frame in frames])


ATTACKS: dict[str, tuple[Craft, str]] = {
    "noise": (lambda d, me: [b"hello there, this is no datagram of ours"], "refused_magic"),
    "nothing": (lambda d, me: [b"x"], "refused_short"),
    "oversized": (lambda d, me: [bytes(DATAGRAM_BYTES + 1)], "refused_oversized"),
    "changed on the way": (lambda d, me: [flipped(each) for each in sealed(d, me, frame(d))], "refused_tag"),
    "wrong constants": (lambda d, me: sealed(strange_deployment(d), me, frame(d)), "refused_constants"),
    "another's name": (lambda d, me: sealed(d, Address(d.nodes[1].listen), frame(d)), "refused_forged"),
    "deep nesting": (lambda d, me: [signed(d, FRAMES, b"\x91" * 1_000)], "refused_content"),
    "a frame that is cut": (
        lambda d, me: [signed(d, FRAMES, msgspec.msgpack.encode((me,)), b"cut")],
        "refused_frame",
    ),
    "a deadline of next year": (lambda d, me: sealed(d, me, frame(d, deadline=frame(d).stamp + 250)), "refused_frame"),
    "groups in disorder": (lambda d, me: sealed(d, me, frame(d, groups=(1, 0))), "refused_frame"),
    "it depends on its future": (
        lambda d, me: sealed(d, me, frame(d, past={(1, 0): (frame(d).stamp, frame(d).stamp + 9)})),
        "refused_frame",
    ),
    "far future": (lambda d, me: sealed(d, me, frame(d, stamp=tick(d) + 500, deadline=tick(d) + 540)), "future"),
    "replayed": (lambda d, me: sealed(d, me, frame(d)) * 2, "duplicate"),
    "of yesterday": (
        lambda d, me: sealed(d, me, frame(d, stamp=tick(d) - 5000, deadline=tick(d) - 4960)),
        "before_subscription",
    ),
}


def test_each_hostile_datagram_is_turned_away_by_its_name_and_the_honest_are_served() -> None:
    async def run() -> None:
        deployment = mesh("eu", "eu")
        target = deployment.nodes[0]
        host, _, port = target.listen.rpartition(":")
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "eu-1")) as session,
            session.subscribe("news", order="causal") as stream,
        ):
            broker = role(nodes["eu-0"])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.bind(("127.0.0.1", 0))
                me = Address("{}:{}".format(*stranger.getsockname()))
                for number, (name, (craft, counter)) in enumerate(ATTACKS.items()):
                    before = broker.report().get(counter, 0)
                    for data in craft(deployment, me):
                        stranger.sendto(data, (host, int(port)))
                    await until(lambda: broker.report().get(counter, 0) > before)  # noqa: B023
                    assert isinstance(await session.publish("news", number), unisono.Accepted), name
                    assert (await take(stream, 1))[0].data == number, name
                # In the broker's own name: taken for its own it would be in the way of what the broker says next.
                own, now = broker.broker.incarnation, tick(deployment)
                frames = [frame(deployment, sender=own, stamp=now + ahead, deadline=now + 40) for ahead in range(5)]
                for data in sealed(deployment, me, *frames):
                    stranger.sendto(data, (host, int(port)))
                await until(lambda: broker.report().get("in_our_name", 0) == len(frames))
                assert isinstance(session, CausalSession)
                await session.move("eu-0")
                assert isinstance(await session.publish("news", "after"), unisono.Accepted)
                assert (await take(stream, 1))[0].data == "after"
            assert nodes["eu-0"].failure is None

    asyncio.run(run())
