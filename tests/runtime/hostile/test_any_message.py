"""Whatever a client says, of all that can be said anywhere: no node stops, whatever its kind, and others are served."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.hostile.any_message import Inventor, kinds_in
from tests.runtime.hostile.world import ANSWERED, HUB, ME, SMALL, Attacker, Target, attacker
from tests.runtime.test_cluster import FAST
from unisono.cli.node import watch
from unisono.model.deployment import BrokerSpec, CausalSpec, Deployment, NodeSpec, Region, Sequencing
from unisono.model.ids import Address
from unisono.model.promise import Order
from unisono.model.settings import Role
from unisono.runtime.links import control
from unisono.runtime.links.frames import Letter, encode_frame
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

EACH = 4
"""Of every kind of message; `make campaign` says many more."""
AT_ONCE = 8
"""Over one connection."""
CUT_OFF = ("protocol", "range", "forged")


def deployment(*roles: Role, data: str | None = None) -> Deployment:
    spec = NodeSpec(HUB, "eu", f"127.0.0.1:{free_ports(1)[0]}", roles=roles, data=data)
    return Deployment(1, "any", regions=(Region("eu"),), nodes=(spec,), broker=BrokerSpec("embedded"), limits=SMALL)


def by_clock() -> Deployment:
    return structs.replace(deployment("sequencer", "broker", data="data"), sequencing=Sequencing(by="clock"))


def causal() -> Deployment:
    return structs.replace(deployment("causal"), kind="causal", broker=BrokerSpec(), causal=CausalSpec(preset="region"))


PLACES: dict[str, tuple[Order, Callable[[], Deployment]]] = {
    "tree": ("total", lambda: deployment("sequencer", "broker", "archive", data="data")),
    "clock": ("total", by_clock),
    "overlay": ("total", lambda: structs.replace(deployment("overlay"), kind="overlay", broker=BrokerSpec())),
    "regions": ("fifo", lambda: structs.replace(deployment("regions"), kind="regions", broker=BrokerSpec())),
    "causal": ("causal", causal),
}


async def serves(target: Target, order: Order) -> None:
    """An honest client publishes, and hears what it has published."""
    async with unisono.connect(target.url) as session, session.subscribe("trades", order=order) as stream:
        assert isinstance(await session.publish("trades", {"px": 1}), unisono.Accepted)
        async for event in stream:
            if event.data == {"px": 1}:
                return


async def babble(target: Target, seed: int, each: int) -> None:
    """Says every kind of message that clients may say, in some order, and comes again whenever it is cut off."""
    names = target.node.topic_names
    inventor = Inventor(seed, [int(topic) for topic in names.mine.values()] if names is not None else [])
    kinds = [kind for kind in kinds_in(control.FromClients[target.deployment.sequencing.by]) for _ in range(each)]
    inventor.dice.shuffle(kinds)
    said = 0
    while kinds:
        async with attacker(target.place) as one:
            await one.enter(ME, secret=b"its own")
            for kind in kinds[-AT_ONCE:]:
                await one.send(encode_frame([Letter(HUB, inventor.message(kind))]))
            del kinds[-AT_ONCE:]
            said += await goes_on(one)
    assert said > 0


async def goes_on(one: Attacker) -> bool:
    """Whether it may go on, once all that it has said was taken."""
    await one.say(control.AskReport(Address(ME)))
    async for code in one.codes():
        if code in (ANSWERED, *CUT_OFF):
            return code == ANSWERED
    return False


async def check(base: Path, place: str, seed: int, each: int) -> None:
    order, make = PLACES[place]
    running = make()
    node = Node(running, HUB, base, FAST)
    watch(asyncio.get_running_loop(), node)  # as `unisono node` does: what breaks in a callback ends the node
    await node.start()
    target = Target(running, node)
    try:
        await serves(target, order)
        await babble(target, seed, each)
        await serves(target, order)
    finally:
        await node.stop()
    assert node.failure is None, repr(node.failure)
    if node.spec.data is None:
        return
    async with Node(running, HUB, base, FAST) as again:  # what has gone into its log does not stop it either
        await serves(Target(running, again), order)


@pytest.mark.parametrize("place", PLACES)
def test_no_message_of_a_client_stops_a_node(tmp_path: Path, place: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await check(tmp_path, place, seed=1, each=EACH)

    asyncio.run(run())


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("place", PLACES)
def test_no_message_of_a_client_stops_a_node_whatever_is_said_before(tmp_path: Path, place: str, seed: int) -> None:
    async def run() -> None:
        async with asyncio.timeout(300):
            await check(tmp_path, place, seed, each=50 * EACH)

    asyncio.run(run())


@pytest.mark.parametrize("place", ["tree", "clock"])
def test_what_nodes_say_and_what_others_order_by_is_not_read_from_clients(tmp_path: Path, place: str) -> None:
    """Else a machine would be handed what it does not understand, and a node whose machine is broken stops."""

    async def run() -> None:
        running = PLACES[place][1]()
        allowed = {kind.tag for kind in kinds_in(control.FromClients[running.sequencing.by])}
        others = [kind for kind in kinds_in(control.Letters) if kind.tag not in allowed]
        assert {"Watched", "PeerPing", "Frame", "Renew" if place == "clock" else "clock.AskLanes"} <= {
            kind.tag for kind in others
        }
        inventor = Inventor(1, [])
        async with asyncio.timeout(60), Node(running, HUB, tmp_path, FAST) as node:
            before = node.refusals.counts["protocol"]
            for kind in others:
                async with attacker(Target(running, node).place) as one:
                    await one.enter(ME, secret=b"its own")
                    await one.send(encode_frame([Letter(HUB, inventor.message(kind))]))
                    assert await one.is_told("protocol"), kind.tag
            assert node.refusals.counts["protocol"] == before + len(others)
            assert node.failure is None

    asyncio.run(run())
