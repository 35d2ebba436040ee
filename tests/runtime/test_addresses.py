"""Nodes are reached where they say, by name and by either family of addresses, wherever they listen."""

import asyncio
import re
from pathlib import Path

import pytest

import unisono
from tests.runtime.test_cluster import FAST
from tests.runtime.test_session import take
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import Deployment, load_deployment, parse_deployment
from unisono.model.settings import NodeSpec
from unisono.runtime.links.dialing import endpoint
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def pair(first: tuple[str, str], second: tuple[str, str]) -> Deployment:
    """Two nodes; each listens at one host and is reached at another."""
    ports = free_ports(2)
    nodes = [
        NodeSpec(name, listen=f"{hosts[0]}:{port}", advertise=f"{hosts[1]}:{port}", roles=("sequencer", *roles))
        for name, hosts, port, roles in zip(("a", "b"), (first, second), ports, (("broker",), ()))
    ]
    nodes[1] = NodeSpec("b", listen=nodes[1].listen, advertise=nodes[1].advertise, parent="a")
    return Deployment(1, "pair", nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("127.0.0.1", "localhost"), ("127.0.0.1", "localhost")),
        (("[::1]", "[::1]"), ("[::1]", "localhost")),
    ],
)
def test_nodes_and_clients_dial_where_a_node_says(
    first: tuple[str, str], second: tuple[str, str], tmp_path: Path
) -> None:
    deployment = pair(first, second)

    async def run() -> None:
        async with Node(deployment, "a", tmp_path, FAST), Node(deployment, "b", tmp_path, FAST):
            where = ",".join(node.reached_at for node in deployment.nodes)
            async with (
                unisono.connect(f"unisono://{where}") as session,
                session.subscribe("trades", "quotes", "orders") as stream,
            ):
                for topic in stream.interests:
                    await session.publish(topic, topic)
                assert [event.data for event in await take(stream, 3)] == ["trades", "quotes", "orders"]

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "::1:7474", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        endpoint(text)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('listen = "0.0.0.0:7474"', "nobody can dial 0.0.0.0:7474; say where others reach the node: advertise"),
        ('listen = "[::]:7474"', "advertise"),
        ('listen = "0.0.0.0:7474"\nadvertise = "eu"', "is not host:port"),
        ('listen = "0.0.0.0:7474"\nadvertise = "0.0.0.0:7474"', "nobody can dial"),
    ],
)
def test_an_address_that_nobody_can_dial_is_refused(lines: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_deployment(f'version = 1\n[[nodes]]\nname = "a"\n{lines}\n[[nodes]]\nname = "b"\nparent = "a"\n')


def test_datagrams_cannot_be_advertised_elsewhere(tmp_path: Path) -> None:
    text = 'version = 1\nbroker.kind = "udp"\n[[nodes]]\nname = "a"\nlisten = "127.0.0.1:0"\nadvertise = "eu:7"\n'

    async def run() -> None:
        await Node(parse_deployment(text), "a", tmp_path, FAST).start()

    with pytest.raises(MisuseError, match=r"nodes\.a\.advertise: datagrams carry"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:7475", "127.0.0.1:7475"),
        ("my_host:7475", "my_host:7475"),
        ("[::1]:7475", "[::1]:7475"),
        ("//eu.example.com:7475", "eu.example.com:7475"),
        ("127.0.0.1", "127.0.0.1:7474"),
        ("nats:127.0.0.1:4222", "127.0.0.1:4222"),
    ],
)
def test_whoever_forgets_the_scheme_is_told_the_address(written: str, meant: str) -> None:
    async def run() -> None:
        with pytest.raises(FormatError, match=f"the address of a node is unisono://{re.escape(meant)}, of a NATS"):
            async with unisono.connect(written):
                pass

    asyncio.run(run())


@pytest.mark.parametrize("written", ["deployment.toml", "./eu/deployment", "10.0.toml"])
def test_a_file_that_is_not_there_is_not_taken_for_an_address(written: str) -> None:
    with pytest.raises(FormatError, match="write one with: unisono init"):
        load_deployment(Path(written))


def test_an_address_of_blanks_is_empty() -> None:
    async def run() -> None:
        with pytest.raises(MisuseError, match="the address is empty"):
            async with unisono.connect(" "):
                pass

    asyncio.run(run())
