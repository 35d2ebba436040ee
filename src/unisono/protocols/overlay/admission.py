"""What a broker takes from its own clients: nothing that could hurt others, and every refusal has a reason.

Brokers believe each other; clients may be wrong or worse. They name events, subscriptions and advertisements after
themselves, count upwards, and send filters in their one spelling.
"""

from typing import NamedTuple

from unisono.errors import MisuseError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import CostError, Filter, canonical
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import Adv, Sub
from unisono.protocols.overlay.state import LocalPublisher
from unisono.structures.content import flat, is_own, why_not

_BOUND_BYTES = 64


class Refusal(NamedTuple):
    """Why something is not taken: a word to count it under, and a sentence."""

    code: str
    reason: str


def why_not_published(source: Address, event: Event, publisher: LocalPublisher, config: BrokerConfig) -> Refusal | None:
    """The reason not to take a client's event."""
    if not is_own(source, event.publisher):
        return Refusal("forged", f"{event.id} is not {source}'s to publish")
    last = publisher.last.get(event.publisher, 0)
    if event.sequence <= last:
        return Refusal("range", f"{event.id} comes after {last}: sequences count up, from 1")
    reason = why_not(event, config.limits)
    if reason is not None:
        return Refusal("event", reason)
    if len(publisher.buffer) >= config.buffer_max:
        return Refusal("publications", f"{event.id}: {config.buffer_max} publications of {source} wait already")
    if publisher.buffer and publisher.buffer_bytes + len(event.payload) > config.buffer_bytes_max:
        return Refusal("bytes", f"{event.id}: {publisher.buffer_bytes} bytes of {source} wait already")
    # Under the name of the event: whoever is cut off from a publisher is told its name from its advertisements.
    if all(ad in publisher.closed for ad in publisher.advertised(event.publisher, flat(event))):
        return Refusal("advertisement", f"{event.id} lies outside what {source} has advertised")
    return None


def why_not_routed(
    message: Adv | Sub, name: str, own: str, is_known: bool, count: int, bytes: int, config: BrokerConfig
) -> Refusal | None:
    """The reason not to take a client's advertisement or subscription; `own` is in whose name it comes."""
    source, filter = message.source, message.filter
    if is_known or not is_own(source, name):
        return Refusal("forged", f"{name} is there already, or is not {source}'s to name")
    if not is_own(source, own):
        return Refusal("forged", f"{source} cannot subscribe or advertise for {own}")
    if filter.is_empty:
        return Refusal("filter", f"the filter of {name} contradicts itself: no event can match")
    if count >= config.routes_per_client_max:
        return Refusal("subscriptions", f"{source} has {count} already, which is the most")
    weight = sum(box.weight for box in filter.boxes)
    if weight > config.filter_weight_max:
        return Refusal(
            "filter-cost", f"the filter of {name} has {weight} bounds; the most is {config.filter_weight_max}"
        )
    if bytes + size_of(filter) > config.route_bytes_per_client_max:
        return Refusal(
            "bytes", f"{source} has filters of {bytes} bytes; the most is {config.route_bytes_per_client_max}"
        )
    try:
        if canonical(filter, config.filter_cost_max) == filter:
            return None
    except CostError as error:
        return Refusal("filter-cost", str(error))
    except MisuseError as error:
        return Refusal("filter", str(error))
    return Refusal("filter", f"the filter of {name} is not in its normal form")


def size_of(filter: Filter) -> int:
    """About what it takes to keep a filter, in bytes."""
    sides = [side for box in filter.boxes for side in box.sides]
    texts = sum(len(name) + sum(map(len, values.strings)) for name, values in sides)
    return texts + _BOUND_BYTES * sum(box.weight for box in filter.boxes)
