"""The table promise -> stack: what is possible, and why the rest is not."""

from typing import Literal

from msgspec import Struct

from unisono.errors import PlanError
from unisono.model.promise import Order, Promise
from unisono.model.settings import Kind, OrderedBy
from unisono.model.time import Micros

Protocol = Literal["fifo", "sequencer", "clock", "overlay", "regions", "causal"]


class DeploymentOffer(Struct, frozen=True):
    """What there is to stand on."""

    has_sequencer: bool = True
    causal: bool = False
    """Every pair of topics that any subscription shares is ordered, and publishers wait (`sequencing.order`)."""
    strength: Literal["ordered", "stored"] = "ordered"
    """What the broker does with a payload it has confirmed."""
    retains: bool = False
    """Whether the broker or an archive can replay."""
    held_us_max: Micros | None = None
    """How long a broker of the overlay lets an event wait before it gives it up; None for ever."""
    selects: bool = False
    """Over topics, a layer selects by content."""
    kind: Kind = "sequencer"
    """Of the deployment: who routes and orders."""
    by: OrderedBy = "tree"
    """How its sequencers order."""
    tolerance_us: Micros = Micros(0)
    """What real-time order allows there; 0: there is none."""
    leans: bool = False
    """By clock, lanes lean by themselves, and causes come before effects within a topic only."""


class ProtocolStack(Struct, frozen=True):
    """Protocols that keep an order, and what that takes."""

    order: Order
    protocol: Protocol
    needs_sequencer: bool
    needs_causal: bool
    price: str


STACKS: dict[Order, ProtocolStack] = {
    "fifo": ProtocolStack("fifo", "fifo", False, False, "nothing but a number per event"),
    "total": ProtocolStack(
        "total", "sequencer", True, False, "a number from the topic's home; a climb where topics are shared"
    ),
    "causal": ProtocolStack(
        "causal", "sequencer", True, True, "as total, for every shared pair; publishers wait between topics"
    ),
}

CLOCK_STACKS: dict[Order, ProtocolStack] = {
    order: ProtocolStack(order, "clock", True, False, "a stamp per event, and the longest one-way time to hear clocks")
    for order in ("total", "causal", "realtime")
}

REGIONS_STACK = ProtocolStack(
    "fifo", "regions", False, False, "a number per event, and a question to its publisher after a crash"
)

CAUSAL_STACKS: dict[Order, ProtocolStack] = {
    order: ProtocolStack(
        order,
        "causal",
        False,
        False,
        "six bytes per sender and group in every copy, and waiting for a lost frame's life",
    )
    for order in ("fifo", "causal")
}

OVERLAY_STACKS: dict[Order, ProtocolStack] = {
    order: ProtocolStack(
        order, "overlay", False, False, "an echo from above where a conflict is possible, else nothing"
    )
    for order in ("fifo", "total")
}


def choose(
    promise: Promise,
    offer: DeploymentOffer,
    start: str = "latest",
    group: str | None = None,
    content: bool = False,
) -> ProtocolStack:
    """The stack that keeps the promise on this ground; raises PlanError with the reason if there is none.

    `content` says that the subscription selects by a filter.
    """
    if offer.kind == "overlay":
        return _choose_on_overlay(promise, offer, start, group)
    if offer.kind == "causal":
        return _choose_on_causal(promise, start, group)
    if offer.kind == "regions":
        return _choose_on_regions(promise, start, group)
    if content and not offer.selects:
        raise PlanError(
            'where= needs somebody who selects by content, and this ground has nobody: use kind = "overlay"'
        )
    stacks = CLOCK_STACKS if offer.by == "clock" else STACKS
    stack = stacks.get(promise.order)
    if stack is None and offer.by == "clock" and promise.order == "fifo":
        raise PlanError(
            "order 'fifo' counts what a publisher says on each topic, and by clock it is counted over all of them:"
            " use 'total'"
        )
    if stack is None:
        reason = 'needs clocks that are watched: use sequencing.by = "clock" with tolerance_ms'
        raise PlanError(f"order {promise.order!r} {reason}; possible are {', '.join(sorted(stacks))}")
    if promise.order == "realtime":
        _check_tolerance(promise, offer)
    if promise.order == "causal" and offer.by == "clock" and offer.leans:
        raise PlanError(
            "order 'causal' needs sequencing.order = \"causal\" in the deployment: lanes lean, and causes come before"
            " effects within a topic only"
        )
    if stack.needs_sequencer and not offer.has_sequencer:
        raise PlanError(f"order {promise.order!r} needs sequencer nodes, and this deployment has none")
    if stack.needs_causal and not offer.causal:
        raise PlanError(
            "order 'causal' needs sequencing.order = \"causal\" in the deployment: it must hold for all its publishers,"
            ' or kind = "causal"'
        )
    if promise.reliability == "reliable" and offer.strength != "stored" and not offer.retains:
        raise PlanError(
            "reliability 'reliable' needs a broker that keeps payloads (jetstream) or an archive; this one forgets them"
        )
    if start == "earliest" and not offer.retains:
        raise PlanError("start 'earliest' needs a node with the role archive, and this deployment has none")
    if start != "latest" and stack.protocol == "fifo":
        raise PlanError(f"order {promise.order!r} has no numbers to start after: only 'total' and 'causal' replay")
    if group is not None and not offer.retains:
        raise PlanError(
            "a group goes on after its last commit, which an archive keeps: give one of the nodes the role archive"
        )
    if group is not None and stack.protocol == "fifo":
        raise PlanError(f"order {promise.order!r} has no numbers to go on after: groups need 'total' or 'causal'")
    return stack


def _check_tolerance(promise: Promise, offer: DeploymentOffer) -> None:
    if not offer.tolerance_us:
        raise PlanError("order 'realtime' needs sequencing.tolerance_ms in the deployment: nodes then watch clocks")
    asked_us = promise.tolerance_us if promise.tolerance_us is not None else offer.tolerance_us
    if asked_us < offer.tolerance_us:
        raise PlanError(
            f"tolerance={asked_us / 1000:g} ms is finer than this deployment keeps: sequencing.tolerance_ms ="
            f" {offer.tolerance_us / 1000:g}"
        )


def _choose_on_overlay(promise: Promise, offer: DeploymentOffer, start: str, group: str | None) -> ProtocolStack:
    stack = OVERLAY_STACKS.get(promise.order)
    if stack is None:
        others = ' or "causal"' if promise.order in CAUSAL_STACKS else ""
        elsewhere = f'. For {promise.order!r}: kind = "sequencer"{others}' if promise.order in STACKS else ""
        raise PlanError(
            f"order {promise.order!r} is not what an overlay gives: it agrees on every pair of events and keeps each"
            f" publisher's order; possible are {', '.join(sorted(OVERLAY_STACKS))}{elsewhere}"
        )
    if promise.reliability == "reliable":
        raise PlanError(
            "reliability 'reliable' needs somebody who keeps payloads, and brokers of an overlay do not:"
            ' kind = "sequencer" with an archive does'
        )
    if start != "latest" or group is not None:
        raise PlanError(
            "an overlay keeps nothing to start after: positions, 'earliest' and groups need"
            ' kind = "sequencer" with an archive'
        )
    limit = offer.held_us_max
    if promise.deadline_us is not None and (limit is None or limit > promise.deadline_us):
        has = "let it wait for ever" if limit is None else f"give it up after {limit / 1000:g} ms"
        raise PlanError(
            f"a deadline of {promise.deadline_us / 1000:g} ms is for brokers to keep, since events wait there; these"
            f" {has}: set overlay.held_ms in the deployment"
        )
    return stack


def _choose_on_causal(promise: Promise, start: str, group: str | None) -> ProtocolStack:
    stack = CAUSAL_STACKS.get(promise.order)
    if stack is None:
        raise PlanError(
            f"order {promise.order!r} is not what a causal mesh gives: no effect before its cause, and what is"
            f" unrelated in any order; possible are {', '.join(sorted(CAUSAL_STACKS))}. For 'total': kind ="
            ' "sequencer" or "overlay"'
        )
    if promise.reliability == "reliable":
        raise PlanError(
            "reliability 'reliable' needs somebody who keeps payloads, and here they live as long as their deadline:"
            ' kind = "sequencer" with an archive does'
        )
    if start != "latest" or group is not None:
        raise PlanError(
            "a causal mesh keeps nothing to start after: positions, 'earliest' and groups need"
            ' kind = "sequencer" with an archive'
        )
    return stack


def _choose_on_regions(promise: Promise, start: str, group: str | None) -> ProtocolStack:
    if promise.order != "fifo":
        raise PlanError(
            f"order {promise.order!r} is not what regions give by themselves: they keep each publisher's order, so"
            ' order=\'fifo\'. Else: roles = ["regions", "sequencer"] at some nodes, or kind = "sequencer" or "causal"'
        )
    if promise.reliability == "reliable":
        raise PlanError(
            "reliability 'reliable' needs somebody who keeps payloads, and here only publishers do, for a while:"
            ' kind = "sequencer" with an archive does'
        )
    if start != "latest" or group is not None:
        raise PlanError(
            "regions keep nothing to start after: positions, 'earliest' and groups need"
            ' kind = "sequencer" with an archive'
        )
    if promise.deadline_us is not None:
        raise PlanError(
            "a deadline needs numbers that are skipped when it ends, and regions have none: they tell what is lost when"
            ' its publisher has gone (entourage.gone_s). With one: roles = ["regions", "sequencer"] at some nodes'
        )
    return REGIONS_STACK
