"""A node with small limits, attackers that speak bytes to it, and an honest client that must not notice them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import unisono
from tests.runtime.test_cluster import FAST
from unisono.cli.node import watch
from unisono.errors import PeerError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.limits import Limits
from unisono.model.settings import BrokerSpec, NodeSpec, OverlaySpec, Security
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.brokers.embedded.fan_out import pack
from unisono.runtime.links import control
from unisono.runtime.links.dialing import endpoint
from unisono.runtime.links.frames import Codec, FrameReader, Hello, Letter, Rejected, encode_frame
from unisono.runtime.links.questions import ask_node
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

HUB = Address("hub")
ME = Address("mallory")
SMALL = Limits(
    connections_max=40,
    connections_unknown_max=10,
    hello_s=0.3,
    frame_bytes_max=1 << 20,
    waiting_bytes_max=1 << 20,
    bytes_max=6 << 20,
    topics_max=500,
    client_topics_max=50,
    client_subscriptions_max=20,
    client_watches_max=10,
    client_requests_max=10,
    client_questions_per_s=20_000,
    filter_cost_max=2_000,
)
CLIENT_TOKEN, NODE_TOKEN = "what clients know 7b1f", "what nodes know 99c2"
SECURITY = Security(token_variable="HOSTILE_CLIENT_TOKEN", node_token_variable="HOSTILE_NODE_TOKEN")
LET_IN = "let in"
"""Instead of a code: the node has said hello."""
ANSWERED = "answered"
"""Instead of a code: the node has answered an `AskReport`, so it has taken what was said before."""
_codec = Codec(control.Letters)
_broker_decoder = msgspec.msgpack.Decoder(list[wire.FromBroker])


class Target:
    """What is attacked."""

    def __init__(self, deployment: Deployment, node: Node) -> None:
        self.deployment, self.node = deployment, node
        self.place = endpoint(deployment.nodes[0].listen)

    @property
    def url(self) -> str:
        return f"unisono://{self.deployment.nodes[0].listen}"

    async def refused(self, code: str) -> int:
        """As `unisono status --json` shows it."""
        listen = self.deployment.nodes[0].listen
        token = CLIENT_TOKEN if self.deployment.security.token_variable is not None else ""
        report = await ask_node(listen, token, control.AskReport, control.NodeReport)
        return report.counters["refused"][code]

    async def serves(self) -> None:
        """An honest client publishes, and hears what it has published."""
        token = CLIENT_TOKEN if self.deployment.security.token_variable is not None else None
        async with (
            unisono.connect(self.url, token=token) as session,
            session.subscribe("trades") as stream,
        ):
            outcome = await session.publish("trades", {"px": 1})
            assert isinstance(outcome, unisono.Accepted), outcome
            async for event in stream:
                assert event.data == {"px": 1}
                break


@asynccontextmanager
async def target(
    base: Path, limits: Limits = SMALL, overlay: bool = False, secure: bool = False
) -> AsyncGenerator[Target, None]:
    (port,) = free_ports(1)
    roles: tuple[Any, ...] = ("overlay",) if overlay else ("sequencer", "broker", "archive")
    spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=roles, data=None if overlay else "data")
    deployment = Deployment(
        1,
        "hostile",
        kind="overlay" if overlay else "sequencer",
        nodes=(spec,),
        broker=BrokerSpec("embedded"),
        overlay=OverlaySpec(),
        limits=limits,
        security=SECURITY if secure else Security(),
    )
    node = Node(deployment, "hub", base, FAST)
    watch(asyncio.get_running_loop(), node)  # as `unisono node` does: what breaks in a callback ends the node
    await node.start()
    try:
        yield Target(deployment, node)
    finally:
        await node.stop()
    assert node.failure is None, repr(node.failure)


class Attacker:
    """One connection, spoken byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(64 << 20)
        self._bodies: list[bytes] = []

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def say(self, *messages: Any, to: Address = HUB) -> None:
        await self.send(encode_frame([Letter(to, message) for message in messages]))

    async def hello(self, *addresses: str, kind: Any = "client", **fields: Any) -> None:
        await self.send(encode_frame(Hello(kind, tuple(map(Address, addresses or (ME,))), **fields)))

    async def body(self) -> bytes | None:
        """The next frame, or None when the other side has hung up."""
        while not self._bodies:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
            except ConnectionError:
                return None
            if not data:
                return None
            self._bodies += [bytes(body) for body in self._frames.feed(data)]
        return self._bodies.pop(0)

    async def enter(self, *addresses: str, kind: Any = "client", **fields: Any) -> None:
        """Says hello and is let in."""
        await self.hello(*addresses, kind=kind, **fields)
        body = await self.body()
        assert body is not None
        assert not isinstance(msgspec.msgpack.decode(body, type=Hello | Rejected), Rejected), body

    async def codes(self) -> AsyncGenerator[str, None]:
        """Every reason code that the node says to us, until it hangs up."""
        while (body := await self.body()) is not None:
            for code in codes_in(body):
                yield code

    async def is_told(self, code: str) -> bool:
        async for told in self.codes():
            if told in (code, LET_IN, ANSWERED):
                return told == code
        return False

    def close(self) -> None:
        self.writer.close()


def codes_in(body: bytes) -> Iterable[str]:
    """Reason codes in a frame of a node or of an embedded broker."""
    try:
        letters = _codec.decode(body)
    except PeerError:
        with contextlib.suppress(msgspec.DecodeError):
            return [LET_IN for _ in (msgspec.msgpack.decode(body, type=Hello),)]
        with contextlib.suppress(msgspec.DecodeError):
            return [message.code for message in _broker_decoder.decode(body) if isinstance(message, wire.NotWelcome)]
        return []
    if isinstance(letters, Rejected):
        return [letters.code]
    return [str(getattr(letter.message, "code", ANSWERED)) for letter in letters if _tells(letter.message)]


def _tells(message: Any) -> bool:
    return isinstance(message, control.NodeReport) or hasattr(message, "code")


@asynccontextmanager
async def attacker(place: tuple[str, int]) -> AsyncGenerator[Attacker, None]:
    one = Attacker(*await asyncio.open_connection(*place))
    try:
        yield one
    finally:
        one.close()


def broker_place(of: Target) -> tuple[str, int]:
    return embedded_endpoint(of.deployment)


def broker_frame(*messages: Any) -> bytes:
    return pack([wire.encoder.encode(message) for message in messages])
