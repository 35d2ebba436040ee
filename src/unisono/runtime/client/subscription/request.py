"""What is asked of `subscribe`, checked as far as it can be before anything is connected."""

from collections.abc import Callable
from types import NoneType
from typing import Any, get_args

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.arguments import expect, expect_one_of
from unisono.model.content import parse_where
from unisono.model.interest import FILE_NAME, check_interest
from unisono.model.payload import payload_decoder
from unisono.model.predicate import Filter
from unisono.model.promise import Order, Promise, Reliability
from unisono.model.time import Micros, parse_span
from unisono.runtime.client.subscription.stream import OnStall, check_interests


class SubscribeRequest(Struct, frozen=True):
    """What was asked of `subscribe`, checked as far as it can be without knowing what carries the events."""

    topics: tuple[str, ...]
    promise: Promise
    where: Filter
    selects: bool
    decode: Callable[[bytes], Any]
    start: str
    on_stall: OnStall
    name: str | None
    latest_only: bool
    group: str | None
    share: str | None


def subscribe_request(
    *topics: str,
    order: Order = "total",
    tolerance: str | None = None,
    deadline: str | None = None,
    start: str = "latest",
    reliability: Reliability = "best-effort",
    on_stall: OnStall = "wait",
    type: Any = None,
    name: str | None = None,
    buffer: int = 65_536,
    latest_only: bool = False,
    group: str | None = None,
    share: str | None = None,
    where: str | None = None,
) -> SubscribeRequest:
    """The arguments of `Session.subscribe`; raises MisuseError for what can be in no deployment."""
    check_interests(topics)
    for text in topics:
        expect("subscribe: a topic", text, str, 'text, one argument each: subscribe("trades", "quotes")')
        check_interest(text)
    expect("deadline", deadline, (str, NoneType), 'text with a unit, like "500ms"')
    expect("tolerance", tolerance, (str, NoneType), 'text with a unit, like "5ms"')
    expect("start", start, str, '"latest", "earliest" or a position')
    expect("name", name, (str, NoneType), "text")
    expect("group", group, (str, NoneType), "text")
    expect("share", share, (str, NoneType), 'the name of an attribute, like "key"')
    expect("where", where, (str, NoneType), 'the text of a filter, like "px > 100"')
    expect("buffer", buffer, int, "a number of events")
    expect("latest_only", latest_only, bool, "True or False")
    expect_one_of("order", order, get_args(Order))
    expect_one_of("on_stall", on_stall, get_args(OnStall))
    expect_one_of("reliability", reliability, get_args(Reliability))
    if name is not None and FILE_NAME.fullmatch(name) is None:
        raise MisuseError(f"name={name!r} is also that of a file: use letters, digits, '_', '-' and '.'")
    if buffer < 1:
        raise MisuseError(f"buffer={buffer}: at least one event has to wait somewhere")
    if share is not None and group is None:
        raise MisuseError(f"share={share!r} says what the members of a group share: name the group with group=")
    if group is not None and name is not None:
        raise MisuseError("a group keeps its own commits: leave out name=, or group=")
    if tolerance is not None and order != "realtime":
        raise MisuseError(f"tolerance= is for order='realtime', not {order!r}")
    deadline_us = _span("deadline", deadline)
    if deadline_us == 0:
        raise MisuseError(f"deadline: {deadline!r} leaves no time for an event to come; leave it out for the default")
    promise = Promise(order, deadline_us, reliability, buffer, _span("tolerance", tolerance))
    wanted, decode = parse_where(where), payload_decoder(type)
    selects = where is not None
    return SubscribeRequest(topics, promise, wanted, selects, decode, start, on_stall, name, latest_only, group, share)


def _span(setting: str, text: str | None) -> Micros | None:
    return parse_span(text, setting) if text is not None else None
