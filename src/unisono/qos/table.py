"""The table promise -> stack: what is possible, and why the rest is not."""

from typing import Literal

from msgspec import Struct

from unisono.errors import PlanError
from unisono.model.promise import Order, Promise
from unisono.model.time import Micros

Protocol = Literal["fifo", "sequencer", "overlay"]


class Ground(Struct, frozen=True):
    """What there is to stand on."""

    has_sequencer: bool = True
    causal: bool = False
    """Every pair of topics that any subscription shares is ordered, and publishers wait (`sequencing.order`)."""
    strength: Literal["ordered", "stored"] = "ordered"
    """What the broker does with a payload it has confirmed."""
    retains: bool = False
    """Whether the broker or an archive can replay."""
    overlay: bool = False
    """The brokers are our own, on an overlay: they route by content and order what they route."""
    held_us_max: Micros | None = None
    """How long a broker of the overlay lets an event wait before it gives it up; None for ever."""
    selects: bool = False
    """Over topics, a layer selects by content."""


class Stack(Struct, frozen=True):
    """Protocols that keep an order, and what that takes."""

    order: Order
    protocol: Protocol
    needs_sequencer: bool
    needs_causal: bool
    price: str


STACKS: dict[Order, Stack] = {
    "fifo": Stack("fifo", "fifo", False, False, "nothing but a number per event"),
    "total": Stack(
        "total", "sequencer", True, False, "a number from the topic's home; a climb where topics are shared"
    ),
    "causal": Stack(
        "causal", "sequencer", True, True, "as total, for every shared pair; publishers wait between topics"
    ),
}

OVERLAY_STACKS: dict[Order, Stack] = {
    order: Stack(order, "overlay", False, False, "an echo from above where a conflict is possible, else nothing")
    for order in ("fifo", "total")
}


def choose(
    promise: Promise,
    ground: Ground,
    start: str = "latest",
    group: str | None = None,
    parallel: bool = False,
    content: bool = False,
) -> Stack:
    """The stack that keeps the promise on this ground; raises PlanError with the reason if there is none.

    `content` says that the subscription selects by a filter.
    """
    if ground.overlay:
        return _choose_on_overlay(promise, ground, start, group)
    if content and not ground.selects:
        raise PlanError("where= needs an overlay (nodes with the role overlay), and this deployment has none")
    stack = STACKS.get(promise.order)
    if stack is None:
        reason = (
            "needs synchronised clocks, which no part of this deployment has"
            if promise.order == "realtime"
            else ("is what the broker gives by itself: use the broker's own client")
        )
        raise PlanError(f"order {promise.order!r} {reason}; possible are {', '.join(sorted(STACKS))}")
    if stack.needs_sequencer and not ground.has_sequencer:
        raise PlanError(f"order {promise.order!r} needs sequencer nodes, and this deployment has none")
    if stack.needs_causal and not ground.causal:
        raise PlanError(
            "order 'causal' needs sequencing.order = \"causal\" in the deployment: it must hold for all its publishers"
        )
    if promise.reliability == "reliable" and ground.strength != "stored" and not ground.retains:
        raise PlanError(
            "reliability 'reliable' needs a broker that keeps payloads (jetstream) or an archive; this one forgets them"
        )
    if start == "earliest" and not ground.retains:
        raise PlanError("start 'earliest' needs a node with the role archive, and this deployment has none")
    if start != "latest" and stack.protocol == "fifo":
        raise PlanError(f"order {promise.order!r} has no numbers to start behind: only 'total' and 'causal' replay")
    if parallel:
        raise PlanError(
            "a parallel group has no order: two members process two events at once, whatever order they were given"
            " in. Use one group per topic that may go its own way, or the broker's own queue groups"
        )
    if group is not None and not ground.retains:
        raise PlanError("a group goes on behind its last commit, which needs a node with the role archive")
    if group is not None and stack.protocol == "fifo":
        raise PlanError(f"order {promise.order!r} has no numbers to go on behind: groups need 'total' or 'causal'")
    return stack


def _choose_on_overlay(promise: Promise, ground: Ground, start: str, group: str | None) -> Stack:
    stack = OVERLAY_STACKS.get(promise.order)
    if stack is None:
        raise PlanError(
            f"order {promise.order!r} is not what an overlay gives: it agrees on every pair of events and keeps each"
            f" publisher's order; possible are {', '.join(sorted(OVERLAY_STACKS))}"
        )
    if promise.reliability == "reliable":
        raise PlanError("reliability 'reliable' needs somebody who keeps payloads, and brokers of an overlay do not")
    if start != "latest" or group is not None:
        raise PlanError("an overlay keeps nothing to start behind: positions, 'earliest' and groups need sequencers")
    limit = ground.held_us_max
    if promise.deadline_us is not None and (limit is None or limit > promise.deadline_us):
        has = "let it wait for ever" if limit is None else f"give it up after {limit / 1000:g} ms"
        raise PlanError(
            f"a deadline of {promise.deadline_us / 1000:g} ms is for brokers to keep, since events wait there; these"
            f" {has}: set overlay.held_ms in the deployment"
        )
    return stack
