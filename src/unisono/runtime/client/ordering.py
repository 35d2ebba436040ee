"""Who orders for a session: homes in a tree, or stampers by their clocks. What a session needs of either.

A session has one machine that publishes and one for every stream; all of them are made here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec import structs

from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
from unisono.model.promise import Promise
from unisono.model.time import SECOND, Micros
from unisono.protocols.clock.arrangements import ClockClientArrangement
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.deployed import clock_config, keepers, stampers
from unisono.protocols.clock.messages import Create, Nearest, Witnessed
from unisono.protocols.sequencer.arrangements import ClientArrangement
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.deployed import sequencer_config
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.messages import Creates
from unisono.runtime.client.publishing.publications import RepeatedPublications
from unisono.structures.sessions import PeerReborn
from unisono.turns import Arrangement

KEPT_RELIABLY_US = Micros(3600 * SECOND)
"""Reliable subscriptions: how long a payload is kept that the home knows nothing of, though it answers."""

RELIABLE_WAIT_US = Micros(60 * SECOND)
"""By clock: how long a payload is waited for that a broker keeps which stands still, and stamps that a node keeps which
is away; without them events are a gap."""

OrderingMachine = OrderingClient | ClockClient
REQUESTS = frozenset((Creates, Create))
"""What asks for numbers: it leaves at once."""


class ClientOrdering(Protocol):
    """The machines of one session."""

    @property
    def machine(self) -> OrderingMachine:
        """The one that publishes."""
        ...

    @property
    def arrangement(self) -> Arrangement: ...

    @property
    def window(self) -> int: ...

    @property
    def accept_us(self) -> Micros: ...

    @property
    def in_one_line(self) -> bool:
        """Publications keep their order from topic to topic."""
        ...

    @property
    def counts_over_topics(self) -> bool:
        """Requests count over all topics of the session, not on each."""
        ...

    @property
    def passes_on(self) -> bool:
        """Whether any node passes on what is for a home."""
        ...

    @property
    def on_stall(self) -> str:
        """What a topic that stalls can do, other than wait."""
        ...

    @property
    def homes(self) -> dict[Topic, Address]:
        """Filled by the session with what it is told."""
        ...

    def subscriber(self, sid: Address, promise: Promise, on_stall: str, has_archive: bool) -> OrderingMachine: ...

    def introduce(self, machine: OrderingMachine, homes: Mapping[Topic, Address]) -> None:
        """A stream's machine is about to join these topics."""
        ...

    @property
    def repeated(self) -> RepeatedPublications | None:
        """What the machine repeats; None: what it refuses keeps its place, so nobody has to look at that first."""
        ...

    @property
    def is_withdrawing(self) -> bool:
        """Who leaves now leaves subscribers waiting for payloads that will not come."""
        ...

    def has_forgotten(self, node: Address) -> Any:
        """What the publishing machine is told when a node has forgotten what it numbered; these topics live there."""
        ...

    @property
    def publishes_after_streams(self) -> bool:
        """What the streams were told comes before what is published then: `witnessed` is asked before it is."""
        ...

    def witnessed(self, machines: Iterable[Any]) -> Any:
        """What the publishing machine has to know of the session's streams before it publishes, if there is news."""
        ...

    def stand_on(self, near: Address) -> Any:
        """What all machines are told when this node is the nearest, if they have to know."""
        ...


class TreeClients:
    """Topics have homes; every machine asks those of its topics."""

    arrangement = ClientArrangement()
    counts_over_topics, passes_on, on_stall = False, True, "tag"
    publishes_after_streams = False

    def __init__(self, deployment: Deployment, address: Address) -> None:
        self._config = sequencer_config(deployment)
        self.in_one_line = deployment.sequencing.order == "causal"
        self.machine = OrderingClient(address, {}, self._config)
        self.window, self.accept_us = self._config.window, self._config.accept_us
        self.homes = self.machine.homes
        self.repeated = self.machine.publisher

    def subscriber(self, sid: Address, promise: Promise, on_stall: str, has_archive: bool) -> OrderingClient:
        config, deadline = structs.replace(self._config, tag_stalled=on_stall == "tag"), promise.deadline_us
        # Whoever has room for more that nobody has read has it for what is held back.
        config = structs.replace(config, buffer_max=max(config.buffer_max, promise.buffer_events_max))
        if deadline is not None:
            ask = min(config.ask_us, Micros(max(deadline // 4, 1000)))
            config = structs.replace(config, payload_wait_us=deadline, stall_us=deadline, ask_us=ask)
        elif promise.reliability == "reliable":
            # Somebody keeps the payload. The archive fills a hole, so it is asked soon; a broker that keeps everything
            # and stands still for a while has lost nothing, so it is waited for.
            wait = Micros(10 * config.ask_us) if has_archive else config.payload_keep_us
            config = structs.replace(config, payload_wait_us=wait, payload_keep_us=KEPT_RELIABLY_US)
        return OrderingClient(sid, {}, config)

    def introduce(self, machine: OrderingMachine, homes: Mapping[Topic, Address]) -> None:
        assert isinstance(machine, OrderingClient)
        machine.homes.update(homes)

    @property
    def is_withdrawing(self) -> bool:
        return bool(self.machine.publisher.withdrawals)

    def has_forgotten(self, node: Address) -> Any:
        return HomeReborn(node)

    def witnessed(self, machines: Iterable[Any]) -> Any:
        return None

    def stand_on(self, near: Address) -> Any:
        return None


class ClockClients:
    """Every machine publishes through the stamper nearest to it, and hears of clocks from there."""

    arrangement = ClockClientArrangement()
    in_one_line = counts_over_topics = publishes_after_streams = True
    repeated = None
    is_withdrawing = passes_on = False
    on_stall = "leave"

    def __init__(self, deployment: Deployment, address: Address) -> None:
        self._config = clock_config(deployment)
        self._stampers, self._keeper_of = stampers(deployment), keepers(deployment)
        self.homes: dict[Topic, Address] = {}
        self.machine = ClockClient(address, None, self._stampers, self._keeper_of, self._config)
        self.window, self.accept_us = self._config.window, self._config.accept_us
        self._witnessed = 0

    def subscriber(self, sid: Address, promise: Promise, on_stall: str, has_archive: bool) -> ClockClient:
        config = structs.replace(
            self._config,
            is_realtime=promise.order == "realtime",
            leaves_stalled=on_stall == "leave",
            held_max=max(self._config.held_max, promise.buffer_events_max),
        )
        deadline = promise.deadline_us
        if deadline is not None:
            ask = min(config.resend_us, Micros(max(deadline // 4, 1000)))
            config = structs.replace(
                config, payload_wait_us=deadline, hole_wait_us=deadline, stall_us=deadline, resend_us=ask
            )
        elif promise.reliability == "reliable":
            wait = Micros(10 * config.resend_us) if has_archive else RELIABLE_WAIT_US
            config = structs.replace(config, payload_wait_us=wait, hole_wait_us=max(config.hole_wait_us, wait))
        return ClockClient(sid, None, self._stampers, self._keeper_of, config)

    def introduce(self, machine: OrderingMachine, homes: Mapping[Topic, Address]) -> None:
        pass  # a topic's number tells who keeps it

    def has_forgotten(self, node: Address) -> Any:
        return PeerReborn(node)

    def witnessed(self, machines: Iterable[Any]) -> Any:
        """Causes come before effects: what is published comes after all that any stream was told."""
        stamp = max((each.subscriber.stamp for each in machines if isinstance(each, ClockClient)), default=0)
        if stamp <= self._witnessed:
            return None
        self._witnessed = stamp
        return Witnessed(stamp)

    def stand_on(self, near: Address) -> Any:
        return Nearest(near)


def client_ordering(deployment: Deployment, address: Address) -> ClientOrdering:
    return (ClockClients if deployment.sequencing.by == "clock" else TreeClients)(deployment, address)
