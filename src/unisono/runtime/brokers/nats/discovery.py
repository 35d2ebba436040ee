"""Finding a deployment over the NATS server that carries its events.

Every node answers on one well-known subject with the deployment it runs; whoever knows only the server asks there. The
subject is beside the control subjects, so clients may publish on it.
"""

import logging
from contextlib import suppress

import msgspec

from unisono.errors import PeerError, TransportError
from unisono.model.deployment import Deployment, without_credentials
from unisono.model.settings import BrokerSpec
from unisono.runtime.brokers.contract import RESERVED
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.login import broker_tls, login_of
from unisono.runtime.links.frames import UNREADABLE

logger = logging.getLogger(__name__)

SUBJECT = f"{RESERVED}.discover".encode()
RECONNECT_US_MAX = 2_000_000


class Beacon:
    """Answers those who look for the deployment of a node."""

    def __init__(self, deployment: Deployment, options: NatsOptions) -> None:
        self._answer = msgspec.msgpack.encode(deployment)
        self._client = NatsClient(options, self, RECONNECT_US_MAX)

    async def open(self) -> None:
        await self._client.open()
        self._client.subscribe(SUBJECT)
        with suppress(TransportError):  # it has gone again: the client comes back by itself, and subscribes anew
            await self._client.ping()

    async def close(self) -> None:
        await self._client.close()

    def on_messages(self, messages: list[Msg]) -> None:
        for _, _, reply, _, _ in messages:
            if reply:
                self._client.send(b"PUB %b %d\r\n%b\r\n" % (reply, len(self._answer), self._answer))

    def on_error(self, text: str) -> None:
        logger.info("beacon: %s", text)

    def on_failed(self, error: Exception) -> None:
        """Nobody stands on it: who looks for the deployment hears from the other nodes."""
        logger.error("beacon: %r", error)

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None: ...


class _Seeker:
    """Owns a connection for one question."""

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None: ...

    def on_failed(self, error: Exception) -> None:
        """The question stays unanswered, which is an error of its own."""

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None: ...


async def discover(server: str, timeout_s: float, broker: BrokerSpec = BrokerSpec()) -> Deployment:
    """The deployment whose nodes use this NATS server; raises TransportError if none answers."""
    options = NatsOptions((server,), login=login_of(broker, is_node=False), tls=broker_tls(broker))
    client = NatsClient(options, _Seeker(), RECONNECT_US_MAX)
    await client.open()
    try:
        reply = await client.request(SUBJECT, b"", timeout_s)
    except TransportError as error:
        raise TransportError(
            f"{without_credentials(server)} is there, but no unisono node uses it ({error}). "
            "Start one with: unisono node FILE NAME"
        ) from None
    finally:
        await client.close()
    try:
        return msgspec.msgpack.decode(reply[4], type=Deployment)
    except UNREADABLE as error:
        raise PeerError(f"what answers on {SUBJECT.decode()} is no node of ours: {error}") from None
