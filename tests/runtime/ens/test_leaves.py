"""Leaf nodes of NATS carry an order; superclusters cannot be proven to, and are refused. Real servers."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.ens.test_login import Server
from tests.runtime.ens.worlds import Ear
from unisono.errors import PlanError
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports


def server(directory: Path, name: str, more: dict[str, object]) -> Server:
    made = Server(directory / name, NatsServerConfig(name=name))
    made.more = more
    return made


async def first_events_are_heard(subscribing: NatsServer, publishing: NatsServer, rounds: int = 10) -> None:
    """What is published at one server as soon as `subscribe` has returned at the other."""
    urls = (subscribing.url, publishing.url)
    ear = Ear()
    here, there = NatsEns(NatsOptions(urls), ear), NatsEns(NatsOptions(urls[::-1]), Ear())
    await here.open()
    await there.open()
    for number in range(1, rounds + 1):
        await here.subscribe(f"topic{number}")
        there.publish([Item(f"topic{number}", b"first", "p", number)])
        await there.flush()
    await ear.until(lambda: len(ear.items) == rounds)
    await here.close()
    await there.close()


def test_the_first_event_after_subscribe_is_heard_over_leaf_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        hub = server(tmp_path, "hub", {"leafnodes": {"host": "127.0.0.1", "port": port}})
        proxy = DelayProxy(Micros(20_000))
        await hub.start()
        await proxy.start()
        proxy.target = ("127.0.0.1", port)
        remote = {"leafnodes": {"remotes": [{"url": f"nats-leaf://127.0.0.1:{proxy.port}"}]}}
        leaves = [server(tmp_path, name, remote) for name in ("leaf1", "leaf2")]
        try:
            for leaf in leaves:
                await leaf.start()
            for one, other in ((hub, leaves[0]), (leaves[0], hub), (leaves[0], leaves[1])):
                await first_events_are_heard(one, other)
        finally:
            for each in (hub, *leaves):
                each.kill()
            await proxy.stop()

    asyncio.run(main())


def test_a_supercluster_is_refused_when_the_broker_is_opened_and_the_reason_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        ports = free_ports(4)
        servers = []
        for i, name in enumerate("AB"):
            ways = [{"name": other, "url": f"nats://127.0.0.1:{ports[k]}"} for k, other in enumerate("AB")]
            more = {
                "cluster": {"name": name, "host": "127.0.0.1", "port": ports[2 + i]},
                "gateway": {"name": name, "host": "127.0.0.1", "port": ports[i], "gateways": ways},
            }
            servers.append(server(tmp_path, f"server{name}", more))
        try:
            for each in servers:
                await each.start()
            urls = tuple(each.url for each in servers)
            with pytest.raises(PlanError, match="of different clusters"):
                await NatsEns(NatsOptions(urls), Ear()).open()
            alone = NatsEns(NatsOptions(urls[:1]), Ear())
            await alone.open()  # whoever stays within one of them may
            await alone.close()
        finally:
            for each in servers:
                each.kill()

    asyncio.run(main())
