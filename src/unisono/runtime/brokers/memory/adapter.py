"""An ENS inside one event loop: a `Hub` and any number of `MemoryEns` connections to it.

For embedded use in one process and for users' own tests: `DeliveryFaults` delays, reorders and loses deliveries, drawn
from a seed. Loss is silent, as a real broker's may be; what the adapter contract reports is what an adapter can notice.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.runtime.brokers.contract import AdapterLimits, Item, Listener, Lost, Parcel, Traits, check_channel, unpack
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems

Channel = tuple[str, bool]

TURN_ITEMS_MAX = 1024
"""Items handed to a listener per loop turn, so that one busy subscriber cannot starve the loop."""


class DeliveryFaults(Struct, frozen=True):
    """What happens to an item on its way to one subscriber."""

    delay_us: tuple[int, int] = (0, 0)
    """Lowest and highest delay, drawn evenly."""
    reorder: bool = False
    """Whether a later item may overtake; if not, an item waits for those before it."""
    loss: float = 0.0
    """Share of deliveries that never come."""
    seed: int = 0


class HubConfig(Struct, frozen=True):
    """Bounds of a hub."""

    inbox_items_max: int = 20_000
    """Items waiting for one subscriber."""
    slow: str = "wait"
    """At that bound: `wait` leaves items open at their publishers, `gap` drops them and tells the subscriber."""
    faults: DeliveryFaults = DeliveryFaults()


class Hub:
    """The broker: who listens to which channel."""

    def __init__(self, config: HubConfig = HubConfig()) -> None:
        if config.slow not in ("wait", "gap"):
            raise MisuseError(f"slow = {config.slow!r}: it is 'wait' or 'gap'")
        self.config = config
        self.dice = random.Random(config.faults.seed)
        self.channels: dict[Channel, dict[MemoryEns, None]] = {}
        self.blocked: dict[MemoryEns, None] = {}  # publishers whose oldest item waits for a full inbox

    def has_room(self, channel: Channel) -> bool:
        bound = self.config.inbox_items_max
        return all(ens.waiting < bound for ens in self.channels.get(channel, ()))

    def unblock(self) -> None:
        publishers, self.blocked = self.blocked, {}
        for ens in publishers:
            ens.pump()


class MemoryEns:
    """One connection to a hub."""

    traits = Traits("memory", strength="ordered", payload_bytes_max=64 * 1024 * 1024)

    def __init__(self, hub: Hub, listener: Listener, limits: AdapterLimits = AdapterLimits()) -> None:
        self._hub = hub
        self._listener, self._guard = listener, Guard(listener.on_failed)
        self._outbox = UnconfirmedItems[Item](limits, self.traits.payload_bytes_max)
        self._inbox: deque[Item] = deque()
        self._in_order: deque[Item] = deque()  # delayed items, where their order is kept
        self._under_way = 0  # delayed items
        self._last_due = 0.0
        self._dropped: dict[Channel, int] = {}
        self._paused = False
        self._handing_over = self._pumping = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    @property
    def waiting(self) -> int:
        """Items on their way to our listener."""
        return len(self._inbox) + self._under_way

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def publish(self, items: Sequence[Parcel]) -> None:
        self._outbox.put(unpack(items))
        if not self._pumping:
            self._pumping = True
            self._guard.soon(self.pump)

    async def room(self) -> None:
        await self._outbox.room()

    async def flush(self) -> None:
        await self._outbox.flush()

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        if after is not None:
            raise MisuseError("the memory service keeps nothing to replay")
        self._hub.channels.setdefault((check_channel(topic), control), {})[self] = None

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        members = self._hub.channels.get((topic, control), {})
        members.pop(self, None)
        if not members:
            self._hub.channels.pop((topic, control), None)
        self._dropped.pop((topic, control), None)
        self._inbox = deque(item for item in self._inbox if item.topic != topic or item.control != control)
        self._hub.unblock()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake()

    async def close(self) -> None:
        for topic, control in [channel for channel, members in self._hub.channels.items() if self in members]:
            self.unsubscribe(topic, control=control)
        await self._outbox.flush()
        self._outbox.close("this connection is closed")

    def pump(self) -> None:
        """Moves our open items into the inboxes, up to the first that has to wait."""
        self._pumping = False
        hub, done = self._hub, 0
        for item in self._outbox.items:
            channel = (item.topic, item.control)
            if hub.config.slow == "wait" and not hub.has_room(channel):
                hub.blocked[self] = None
                break
            for member in hub.channels.get(channel, ()):
                member.take(item)
            done += 1
        if done:
            self._outbox.confirm(done)
            self._listener.on_confirmed(done)

    def take(self, item: Item) -> None:
        """An item of a channel we are on leaves its publisher."""
        faults = self._hub.config.faults
        if self.waiting >= self._hub.config.inbox_items_max:
            channel = (item.topic, item.control)
            self._dropped[channel] = self._dropped.get(channel, 0) + 1
            return
        if faults.loss and self._hub.dice.random() < faults.loss:
            return
        if faults.delay_us == (0, 0):
            self._arrive(item)
            return
        due = self._loop.time() + self._hub.dice.uniform(*faults.delay_us) / 1e6
        self._under_way += 1
        if faults.reorder:
            self._loop.call_at(due, self._land, item)
        else:
            # Timers of the same moment fire in no certain order: a timer lands whoever has waited longest.
            self._in_order.append(item)
            self._last_due = max(due, self._last_due)
            self._loop.call_at(self._last_due, self._land, None)

    def _land(self, item: Item | None) -> None:
        self._under_way -= 1
        if item is None:
            item = self._in_order.popleft()
        if self in self._hub.channels.get((item.topic, item.control), ()):
            self._arrive(item)

    def _arrive(self, item: Item) -> None:
        self._inbox.append(item)
        self._wake()

    def _wake(self) -> None:
        if not self._handing_over and not self._paused and (self._inbox or self._dropped):
            self._handing_over = True
            self._guard.soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing_over = False
        if self._paused:
            return
        if len(self._inbox) <= TURN_ITEMS_MAX:
            items, self._inbox = list(self._inbox), deque()
        else:
            items = [self._inbox.popleft() for _ in range(TURN_ITEMS_MAX)]
        if items:
            self._listener.on_items(items)
        if self._dropped:
            dropped, self._dropped = self._dropped, {}
            for (topic, control), count in dropped.items():
                self._listener.on_notice(Lost("the subscriber was too slow", topic, control, count))
        self._hub.unblock()
        self._wake()
