"""The publishers at this broker: what they may send, and what of it waits (section 6).

A publication waits here until its advertisement is open, that is known everywhere it has to be, and while too much
pends. What a publisher withdraws stays known until its buffer is empty.
"""

from collections.abc import Iterable

from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.model.time import Micros
from unisono.protocols.overlay.admission import why_not_published
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import OverlayNotTaken, OverlayTaken, Pub
from unisono.protocols.overlay.publications import Publications
from unisono.protocols.overlay.state import BrokerEffects, LocalPublisher
from unisono.protocols.overlay.tables import Hop, Tables
from unisono.structures.content import flat

_NOBODY = LocalPublisher()
"""Stands for a publisher that has advertised nothing: all it says is refused."""


class LocalPublishers:
    """Publishers by hop; a hop of theirs is `pub:` and their address."""

    def __init__(self, config: BrokerConfig, tables: Tables, publications: Publications, out: BrokerEffects) -> None:
        self._config, self._tables, self._publications, self._out = config, tables, publications, out
        self._publishers: dict[Hop, LocalPublisher] = {}
        self._waiting: dict[Hop, None] = {}  # those whose buffers hold something

    def __contains__(self, hop: Hop) -> bool:
        return hop in self._publishers

    def __len__(self) -> int:
        return len(self._publishers)

    def waiting(self) -> list[Hop]:
        """Those with publications in their buffers."""
        return list(self._waiting)

    def take(self, message: Pub) -> bool:
        """Puts it in its publisher's buffer, or refuses it."""
        source, event = message.source, message.event
        publisher = self._publishers.get(f"pub:{source}", _NOBODY)
        refusal = why_not_published(source, event, publisher, self._config)
        if refusal is not None:
            self._out.send(source, OverlayNotTaken(event.id, refusal.reason, refusal.code))
            self._out.refuse(refusal.reason, refusal.code)
            return False
        publisher.last[event.publisher] = event.sequence
        publisher.buffer.append(event)
        publisher.buffer_bytes += len(event.payload)
        return True

    def admit(self, hop: Hop, now: Micros) -> tuple[str, ...]:
        """Lets a buffer out, in order, as far as advertisements are open; returns those to withdraw now."""
        publisher = self._publishers[hop]
        while publisher.buffer and len(self._publications.pending) < self._config.pending_max:
            event = publisher.buffer[0]
            advertised = publisher.advertised(event.publisher, flat(event))
            if all(name in publisher.opening for name in advertised):
                break
            publisher.buffer.popleft()
            publisher.buffer_bytes -= len(event.payload)
            publisher.passed[event.publisher] = event.sequence
            self._out.send(Address(hop.removeprefix("pub:")), OverlayTaken(event.id))
            self._publications.pass_on(event, hop, echo=False, barrier=False, now=now)
        if publisher.buffer:
            self._waiting[hop] = None
            return ()
        self._waiting.pop(hop, None)
        closing = tuple(ad for ad in publisher.closing if ad not in publisher.opening)
        for ad in closing:
            del publisher.closing[ad]
        return closing

    def advertise(self, hop: Hop, ad: str, publisher: str, filter: Filter) -> int:
        """Returns the number of the last event that passed here under that name."""
        mine = self._publishers.setdefault(hop, LocalPublisher())
        mine.advertise(ad, publisher, filter)
        return mine.passed.get(publisher, 0)

    def opened(self, hop: Hop, ad: str) -> None:
        del self._publishers[hop].opening[ad]

    def close(self, hop: Hop, ads: Iterable[str]) -> None:
        """Withdrawn by the publisher; buffered publications still go out first."""
        publisher = self._publishers[hop]
        for ad in ads:
            if ad not in publisher.closed:
                publisher.closing[ad] = publisher.closed[ad] = None

    def withdrawn(self, hop: Hop, ad: str) -> None:
        if hop in self._publishers:
            self._publishers[hop].withdrawn(ad)

    def leave(self, hop: Hop) -> None:
        if hop in self._publishers:
            self._publishers[hop].gone = True

    def forget(self, hop: Hop) -> None:
        """A client that has gone and whose last advertisement is withdrawn."""
        publisher = self._publishers.get(hop)
        if publisher is not None and publisher.gone and not publisher.buffer and not self._tables.from_hop(hop):
            del self._publishers[hop]
