"""What travels on overlay links, and what drivers and clients say to a broker (specs: content-order, section 5).

A link is a reliable FIFO channel in each direction that reports its own loss; all messages of a link share one stream.
Everything carries its sender; clients and brokers use the same words, a broker knows its neighbours.
Other protocols use the same wire, so every tag begins with `Overlay`.
"""

from typing import Literal

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address, EventId
from unisono.model.numbers import Number
from unisono.model.predicate import Filter


class OverlaySaid(Struct, frozen=True, tag="OverlaySaid"):
    """What brokers say to each other, and clients to their broker; everything carries its sender."""

    source: Address


class Adv(OverlaySaid, frozen=True, tag="OverlayAdv"):
    """Whoever is named will publish only what lies in the filter; one publisher may have several.

    `turn` is the number of the announcement on its link, here and in `Sub`: what ends and begins again keeps its name.
    `last` is the number of the publisher's last event that could be heard where it is announced.
    """

    ad: str
    publisher: str
    filter: Filter
    turn: Number = 0
    last: Number = 0


class Unadv(OverlaySaid, frozen=True, tag="OverlayUnadv"):
    """These advertisements are withdrawn, or `lost` with a link."""

    ads: tuple[str, ...]
    lost: bool = False


class Sub(OverlaySaid, frozen=True, tag="OverlaySub"):
    """A subscription; `client` groups those of one client (section 6.5)."""

    sub: str
    client: str
    filter: Filter
    turn: Number = 0


class Unsub(OverlaySaid, frozen=True, tag="OverlayUnsub"):
    """The subscription has ended."""

    sub: str


class Pub(OverlaySaid, frozen=True, tag="OverlayPub"):
    """A publication. Upwards, `echo` asks for an Ack at its place, `barrier` for "not before those you still hold"."""

    event: Event
    echo: bool = False
    barrier: bool = False


class Ack(OverlaySaid, frozen=True, tag="OverlayAck"):
    """The echo, downwards only: here is this publication's place in my stream to you."""

    event: EventId


class Nack(OverlaySaid, frozen=True, tag="OverlayNack"):
    """Downwards only: it will never be echoed; drop it."""

    event: EventId
    reason: str


class OverlayMissed(OverlaySaid, frozen=True, tag="OverlayMissed"):
    """Downwards only: this publication will not come this way; subscribers are to be told."""

    event: Event
    reason: str


class Ok(OverlaySaid, frozen=True, tag="OverlayOk"):
    """Everything beyond me knows this advertisement (A) or subscription (S), and what was decided before is done.

    It answers the announcement of that turn, and no other of the same name.
    """

    kind: Literal["A", "S"]
    key: str
    turn: Number


class OverlayOpen(OverlaySaid, frozen=True, tag="OverlayOpen"):
    """Of a link that is joining: all I announced is confirmed."""


class HeardAgain(OverlaySaid, frozen=True, tag="OverlayHeardAgain"):
    """The publishers of these advertisements can be heard from now on; subscribers may not have heard all of them."""

    ads: tuple[str, ...]


class LinkUp(Struct, frozen=True, tag="OverlayLinkUp"):
    """From the driver: there is a new link to a broker; whoever dialled is the lower end."""

    peer: Address
    is_parent: bool


class LinkDown(Struct, frozen=True, tag="OverlayLinkDown"):
    """From the driver: the last thing read from a lost link, to a broker or to a client."""

    peer: Address


class OverlayDelivery(Struct, frozen=True, tag="OverlayDelivery"):
    """To a client: one event, once, however many of its subscriptions match."""

    event: Event


class Active(Struct, frozen=True, tag="OverlayActive"):
    """To a client: everything published from now on that matches will come."""

    sub: str


class OverlayTaken(Struct, frozen=True, tag="OverlayTaken"):
    """To a publisher: the event is on its way."""

    event: EventId


class OverlayNotTaken(Struct, frozen=True, tag="OverlayNotTaken"):
    """To a publisher: the event was definitely not published; `code` says why in one word."""

    event: EventId
    reason: str
    code: str = ""


class OverlayDenied(Struct, frozen=True, tag="OverlayDenied"):
    """To a client: this subscription or advertisement is not taken, and nothing will come of it."""

    name: str
    reason: str
    code: str = ""


class Missing(Struct, frozen=True, tag="OverlayMissing"):
    """To a client: this event matches and will not come."""

    event: EventId
    topic: str
    publisher: str
    sequence: Number
    reason: str


class OverlayCut(Struct, frozen=True, tag="OverlayCut"):
    """To a client: publishers that cannot be heard, or could not, each with its last event that could be.

    None is named where somebody is out of reach who may publish what it wants, and nobody is known.
    """

    publishers: tuple[tuple[str, Number], ...]


BrokerMessage = Adv | Unadv | Sub | Unsub | Pub | Ack | Nack | OverlayMissed | Ok | OverlayOpen | HeardAgain
ClientMessage = OverlayDelivery | Active | OverlayTaken | OverlayNotTaken | OverlayDenied | Missing | OverlayCut
