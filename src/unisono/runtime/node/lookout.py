"""What a node sees of itself and of those around it, once a second: neighbours, the broker's servers, disk, clocks.

A neighbour is up while its connection stands and it answers (a process that is stopped keeps its connections for a long
time); a server is up if it lets us in. Every change of any of it is one line in the log. Nothing is decided here:
what the node does when something is away is its links', its adapter's and its machine's business.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from unisono.errors import TransportError, UnisonoError
from unisono.model.deployment import Deployment
from unisono.model.health import SKEW_US_MAX, Checked, Health, PeerSeen, ServerSeen
from unisono.model.homes import sequencers
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.brokers.contract import Down, EnsNotice, Lost, Up
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.probing import Ask, probe
from unisono.runtime.links.control import PING_FEATURE, PeerPing, PeerPong
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import Links
from unisono.runtime.node.ordering import neighbours
from unisono.runtime.saying import say

logger = logging.getLogger(__name__)

FREE_BYTES_MIN = 64 << 20
"""With less room than this on its disk a node says that it is not ready; it works on until a write fails."""
REFUSALS_AGAIN_S = 10.0
"""Refusals with one code are one line in so long."""


def wall_us() -> int:
    """The clock that others see: `driver.clock` goes on by itself when this one is set."""
    return time.time_ns() // 1000


def _write_some(directory: Path) -> int:
    """Bytes that are free where a file of 4 KiB could just be written; raises OSError."""
    path = directory / f"writable-{os.getpid()}"
    try:
        path.write_bytes(bytes(4096))
    finally:
        path.unlink(missing_ok=True)
    return shutil.disk_usage(directory).free


class LookoutConfig(Struct, frozen=True):
    """How often a node looks, and how long it waits for an answer."""

    every_s: float = 1.0
    """Two small messages per neighbour, and a write of 4 KiB."""
    servers_every_s: float = 2.0
    """A connection to every server of the broker."""
    answer_s: float = 3.0
    """Who has not answered for so long is down: longer than a round trip around the world."""
    server_answer_s: float = 2.0


class _Peer(Struct):
    """A neighbour, and when it was heard."""

    linked: bool = False
    pings: bool = False
    """Whether it understands them; an older release does not."""
    heard_s: float = 0.0
    answered: bool = False
    """Since it is linked: who lets us in and is then turned away, or turns us away, has not been up."""
    round_trip_us: int | None = None
    least_us: int | None = None
    """Of all round trips on this connection: what is above it is load, not distance."""
    ahead_us: int | None = None
    why: str = "not reached yet"


class Lookout:
    """Looks, remembers what it saw, and says what has changed."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        probes: dict[str, Ask],
        directory: Path | None,
        working: Callable[[], str | None],
        keeping: Callable[[], str | None],
        config: LookoutConfig = LookoutConfig(),
        clock: Callable[[], int] = wall_us,
    ) -> None:
        """`clock` is compared with those of the neighbours. `directory` is that of the node's log, if it keeps one
        there; `working` says why the node does no work yet or any more, None if it does; `keeping` the same of its
        archive."""
        self.leases_ended = 0
        self._me, self._parent = Address(spec.name), Address(spec.parent) if spec.parent is not None else None
        self._region, self._regions = spec.region, {Address(node.name): node.region for node in deployment.nodes}
        self._peers = {Address(name): _Peer() for name in neighbours(deployment, spec.name)}
        self._links, self._probes, self._directory = links, probes, directory
        self._working, self._config, self._clock = working, config, clock
        self._keeping = keeping if "archive" in spec.roles else None
        self._of_stampers = len(sequencers(deployment)) if deployment.sequencing.by == "clock" else 0
        self._servers: dict[str, ServerSeen] = {}
        self._disk: Checked | None = None
        self._broker: str | None = None if probes else ""  # why not, or "" while it is there; None: not known yet
        self._hurry = asyncio.Event()
        self._told: dict[tuple[str, str], bool] = {}
        self._settled_s = 0.0
        self._refused: dict[str, tuple[int, float]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.free_bytes: int | None = None

    def start(self, guard: Guard) -> None:
        self._settled_s = asyncio.get_running_loop().time() + self._config.answer_s
        self._tasks = [guard.spawn(self._keep_looking(), "lookout")]
        self._tasks += [
            guard.spawn(self._keep_probing(name, ask), f"probe {name}") for name, ask in self._probes.items()
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # what the node tells

    def follow(self, neighbours: Iterable[Address]) -> None:
        """Whom the node has a link with, now that groups of brokers have changed."""
        now = asyncio.get_running_loop().time()
        self._peers = {
            name: self._peers.get(name) or _Peer(linked=self._links.is_up(name), heard_s=now) for name in neighbours
        }

    def linked(self, hello: Hello) -> None:
        for address in hello.addresses:
            peer = self._peers.get(address)
            if peer is not None:
                peer.linked, peer.pings, peer.answered = True, PING_FEATURE in hello.features, False
                peer.heard_s = asyncio.get_running_loop().time()
                self._ping(address, peer)
        self.compare()

    def unlinked(self, hello: Hello, error: UnisonoError | None) -> None:
        for address in hello.addresses:
            peer = self._peers.get(address)
            if peer is not None:
                peer.linked, peer.why = False, str(error) if error is not None else "it closed the connection"
                peer.round_trip_us = peer.least_us = peer.ahead_us = None
        self.compare()

    def answer(self, ping: PeerPing) -> None:
        """Only neighbours are answered, and cost nothing that could be asked for."""
        if ping.source in self._peers:
            self._links.send(ping.source, PeerPong(self._me, ping.at_us, self._clock()))

    def heard(self, pong: PeerPong) -> None:
        peer = self._peers.get(pong.source)
        if peer is not None:
            now, is_first = self._clock(), not peer.answered
            peer.heard_s, peer.answered = asyncio.get_running_loop().time(), True
            span = peer.round_trip_us = max(0, now - pong.asked_us)
            peer.least_us = span if peer.least_us is None else min(span, peer.least_us)
            peer.ahead_us = pong.at_us - (now + pong.asked_us) // 2
            if is_first:
                self.compare()

    def broker_said(self, notice: EnsNotice) -> None:
        match notice:
            case Down(reason=reason):
                self._broker = reason
                self._look_at_servers()  # which is it?
                say(logger, logging.WARNING, f"the broker is lost: {reason}", event="broker-lost")
            case Up(resent=resent):
                self._broker = ""
                say(logger, logging.INFO, f"the broker is back; {resent} items published again", event="broker-back")
            case Lost(reason=reason, topic=topic):
                about = f" on {topic}" if topic else ""
                say(logger, logging.WARNING, f"items{about} may have passed us by: {reason}", event="broker-loss")
            case _:
                pass

    @property
    def is_broker_up(self) -> bool:
        return self._broker == ""

    def broker_opened(self) -> None:
        self._broker = ""
        self._look_at_servers()

    def _look_at_servers(self) -> None:
        """Now, not when it is time again."""
        self._hurry.set()
        self._hurry = asyncio.Event()

    def lease_ended(self, client: Address) -> None:
        self.leases_ended += 1
        say(logger, logging.INFO, f"client {client} stayed away and is forgotten", event="lease-ended", client=client)

    # what is known

    def distances_us(self) -> dict[str, int]:
        """Region of a neighbour -> the least round trip to it."""
        found: dict[str, int] = {}
        for name, peer in self._peers.items():
            region = self._regions[name]
            if peer.least_us is not None and region != self._region:
                found[region] = min(peer.least_us, found.get(region, peer.least_us))
        return found

    def skew_us(self) -> tuple[int, int] | None:
        """By clock: how far ours is ahead of the median of all stampers', of two of the later one, and how sure that
        is; None: not even half of the others can be asked."""
        seen = [(peer.ahead_us, peer.round_trip_us or 0) for peer in self._peers.values() if peer.ahead_us is not None]
        if not self._of_stampers or 2 * (len(seen) + 1) <= self._of_stampers:
            return None
        ahead = sorted([0, *(each for each, _ in seen)])
        return -ahead[len(ahead) // 2], max((trip for _, trip in seen), default=0) // 2

    def health(self) -> Health:
        """As of now."""
        peers = tuple(self._seen(name, peer) for name, peer in self._peers.items())
        checks = [self._of_work()]
        if self._disk is not None:
            checks.append(self._disk)
        if self._probes:
            checks.append(self._of_broker())
        if self._keeping is not None:
            why = self._keeping()
            checks.append(Checked("archive", why is None, why or "keeps what is published"))
        if self._parent is not None:
            parent = next(peer for peer in peers if peer.node == self._parent)
            checks.append(Checked("parent", parent.up, f"{parent.node}: {parent.detail}"))
            if parent.ahead_us is not None and not self._of_stampers:
                checks.append(self._of_clock(parent))
        if (skew := self.skew_us()) is not None:
            detail = (
                f"{skew[0] / 1e6:+.3f} s from the median of {self._of_stampers}, give or take {skew[1] / 1e6:.3f} s"
            )
            checks.append(Checked("clock", abs(skew[0]) - skew[1] <= SKEW_US_MAX, detail))
        return Health(
            tuple(checks), peers, tuple(self._servers[name] for name in self._probes if name in self._servers)
        )

    def _of_work(self) -> Checked:
        why = self._working()
        return Checked("node", why is None, why or "works")

    def _of_broker(self) -> Checked:
        if self._broker is None:
            return Checked("broker", False, "not reached yet")
        if self._broker:
            return Checked("broker", False, self._broker)
        if self._servers and not any(server.up for server in self._servers.values()):
            return Checked("broker", False, "none of its servers answers")
        return Checked("broker", True, "connected")

    def _of_clock(self, parent: PeerSeen) -> Checked:
        ahead, trip = parent.ahead_us or 0, parent.round_trip_us or 0
        side = "ahead of" if ahead < 0 else "behind"
        detail = f"{abs(ahead) / 1e6:.3f} s {side} {parent.node}, give or take {trip / 2e6:.3f} s"
        return Checked("clock", abs(ahead) - trip // 2 <= SKEW_US_MAX, detail)

    def _seen(self, name: Address, peer: _Peer) -> PeerSeen:
        silent_s = asyncio.get_running_loop().time() - peer.heard_s
        if not peer.linked:
            return PeerSeen(name, False, self._links.problems.get(name, peer.why))
        if peer.pings and not peer.answered:
            return PeerSeen(name, False, peer.why)
        if peer.pings and silent_s > self._config.answer_s:
            return PeerSeen(name, False, f"connected, and has not answered for {silent_s:.0f} s")
        return PeerSeen(name, True, "connected", peer.round_trip_us, peer.ahead_us)

    # looking

    async def _keep_looking(self) -> None:
        while True:
            for name, peer in self._peers.items():
                self._ping(name, peer)
            if self._directory is not None:
                self._disk = await self._look_at_disk(self._directory)
            self.compare()
            self._tell_refusals()
            await asyncio.sleep(self._config.every_s)

    def _ping(self, name: Address, peer: _Peer) -> None:
        if peer.linked and peer.pings:
            self._links.send(name, PeerPing(self._me, self._clock()))

    async def _look_at_disk(self, directory: Path) -> Checked:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._config.answer_s):
                free_bytes = await loop.run_in_executor(None, _write_some, directory)
        except TimeoutError:
            return Checked("log", False, f"a write to {directory} takes longer than {self._config.answer_s:g} s")
        except OSError as error:
            return Checked("log", False, f"{directory} cannot be written: {error.strerror or error}")
        self.free_bytes = free_bytes
        return Checked(
            "log",
            free_bytes >= FREE_BYTES_MIN,
            f"{free_bytes >> 20} MiB free in {directory}, {FREE_BYTES_MIN >> 20} MiB are needed",
        )

    async def _keep_probing(self, name: str, ask: Ask) -> None:
        while True:
            try:
                round_trip_us = await probe(ask, self._config.server_answer_s)
                self._servers[name] = ServerSeen(name, True, "answers", round_trip_us)
            except TransportError as error:
                self._servers[name] = ServerSeen(name, False, str(error))
            self.compare()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.servers_every_s):
                    await self._hurry.wait()

    # saying

    def compare(self) -> None:
        """One line for everything that is not as it was told last; what is away when we start has some time to come."""
        health = self.health()
        for check in health.checks:
            if check.name not in ("node", "parent"):  # the one says so itself, the other is a peer
                self._change("check", check.name, check.passed, check.detail)
        for peer in health.peers:
            self._change("peer", peer.node, peer.up, peer.detail)
        for server in health.servers:
            self._change("server", server.server, server.up, server.detail)

    def _change(self, kind: str, name: str, good: bool, detail: str) -> None:
        told = self._told.get((kind, name))
        if told is None and not good and asyncio.get_running_loop().time() < self._settled_s:
            return
        self._told[kind, name] = good
        if good == (told is not False):
            return
        level, state = (logging.INFO, "up") if good else (logging.WARNING, "down")
        say(logger, level, f"{kind} {name} is {state}: {detail}", event=f"{kind}-{state}", **{kind: name})

    def _tell_refusals(self) -> None:
        now = asyncio.get_running_loop().time()
        for code, count in self._links.refusals.counts.items():
            told, at = self._refused.get(code, (0, -REFUSALS_AGAIN_S))
            if count > told and now - at >= REFUSALS_AGAIN_S:
                self._refused[code] = count, now
                last = self._links.refusals.last.get(code, "")
                often = "once" if count - told == 1 else f"{count - told} times"
                text = f"refused {often} ({code}), last: {last}"
                say(logger, logging.WARNING, text, event="refused", code=code, count=count - told)
