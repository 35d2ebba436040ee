"""From a deployment to a connection to its broker."""

import asyncio
import logging
import socket
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from unisono.errors import MisuseError, TransportError, TurnedAwayError, said
from unisono.model.address import endpoint
from unisono.model.deployment import WORD, Deployment
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros
from unisono.protocols.coded.channel import Channel
from unisono.runtime.brokers.contract import Ens, Listener, adopted_channel
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.memory.adapter import Hub, MemoryEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.login import broker_tls, login_of
from unisono.runtime.brokers.udp.adapter import UdpEns, UdpOptions
from unisono.runtime.brokers.udp.node import UdpConfig
from unisono.runtime.links.security import client_context
from unisono.runtime.saying import say

logger = logging.getLogger(__name__)

_hubs: dict[str, Hub] = {}


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
    """Where the embedded broker is reached: as said in `broker.servers`, else one above the port of its node."""
    if deployment.broker.servers:
        return endpoint(deployment.broker.servers[0])
    return _above(_embedding(deployment).reached_at)


def _above(place: str) -> tuple[str, int]:
    host, port = endpoint(place)
    if port == 65_535:
        raise MisuseError(
            f"{place}: its embedded broker listens one port above that, and there is none: say 65534 or less"
        )
    return host, port + 1


def embedded_listens(deployment: Deployment) -> tuple[str, int]:
    """Where the embedded broker listens. A node that advertises another address than its own binds its own."""
    node = _embedding(deployment)
    if not deployment.broker.servers:
        return _above(node.listen)
    host, _ = endpoint(node.listen)
    there = endpoint(deployment.broker.servers[0])
    return (host, there[1]) if node.advertise is not None else there


def _embedding(deployment: Deployment) -> NodeSpec:
    for node in deployment.nodes:
        if "broker" in node.roles:
            return node
    raise MisuseError(
        f"deployment {deployment.name!r}: no node carries the events: give one the roles "
        'sequencer and broker (roles = ["sequencer", "broker"]), or name servers: '
        'broker = { kind = "nats", servers = ["nats://host:4222"] }'
    )


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
                from unisono.runtime.brokers.nats.adapter import NatsEns

                return NatsEns(options, listener)
            from unisono.runtime.brokers.nats.jetstream import JetStreamEns

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
    for node in deployment.nodes:
        if node.advertise is not None:
            todo = "let it listen at the address that others see, or take another broker.kind"
            raise MisuseError(f"nodes.{node.name}.advertise: datagrams carry the address they come from; {todo}")
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
            raise TransportError(f"{host}:{port}: {said(error)}") from None
        return str(probe.getsockname()[0])


def nats_options(deployment: Deployment, token: str, region: str | None, is_node: bool) -> NatsOptions:
    servers, name = nearest_first(deployment, region), deployment.name
    if WORD.fullmatch(name) is None:
        raise MisuseError(
            f"deployment {name!r}: its name stands in subjects of NATS; write one word of letters, digits, _, -"
        )
    login, tls = login_of(deployment.broker, is_node), broker_tls(deployment.broker)
    options = NatsOptions(servers, deployment=name, login=login, tls=tls)
    if login is None and token and (is_node or deployment.rights):
        return replace(options, user="node" if is_node else nats_user(token), password=token)
    return options


def node_options(deployment: Deployment, servers: tuple[str, ...], token: str) -> NatsOptions:
    """Of what nodes keep at NATS servers of their own choice: logs, archives, who is a member."""
    login, tls = login_of(deployment.broker, is_node=True), broker_tls(deployment.broker)
    user, password = ("node", token) if token and login is None else ("", "")
    return NatsOptions(servers, user, password, login=login, tls=tls)


def nats_user(token: str) -> str:
    """The name under which the holder of a token logs in to NATS, where rights decide: it knows no other."""
    return f"u{blake2b(token.encode(), digest_size=8).hexdigest()}"


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
    """Opens, waiting for a broker that is still starting; raises TransportError when it is not there in time, and at
    once when waiting cannot help."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    told = ""
    while True:
        try:
            await ens.open()
            return
        except TurnedAwayError:
            raise
        except TransportError as error:
            if loop.time() >= until:
                raise
            if str(error) != told:
                told = str(error)
                text = f"waits up to {patience_s:g} s for its broker: {told}"
                say(logger, logging.WARNING, text, event="broker-wait")
            await asyncio.sleep(0.1)
