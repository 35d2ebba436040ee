"""The table promise -> stack: what is possible, and why the rest is not."""

from typing import Literal

from msgspec import Struct

from unisono.errors import PlanError
from unisono.model.promise import Order, Promise

Protocol = Literal["fifo", "sequencer"]


class Ground(Struct, frozen=True):
    """What there is to stand on."""

    has_sequencer: bool = True
    causal: bool = False
    """Every pair of topics that any subscription shares is ordered, and publishers wait (`sequencing.order`)."""
    strength: Literal["ordered", "stored"] = "ordered"
    """What the broker does with a payload it has confirmed."""
    retains: bool = False
    """Whether the broker or an archive can replay."""


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


def choose(
    promise: Promise, ground: Ground, start: str = "latest", group: str | None = None, parallel: bool = False
) -> Stack:
    """The stack that keeps the promise on this ground; raises PlanError with the reason if there is none."""
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
