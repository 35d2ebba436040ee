"""The sequencer's broker messages as items of an event notification service, and back.

An event's payload is the item's payload, byte for byte; who published it and its place among his are the item's own
fields, and so is when; attributes travel as a header. Control messages are msgpack on the control channel.
An event is named after its publisher *on this topic* (`c7.trades:12`): requests count per publisher and topic, so the
name needs no bytes of its own.
"""

from typing import Any

import msgspec

from unisono.errors import MisuseError, PeerError
from unisono.model.event import Event, EventRow, Payload, Payloads, Scalar
from unisono.model.numbers import Integer
from unisono.model.time import Micros
from unisono.protocols.clock.messages import LaneStamps
from unisono.protocols.sequencer.messages import Mark, Pieces, Stamps, Void
from unisono.runtime.brokers.contract import HEADERS_BYTES_MAX, Item, ItemRow, Parcel
from unisono.runtime.links.frames import UNREADABLE

ATTRIBUTES = "event-attributes"

NO_ATTRIBUTES: dict[str, Scalar] = {}
"""Shared by all events that have none; events are frozen, and so is this by agreement."""

Control = Stamps | Pieces | Void | Mark | LaneStamps
_encoder = msgspec.msgpack.Encoder()
_control: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)
_attributes: msgspec.json.Decoder[dict[str, Scalar]] = msgspec.json.Decoder(dict[str, str | Integer | float | bool])


def publisher_on(address: str, topic: str) -> str:
    """The publisher of an event, as its subscribers and the journals know him."""
    return f"{address}.{topic}"


def check_room_beside(attributes: dict[str, Scalar]) -> None:
    """Raises MisuseError for attributes that are too long to travel beside a payload."""
    size = len(msgspec.json.encode(attributes)) + len(ATTRIBUTES)
    if size > HEADERS_BYTES_MAX:
        raise MisuseError(
            f"attributes of {size} bytes; up to {HEADERS_BYTES_MAX} travel beside a payload. Put them into it"
        )


def to_item(topic: str, message: Any, control: bool, space: str = "") -> Item:
    """The item that carries this message on the topic's channel; `space` stands before the publisher's name."""
    if isinstance(message, Payload):
        event, publisher = message.event, space + message.publisher
        return Item(topic, event.payload, publisher, message.request, False, _headers(event), event.born_at)
    return Item(topic, _encoder.encode(message), control=control)


def to_parcels(topic: str, row: Payloads, space: str = "") -> list[Parcel]:
    """What carries a row of events."""
    publisher, events = space + row.publisher, row.events
    if type(events) is EventRow:
        return [ItemRow(topic, events.payloads, publisher, row.request, events.born_at)]
    return [
        Item(topic, event.payload, publisher, request, False, _headers(event), event.born_at)
        for request, event in enumerate(events, row.request)
    ]


def from_item(item: Item) -> Any:
    """The message an item carries; raises PeerError if it carries none. Foreign items carry none."""
    try:
        if item.control:
            return _control.decode(item.payload)
        headers = item.headers
        address: Any = item.publisher  # an Address; a call for each item to say so would be dear
        attributes = _attributes.decode(headers[ATTRIBUTES]) if headers and ATTRIBUTES in headers else NO_ATTRIBUTES
        who, born = publisher_on(address, item.topic), Micros(item.born_us)
        event = Event(who, item.request, item.topic, item.payload, attributes, born)
        return Payload(address, item.request, event)
    except UNREADABLE as error:
        raise PeerError(f"unreadable item on {item.topic}: {error}") from None


def _headers(event: Event) -> dict[str, str] | None:
    return {ATTRIBUTES: msgspec.json.encode(event.attributes).decode()} if event.attributes else None
