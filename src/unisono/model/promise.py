"""What a subscriber is promised. A promise is data: it heads a journal, and the judges hold us to it."""

from typing import Literal

from msgspec import Struct

from unisono.model.time import Micros

Order = Literal["fifo", "causal", "total", "realtime"]
Reliability = Literal["best-effort", "reliable"]


class Promise(Struct, frozen=True):
    """Order among deliveries, a bound on waiting, and what happens to events that get lost."""

    order: Order = "total"
    deadline_us: Micros | None = None
    reliability: Reliability = "best-effort"
    buffer_events_max: int = 10_000
    """The budget: how many events a subscriber may hold back before the oldest wait ends in a gap."""
    tolerance_us: Micros | None = None
    """With real-time order: what happens so near together may come in either order."""
