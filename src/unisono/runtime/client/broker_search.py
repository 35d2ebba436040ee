"""Which of several brokers a client stands on: the first that answers, and when that one is lost, the next.

A broker that does not answer within `NEXT_S` is given up for the next. Whoever uses the search says when a node answers
(`answers`) and when the broker is lost (`go_on`), and is told when one is found.
"""

import asyncio
from collections.abc import Callable, Sequence

from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.links.dialing import dial_node, unanswered
from unisono.runtime.links.links import Links

NEXT_S = 1.0
"""A broker that cannot be reached for this long is given up for the next one."""


class BrokerSearch:
    """Dials brokers in turn until one answers."""

    def __init__(
        self,
        links: Links,
        brokers: Sequence[NodeSpec],
        on_found: Callable[[Address], None],
        is_connected: Callable[[Address], bool] = lambda name: False,
    ) -> None:
        """`is_connected`: whether a node answers already, for another reason."""
        self.brokers = brokers
        self.broker = brokers[0]
        """The one that is connected, or is being dialled."""
        self._links, self._on_found, self._is_connected = links, on_found, is_connected
        self._place = 0
        self._link: asyncio.Future[None] | None = None  # done while the broker is connected
        self._dialling: asyncio.Task[None] | None = None

    @property
    def attached_to(self) -> Address | None:
        """The broker, if it is connected."""
        return Address(self.broker.name) if self._link is not None and self._link.done() else None

    def start(self) -> None:
        self._link = asyncio.get_running_loop().create_future()
        self._dialling = asyncio.create_task(self._dial_in_turn(), name="find a broker")

    async def _dial_in_turn(self) -> None:
        assert self._link is not None
        while not self._link.done():
            self.broker = self.brokers[self._place % len(self.brokers)]
            name = Address(self.broker.name)
            dial_node(self._links, self.broker)
            if self._is_connected(name):
                self.answers(name)
                return
            await asyncio.wait([self._link], timeout=NEXT_S)
            if not self._link.done():
                self._links.hang_up(name)
                self._place += 1

    async def connected(self, patience_s: float) -> None:
        """Returns when a broker is reached; raises TransportError if none is in time."""
        assert self._link is not None
        await asyncio.wait([self._link], timeout=patience_s)
        if not self._link.done():
            raise unanswered(self._links, self.brokers)

    def answers(self, node: Address) -> None:
        """A node can be reached: perhaps it is the one that is looked for."""
        if node == self.broker.name and self._link is not None and not self._link.done():
            self._link.set_result(None)
            self._on_found(node)

    def go_on(self) -> None:
        """The broker is lost: on to the next."""
        self._leave(self._place + 1)

    async def go_to(self, broker: NodeSpec) -> None:
        """Leaves the broker, or the search for one, for that one."""
        if self.attached_to is None:  # it shall not find another meanwhile
            await self.stop()
        self._leave(self.brokers.index(broker))

    def _leave(self, place: int) -> None:
        self._place = place
        self._links.hang_up(Address(self.broker.name))
        self.start()

    async def stop(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
