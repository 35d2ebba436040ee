"""The socket of one member of a causal mesh: messages as datagrams out, whatever is sound of what comes in.

A member is called by the IPv4 address and port it sends from, so whoever speaks in another's name is turned away; there
is no address translation between members. Brokers may multicast to each other besides: where the network does not carry
that, nothing is missing, gossip brings everything. What is turned away is counted by its reason and changes nothing.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from random import Random

from unisono.errors import MisuseError, TransportError
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.protocols.causal.deployed import causal_config
from unisono.protocols.causal.messages import CausalFrames, CausalGossip, FromMember
from unisono.protocols.causal.wire import DatagramCodec
from unisono.runtime.brokers.udp.node import endpoint_of
from unisono.runtime.mesh.distances import Endpoint, distances_of

logger = logging.getLogger(__name__)

READ_MAX = 64
"""Datagrams per turn of the loop."""
BUFFER_BYTES = 4_000_000
"""Asked of the kernel: a burst that does not fit is lost, and asked for again while it is on time."""
HOPS_MAX = 1
"""Multicast stays on the network of the sender."""


class MeshSocket:
    """Opens at `host:port`; `hear` gets every sound message, and whether it was multicast."""

    def __init__(
        self,
        deployment: Deployment,
        token: str,
        region: str,
        hear: Callable[[FromMember, bool], None],
        region_of: Callable[[Address], str | None],
        turned_away: Callable[[str], None],
    ) -> None:
        self.address = Address("")
        self.counters: dict[str, int] = {}
        self._codec = DatagramCodec(causal_config(deployment), deployment.name, token)
        self._region, self._distances = region, distances_of(deployment.name)
        self._hear, self._region_of, self._turned_away = hear, region_of, turned_away
        self._drop, self._dice = deployment.causal.drop, Random()
        multicast = deployment.causal.multicast
        self._group: Endpoint | None = endpoint(multicast) if multicast is not None else None
        self._socket: socket.socket | None = None
        self._group_socket: socket.socket | None = None

    def open(self, host: str, port: int, called: Endpoint | None = None, multicasts: bool = False) -> None:
        """`called`: where others reach it, if not where it listens. Raises TransportError if the port is taken."""
        loop = asyncio.get_running_loop()
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setblocking(False)
        try:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                opened.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            opened.bind((host, port))
        except OSError as error:
            opened.close()
            raise TransportError(f"cannot take UDP port {port} at {host}: {error.strerror or error}") from None
        self._socket = opened
        here: Endpoint = called or opened.getsockname()
        self.address = Address(f"{here[0]}:{here[1]}")
        if self._distances is not None:
            self._distances.place(here, self._region)
        loop.add_reader(opened.fileno(), self._readable, opened, False)
        if multicasts and self._group is not None:
            self._open_group(here[0])

    def _open_group(self, interface: str) -> None:
        assert self._group is not None
        assert self._socket is not None
        joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        joined.setblocking(False)
        try:
            joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            joined.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            joined.bind(self._group)
            there, here = socket.inet_aton(self._group[0]), socket.inet_aton(interface)
            joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", there, here))
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, HOPS_MAX)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        except OSError as error:
            joined.close()
            self._group = None
            logger.warning("no multicast at %s, so all goes by gossip: %s", interface, error.strerror or error)
            return
        self._group_socket = joined
        asyncio.get_running_loop().add_reader(joined.fileno(), self._readable, joined, True)

    def close(self) -> None:
        for each in (self._socket, self._group_socket):
            if each is not None:
                asyncio.get_running_loop().remove_reader(each.fileno())
                each.close()
        self._socket = self._group_socket = None

    # out

    def send(self, to: Address, message: FromMember) -> None:
        try:
            there = endpoint_of(to)
        except MisuseError:  # a member that somebody told us of
            self._count("not_an_address")
            return
        far = self._region_of(to) not in (self._region, None)
        delay_s = self._distances.between_s(self._region, there) if self._distances is not None else 0.0
        for data in self._codec.encode(message):
            self._count("bytes_far" if far else "bytes_near", len(data))
            self._transmit(data, there, delay_s)

    def multicast(self, frames: CausalFrames) -> None:
        if self._group_socket is None or self._group is None:
            return
        for data in self._codec.encode(frames):
            self._count("bytes_multicast", len(data))
            self._transmit(data, self._group, 0.0)

    def _transmit(self, data: bytes, to: Endpoint, delay_s: float) -> None:
        if self._drop and self._dice.random() < self._drop:
            self._count("dropped_on_purpose")
        elif delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._put, data, to)
        else:
            self._put(data, to)

    def _put(self, data: bytes, to: Endpoint) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(data, to)
            self._count("sent")
        except (BlockingIOError, ConnectionRefusedError):
            self._count("dropped_by_the_kernel")
        except OSError:
            self._count("not_sendable")

    # in

    def _readable(self, readable: socket.socket, is_multicast: bool) -> None:
        for _ in range(READ_MAX):
            try:
                data, sender = readable.recvfrom(65_536)
            except BlockingIOError:
                return
            except OSError:  # an earlier datagram met a closed port
                continue
            self._count("received")
            self._receive(data, sender, is_multicast)
            if self._socket is None:
                return

    def _receive(self, data: bytes, sender: Endpoint, is_multicast: bool) -> None:
        message, wrong = self._codec.decode(data)
        for bad in wrong:
            self._refuse(bad.value, sender)
        if message is None:
            return
        claimed = message.member.address if isinstance(message, CausalGossip) else message.source
        if claimed != f"{sender[0]}:{sender[1]}":
            self._refuse("forged", sender)
        elif claimed != self.address:  # whoever multicasts hears himself
            self._hear(message, is_multicast)

    def _refuse(self, reason: str, sender: Endpoint) -> None:
        self._count(f"refused_{reason}")
        self._turned_away(f"a datagram of {sender[0]}:{sender[1]} is turned away: {reason}")

    def _count(self, what: str, many: int = 1) -> None:
        self.counters[what] = self.counters.get(what, 0) + many


async def resolve(where: str) -> Endpoint:
    """An address of the deployment in numbers, as datagrams carry it; raises TransportError if there is none."""
    host, port = endpoint(where)
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        pass
    else:
        return host, port
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise TransportError(f"{host} has no IPv4 address, which a causal mesh needs: {error.strerror}") from None
    return str(found[0][4][0]), port


async def resolve_all(deployment: Deployment) -> dict[str, Address]:
    """Of every broker whose address is known now, by its name."""
    found: dict[str, Address] = {}
    distances = distances_of(deployment.name)
    for node in deployment.nodes:
        try:
            there = await resolve(node.reached_at)
        except TransportError as error:
            logger.debug("%s: %s", node.name, error)
            continue
        host, port = distances.behind(there) if distances is not None else there
        found[node.name] = Address(f"{host}:{port}")
    return found


def local_host_towards(there: Endpoint) -> str:
    """The address of this machine that datagrams to somebody leave from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(there)
        except OSError as error:
            raise TransportError(f"{there[0]}:{there[1]} cannot be reached: {error.strerror or error}") from None
        return str(probe.getsockname()[0])
