"""Proof that a subscription is known at every server of a NATS cluster.

A server tells its neighbours of a new subscription over the route between them, so an event published at a neighbour
at once misses it: with 20 ms between two servers, the first event after subscribe and flush was lost every time. The
same route also carries our messages, in order. So a *probe*, a small connection of ours at each other server, listens
on a subject of its own; after the subscription we publish a numbered marker there, again and again until it is seen. A
probe that has seen it sits on a server that knew the subscription before.

The same holds of the connection of a leaf node. A server that cannot be reached is passed over: nobody we could hear
from is known to be there. Gateways between clusters (superclusters) keep interest and messages on different
connections, and forward before they know any: for them this is no proof, and they are refused.
"""

import asyncio
from contextlib import suppress

from unisono.errors import PlanError, TransportError
from unisono.runtime.brokers.contract import RESERVED
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Info, Msg, NatsWire, dial

AGAIN_S = 0.02
AGAIN_S_MAX = 0.5
MEET_S = 1.0
UNREACHABLE_S = 5.0
"""A server that could not be reached is not dialed again for this long."""


class SubscriptionProbes:
    """The probes of one adapter."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._probes: dict[str, _Probe] = {}  # by server id
        self._server_ids: dict[str, str] = {}  # by URL, as far as known
        self._unreachable: dict[str, float] = {}  # URL -> when it may be dialed again
        self._number = 0
        self._probe_count = 0
        self._round: asyncio.Task[None] | None = None  # begins in the next loop turn; whoever asks before shares it
        self.changed = asyncio.Event()

    async def prove(self) -> None:
        """Returns when every reachable server knows what we had subscribed to; TransportError if the line breaks."""
        if self._round is None:
            self._round = asyncio.create_task(self._prove(), name="nats-proof")
            self._round.add_done_callback(_look)
        await asyncio.shield(self._round)

    async def _prove(self) -> None:
        self._round = None
        client = self._client
        await client.ping()  # our own server
        await self._dial_missing()
        self._number += 1
        number, pause_s = self._number, AGAIN_S
        while True:
            here = client.info.server_id
            unproven = [
                probe
                for server_id, probe in self._probes.items()
                if server_id != here and probe.seen < number and not probe.is_gone
            ]
            if not unproven:
                return
            if client.wire is None:
                raise TransportError("the connection broke before the subscription was proven")
            for probe in unproven:
                payload = b"%d" % number
                client.send(b"PUB %b %d\r\n%b\r\n" % (probe.subject, len(payload), payload))
            try:
                async with asyncio.timeout(pause_s):
                    await self.changed.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, AGAIN_S_MAX)

    def wake(self) -> None:
        """Tells every round that a probe has seen something; the next wait is on a fresh event."""
        self.changed.set()
        self.changed = asyncio.Event()

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()

    async def meet(self) -> None:
        """Raises PlanError if servers that answer soon are such that nothing could be proven between them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                await self._dial_missing()

    async def _dial_missing(self) -> None:
        for server_id in [server_id for server_id, probe in self._probes.items() if probe.is_gone]:
            del self._probes[server_id]
        now = asyncio.get_running_loop().time()
        known = {self._client.info.server_id, *self._probes}
        missing = [
            url
            for url in self._client.servers()
            if self._server_ids.get(url) not in known and self._unreachable.get(url, 0.0) <= now
        ]
        await asyncio.gather(*(self._dial(url) for url in missing))

    async def _dial(self, url: str) -> None:
        self._probe_count += 1
        probe = _Probe(self, f"{RESERVED}.mark.{self._client.session}.{self._probe_count}".encode())
        try:
            await probe.open(url, self._client)
        except TransportError:
            self._unreachable[url] = asyncio.get_running_loop().time() + UNREACHABLE_S
            self._client.forget(url)
            return
        reason = _why_apart(self._client.info, probe.info)
        if reason:
            probe.close()
            raise PlanError(reason)
        self._server_ids[url] = probe.server_id
        if probe.server_id == self._client.info.server_id or probe.server_id in self._probes:
            probe.close()
        else:
            self._probes[probe.server_id] = probe


def _why_apart(here: Info, there: Info) -> str:
    """Servers of one cluster, and leaf nodes of one server, which are clusters of their own, keep interest and messages
    in one order."""
    alone = [info.cluster in ("", info.server_name) for info in (here, there)]
    if here.cluster == there.cluster or any(alone):
        return ""
    return (
        f"NATS servers {here.server_name} and {there.server_name} are of different clusters ({here.cluster} and "
        f"{there.cluster}): between them nothing proves that a subscription is known, and events would be missed in"
        " silence. Name servers of one cluster in broker.servers, and bring other sites in by leaf nodes of one server"
    )


def _look(done: asyncio.Task[None]) -> None:
    """Whoever waited for this round may have been cancelled; its failure is nobody's then."""
    if not done.cancelled():
        done.exception()


class _Probe:
    """An ear at one other server."""

    def __init__(self, prover: SubscriptionProbes, subject: bytes) -> None:
        self._prover = prover
        self.subject = subject
        self.info = Info()
        self.server_id = ""
        self.seen = 0
        self.is_gone = False
        self._wire: NatsWire | None = None

    async def open(self, url: str, client: NatsClient) -> None:
        self._wire = await dial(url, client.options, self)
        self.info = self._wire.info
        self.server_id = self.info.server_id
        self._wire.send(b"SUB %b 1\r\n" % self.subject)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def on_messages(self, messages: list[Msg]) -> None:
        self.seen = max(self.seen, *[int(message[4]) for message in messages if message[4].isdigit()], 0)
        self._prover.wake()

    def on_error(self, text: str) -> None: ...

    def on_gone(self, wire: NatsWire, reason: str) -> None:
        self.is_gone = True
        self._prover.wake()
