"""The choices of a broker, each with its price."""

from msgspec import Struct

from unisono.model.predicate import FILTER_COST_MAX
from unisono.model.time import Micros
from unisono.protocols.overlay.detection import Detection
from unisono.structures.content import EventLimits


class BrokerConfig(Struct, frozen=True):
    """One broker."""

    detection: Detection = "clients"
    """`exact` waits least and is right only if every client has one subscription."""
    covering: bool = False
    """A neighbour is not told of a subscription if it knows a wider one. Brokers then remember and compare less, and
    wait more often under `clients`: not every client behind a neighbour is known any more. The same everywhere."""
    held_us_max: Micros | None = None
    """A publication held longer is dropped where it waits, and subscribers are told; it is never emitted early."""
    pending_max: int = 100_000
    """Above this, local publishers wait in their buffers; broker links are always read, or echoes could not come."""
    buffer_max: int = 10_000
    """Publications of one local publisher that may wait; what comes on top is refused."""
    buffer_bytes_max: int = 64 << 20
    """The payloads of those; what would come on top is refused, unless nothing waits."""
    routes_per_client_max: int = 1_000
    """Subscriptions of one client, and its advertisements; every broker on the way keeps them."""
    route_bytes_per_client_max: int = 1 << 20
    """What the filters of one client may take, those of its subscriptions and those of its advertisements."""
    filter_cost_max: int = FILTER_COST_MAX
    """Steps to see that a client's filter is in its normal form."""
    filter_weight_max: int = 2_000
    """Sides and bounds of one filter: every comparison with another filter costs that many steps, and every broker
    compares it with all advertisements or subscriptions it knows."""
    limits: EventLimits = EventLimits()
