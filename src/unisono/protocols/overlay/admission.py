"""What a broker takes from its own clients: nothing that could hurt others, and every refusal has a reason.

Brokers believe each other; clients may be wrong or worse. They name events, subscriptions and advertisements after
themselves, count upwards, and send filters in their one spelling.
"""

from unisono.errors import MisuseError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter, canonical
from unisono.protocols.overlay.events import EventLimits, flat, why_not
from unisono.protocols.overlay.state import Publisher


def is_own(source: Address, name: str) -> bool:
    """Nobody can take or withhold a name of somebody else."""
    return name == source or name.startswith((f"{source}/", f"{source}."))


def why_not_published(
    source: Address, event: Event, publisher: Publisher, limits: EventLimits, buffer_max: int
) -> str | None:
    """The reason not to take a client's event."""
    if not is_own(source, event.publisher):
        return f"{event.id} is not {source}'s to publish"
    if event.sequence <= publisher.last.get(event.publisher, 0):
        return f"{event.id} comes after {publisher.last[event.publisher]}: sequences count up"
    reason = why_not(event, limits)
    if reason is not None:
        return reason
    if len(publisher.buffer) >= buffer_max:
        return f"{event.id}: {buffer_max} publications of {source} wait already"
    # Under the name of the event: whoever is cut off from a publisher is told its name from its advertisements.
    if all(ad in publisher.closed for ad in publisher.advertised(event.publisher, flat(event))):
        return f"{event.id} lies outside what {source} has advertised"
    return None


def why_not_routed(
    source: Address, name: str, filter: Filter, is_known: bool, count: int, routes_max: int
) -> str | None:
    """The reason not to take a client's advertisement or subscription."""
    if is_known or not is_own(source, name):
        return f"{name} is there already, or is not {source}'s to name"
    if filter.is_empty:
        return f"the filter of {name} contradicts itself: no event can match"
    if count >= routes_max:
        return f"{source} has {count} already, which is the most"
    try:
        if canonical(filter) == filter:
            return None
    except MisuseError as error:
        return str(error)
    return f"the filter of {name} is not in its normal form"
