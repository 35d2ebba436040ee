"""A broker's place in the groups of its deployment: it enters the view, beats, looks after a sibling, and obeys.

The view stands in a key-value bucket and changes by compare-and-set. While the bucket is away members go on, and nobody
enters. Whoever finds that it is a member no more, or that another process has its name, stops at once: what it has is
not lost, since publishers keep it until the root has it. Time decides who is looked upon as dead, and nothing else.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

import msgspec

from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec
from unisono.protocols.regions.deployed import member_of
from unisono.protocols.regions.groups import GroupMember, GroupView, SeenBeat
from unisono.runtime.brokers.deployed import node_options
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.nats.bucket import Kept, NatsBucket
from unisono.runtime.links.frames import UNREADABLE

logger = logging.getLogger(__name__)

VIEW = "view"
_view = msgspec.msgpack.Decoder(GroupView)


class BrokerMembership:
    """One life of one broker in the view."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        token: str,
        changed: Callable[[GroupView], None],
        lost: Callable[[Exception], None],
    ) -> None:
        """`changed` is told of every newer view, `lost` that we are out."""
        how = deployment.membership
        self.me = member_of(spec, secrets.token_hex(8))
        self.view = GroupView()
        self._patience_s, self._beat_s = how.patience_s, how.patience_s / 5
        options = node_options(deployment, how.servers, token)
        self._bucket = NatsBucket(f"unisono_{deployment.name}_brokers".replace(".", "_"), options, how.replicas)
        self._changed, self._guard = changed, Guard(lost)
        self._beats = 0
        self._revision = 0  # of our beat
        self._keeper: asyncio.Task[None] | None = None

    async def enter(self, patience_s: float) -> None:
        """Returns when the view has us; raises if the bucket is away for so long, or a living broker has our name."""
        loop = asyncio.get_running_loop()
        until, told = loop.time() + patience_s, ""
        while True:
            try:
                await self._bucket.open()
                await self._enter()
                break
            except TransportError as error:
                if loop.time() >= until:
                    raise
                if told != (told := str(error)):
                    logger.warning("waits up to %g s to enter the groups of brokers: %s", patience_s, told)
                await asyncio.sleep(0.1)
        self._keeper = self._guard.spawn(self._keep(), "membership")

    async def leave(self) -> None:
        """Says goodbye, if anybody is there to hear it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            try:
                async with asyncio.timeout(1.0):
                    await self.change(lambda view: view.left(self.me.name, self.me.life))
            except (TransportError, TimeoutError) as error:
                logger.info("left without a word: %s", error)
        await self._bucket.close()

    async def _enter(self) -> None:
        await self._wait_for_namesake()
        await self._beat()
        await self.change(lambda view: view if view.find(self.me.name) == self.me else view.entered(self.me))

    async def _wait_for_namesake(self) -> None:
        """A broker of our name that still beats has its right; one that does not is dead."""
        known = (await self._read())[1].find(self.me.name)
        if known is None or known.life == self.me.life:
            return
        seen = await self._seen(known)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() - begun < self._patience_s:
            await asyncio.sleep(self._beat_s)
            if await self._seen(known) != seen:
                raise MisuseError(
                    f"another broker is {self.me.name!r}, at {known.address}, and alive: no two have one name"
                )

    async def _seen(self, other: GroupMember) -> tuple[str, int]:
        """Its life and how often it has beaten."""
        text = (await self._bucket.get(f"beat.{other.name}")).data.decode("ascii", "replace")
        life, _, count = text.partition(" ")
        return life, int(count) if count.isdecimal() else 0

    async def _beat(self) -> None:
        self._beats += 1
        key, data = f"beat.{self.me.name}", f"{self.me.life} {self._beats}".encode()
        revision = await self._bucket.put(key, data, self._revision)
        if revision is None:  # of an earlier life, or an answer that we have not heard
            self._revision = (await self._bucket.get(key)).revision
            revision = await self._bucket.put(key, data, self._revision)
        if revision is not None:
            self._revision = revision

    async def _read(self) -> tuple[Kept, GroupView]:
        kept = await self._bucket.get(VIEW)
        if not kept.revision:
            return kept, GroupView()
        try:
            return kept, _view.decode(kept.data)
        except UNREADABLE as error:
            raise TransportError(f"the view of brokers cannot be read: {error}") from None

    async def change(self, to: Callable[[GroupView], GroupView]) -> None:
        """Again until ours is what follows from the newest view."""
        while True:
            kept, view = await self._read()
            wanted = to(view)
            if wanted is view:
                break
            if await self._bucket.put(VIEW, msgspec.msgpack.encode(wanted), kept.revision) is not None:
                view = wanted
                break
        self._heed(view)

    def _heed(self, view: GroupView) -> None:
        if view.version > self.view.version:
            self.view = view
            self._changed(view)

    async def _keep(self) -> None:
        watched: tuple[GroupMember, SeenBeat] | None = None
        while True:
            await asyncio.sleep(self._beat_s)
            try:
                watched = await self._look(watched)
            except TransportError as error:  # members go on
                logger.info("groups of brokers: %s", error)

    async def _look(self, watched: tuple[GroupMember, SeenBeat] | None) -> tuple[GroupMember, SeenBeat] | None:
        now = asyncio.get_running_loop().time
        self._heed((await self._read())[1])
        why = self.view.why_out(self.me)
        if why is not None:
            raise MisuseError(f"{why}: start it again")
        await self._beat()
        other = self.view.watched_by(self.me)
        if other is None:
            return None
        seen = await self._seen(other)
        if watched is None or watched[0] != other:
            return other, SeenBeat(*seen, now())
        if watched[1].silent_s(*seen, now()) >= self._patience_s:
            logger.warning("%s has not beaten for %g s: it is a member no more", other.name, self._patience_s)
            await self.change(lambda view: view.left(other.name, other.life))
            return None
        return watched
