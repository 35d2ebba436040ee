"""From a deployment to a connection to its broker."""

import asyncio
import re
import socket
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment, NodeSpec
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.coded.channel import Channel
from unisono.runtime.ens.adapter import Ens, Listener, adopted_channel
from unisono.runtime.ens.embedded import EmbeddedEns
from unisono.runtime.ens.memory import Hub, MemoryEns
from unisono.runtime.ens.nats_wire import NatsOptions
from unisono.runtime.ens.udp import UdpEns, UdpOptions
from unisono.runtime.links import Links
from unisono.runtime.security import client_context
from unisono.runtime.udp import UdpConfig

WORD = re.compile(r"[A-Za-z0-9_\-]+")
_hubs: dict[str, Hub] = {}


def endpoint(text: str) -> tuple[str, int]:
    """`host:port` as it stands in a deployment."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise MisuseError(f"{text!r} is not host:port")
    return host, int(port)


def dial_node(links: Links, node: NodeSpec) -> None:
    """A node is where it listens, or where its standby does."""
    others = (endpoint(node.standby),) if node.standby is not None else ()
    links.dial(Address(node.name), *endpoint(node.listen), *others)


def hub_of(name: str) -> Hub:
    """The memory broker of this process with this name."""
    return _hubs.setdefault(name, Hub())


def set_hub(name: str, hub: Hub | None) -> None:
    """Puts another broker in its place, or none: then the next who asks gets a new one."""
    if hub is None:
        _hubs.pop(name, None)
    else:
        _hubs[name] = hub


def embedded_endpoint(deployment: Deployment) -> tuple[str, int]:
    """Where the embedded broker listens: as said in `broker.servers`, else one above the port of its node."""
    if deployment.broker.servers:
        return endpoint(deployment.broker.servers[0])
    for node in deployment.nodes:
        if "broker" in node.roles:
            host, port = endpoint(node.listen)
            return host, port + 1
    raise MisuseError(f"deployment {deployment.name!r}: no node has the role broker, and no broker server is named")


def adopted_topics(deployment: Deployment) -> dict[str, str]:
    """Topics of which events of strangers are published again, and where."""
    adopting = [topic.name for topic in deployment.topics if topic.foreign == "adopt"]
    return {name: adopted_channel(deployment.name, name) for name in adopting}


def publishers_space(deployment: Deployment) -> str:
    """What stands before the names of publishers at a broker that deployments may share: names are unique in one."""
    return f"{deployment.name}/" if deployment.broker.kind in ("nats", "jetstream") else ""


def make_ens(
    deployment: Deployment,
    base: Path,
    listener: Listener,
    token: str,
    region: str | None = None,
    is_node: bool = False,
    listen: str | None = None,
) -> Ens:
    """An adapter for the deployment's broker, not yet open. Nodes log in to NATS as user `node` with the token, and
    take part in UDP where they listen."""
    broker = deployment.broker
    match broker.kind:
        case "memory":
            return MemoryEns(hub_of(deployment.name), listener)
        case "embedded":
            tls = client_context(deployment.security, base)
            return EmbeddedEns(*embedded_endpoint(deployment), listener, token=token, tls=tls)
        case "nats" | "jetstream":
            options = nats_options(deployment, token, region, is_node)
            if broker.kind == "nats":
                from unisono.runtime.ens.nats import NatsEns

                return NatsEns(options, listener)
            from unisono.runtime.ens.jetstream import JetStreamEns

            return JetStreamEns(options, listener)
        case "udp":
            return UdpEns(udp_options(deployment, token, listen), listener)


def udp_options(deployment: Deployment, token: str, listen: str | None) -> UdpOptions:
    """Nodes are seeds. Waiting times follow from the longest round trip, packets are signed if there is a token."""
    broker = deployment.broker
    if deployment.security.certificate is not None:
        raise MisuseError(f"deployment {deployment.name!r}: datagrams are not encrypted; its security wants TLS")
    if deployment.security.node_token_variable is not None:
        raise MisuseError(f"deployment {deployment.name!r}: over datagrams nodes and clients have the same rights")
    seeds = broker.servers or tuple(node.listen for node in deployment.nodes if "sequencer" in node.roles)
    if not seeds:
        raise MisuseError(f"deployment {deployment.name!r}: no sequencer node and no broker.servers to begin with")
    far_us = 3 * max((max(row) for row in deployment.latencies().one_way_us), default=0) if deployment.regions else 0
    options = UdpOptions(seeds)
    return replace(
        options,
        bind=listen if listen is not None else f"{own_host(*endpoint(seeds[0]))}:0",
        coded=replace(
            options.coded,
            ask_every_us=Micros(max(options.coded.ask_every_us, far_us)),
            key=blake2b(token.encode()).digest() if token else b"",
        ),
        udp=UdpConfig(loss=Channel(broker.drop, broker.drop_burst) if broker.drop else None),
        window_bytes=max(options.window_bytes, 10 * far_us),
        suspect_s=options.suspect_s + far_us / 1e6,
    )


def own_host(host: str, port: int) -> str:
    """The address of ours from which the other is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise TransportError(f"{host}:{port}: {error.strerror}") from None
        return str(probe.getsockname()[0])


def nats_options(deployment: Deployment, token: str, region: str | None, is_node: bool) -> NatsOptions:
    servers, name = nearest_first(deployment, region), deployment.name
    if WORD.fullmatch(name) is None:
        raise MisuseError(
            f"deployment {name!r}: its name stands in subjects of NATS; write one word of letters, digits, _, -"
        )
    return (
        NatsOptions(servers, "node", token, deployment=name)
        if is_node and token
        else NatsOptions(servers, deployment=name)
    )


def nearest_first(deployment: Deployment, region: str | None) -> tuple[str, ...]:
    """The broker's servers with that of our region in front, where there is one server per region, in their order."""
    servers, names = deployment.broker.servers, [region.name for region in deployment.regions]
    if not servers:
        raise MisuseError(f"deployment {deployment.name!r}: broker.servers names no NATS server")
    if region is None or region not in names or len(servers) != len(names):
        return servers
    mine = servers[names.index(region)]
    return (mine, *(server for server in servers if server != mine))


class Opens(Protocol):
    """Whatever stands on a connection to a broker."""

    async def open(self) -> None:
        """Raises TransportError, and may then be called again."""
        ...


async def open_patiently(ens: Opens, patience_s: float) -> None:
    """Opens, waiting for a broker that is still starting; raises TransportError when it is not there in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        try:
            await ens.open()
            return
        except TransportError:
            if loop.time() >= until:
                raise
            await asyncio.sleep(0.1)
