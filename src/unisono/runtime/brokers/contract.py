"""The contract of an event notification service (ENS): what the layers above may rely on, whatever broker is beneath.

A *channel* is a topic's event subject or its control sibling; control is for nodes (stamps, pieces, voids, marks), and
plain consumers of the topic never see it. Everything that arrives is handed to one `Listener` by plain calls, in
batches: no task and no await per message, and no object either where a publisher's events come in rows (`ItemRow`).
Promises, held by `tests/runtime/ens/test_contract.py` for every adapter:

* What anybody publishes on a channel after `subscribe` returned is handed over, unless the broker loses it; whatever
  may have been lost is reported by `Lost`, when the subscription is in force again, so that the layer above can ask.
* Items of one publisher on one channel come in the order published, each once (`Traits.once` says where a reconnect
  weakens that). Nothing is said about two channels.
* `unsubscribe` is effective when it returns.
* Payload bytes and headers arrive untouched. An item whose publisher did not name itself is `foreign`.
* Every queue is bounded: `publish` refuses beyond `AdapterLimits`, and a subscriber that does not read is waited for or
  told of its loss. Confirmations come in the order of publication and mean `Traits.strength`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from unisono.errors import MisuseError, TransportError
from unisono.model.interest import check_topic_name

HEADERS_BYTES_MAX = 3072
"""A publisher's own headers, in all. What an adapter adds (names of publisher and topic, at most 200 bytes each, twice)
fits with them into the 4 KiB that NATS adapters leave for headers."""

RESERVED = "_unisono"
"""First word of every subject that is ours alone; no topic may start with it."""

CONTROL = f"{RESERVED}.ctl."
"""Before the name of a topic: its control sibling, where channels are named alike. Only nodes may publish there."""

_ADOPTED = re.compile(rf"{RESERVED}\.[A-Za-z0-9_\-]+\.adopted\.(.+)")

Strength = Literal["ordered", "stored"]


class Item(Struct, frozen=True, gc=False):
    """One message on a channel, going down or coming up."""

    topic: str
    payload: bytes
    publisher: str = ""
    """With `request`, names the event for ever. Printable ASCII without blanks. Empty: foreign."""
    request: int = 0
    control: bool = False
    headers: dict[str, str] | None = None
    """The publisher's own headers; ours are not among them."""
    born_us: int = 0
    """When its publisher handed it over, by its publisher's clock; 0: not told."""
    position: int = 0
    """On arrival from a retaining broker: where in the stream it stands, a resume point for `subscribe`."""

    @property
    def foreign(self) -> bool:
        return not self.publisher and not self.control


class ItemRow(Struct, frozen=True, gc=False):
    """Items of one publisher on one topic, published together, without headers: as one. Most traffic is such rows.

    Whoever counts items counts those in it.
    """

    topic: str
    payloads: tuple[bytes, ...]
    publisher: str
    request: int
    """Of the first."""
    born_us: int = 0

    def __len__(self) -> int:
        return len(self.payloads)


Parcel = Item | ItemRow


def count_items(parcels: Iterable[Parcel]) -> int:
    return sum([1 if isinstance(parcel, Item) else len(parcel.payloads) for parcel in parcels])


def longest(parcel: Parcel) -> int:
    """Bytes of its longest payload."""
    return len(parcel.payload) if isinstance(parcel, Item) else max(map(len, parcel.payloads))


def unpack(parcels: Iterable[Parcel]) -> list[Item]:
    """Item by item."""
    items: list[Item] = []
    for parcel in parcels:
        if isinstance(parcel, Item):
            items.append(parcel)
        else:
            topic, publisher, born = parcel.topic, parcel.publisher, parcel.born_us
            items += [
                Item(topic, payload, publisher, request, born_us=born)
                for request, payload in enumerate(parcel.payloads, parcel.request)
            ]
    return items


class Lost(Struct, frozen=True):
    """Items may have passed us by: `count` of them if known, on `topic` or, without one, on any channel of ours."""

    reason: str
    topic: str | None = None
    control: bool = False
    count: int | None = None


class Down(Struct, frozen=True):
    """The broker cannot be reached. Publishing goes on into the outbox; `Up` follows when it is back."""

    reason: str


class Up(Struct, frozen=True):
    """The broker is back, subscriptions are in force again, `resent` open items were published once more."""

    resent: int


class ItemRejected(Struct, frozen=True):
    """The broker definitely did not take this open item, and nobody will hear it.

    It comes before the confirmation that counts the item: who waits for that one must not take it for kept.
    """

    item: Item
    reason: str


EnsNotice = Lost | Down | Up | ItemRejected


class Listener(Protocol):
    """Who stands above an adapter. Calls come from the event loop; they must not block."""

    def on_items(self, items: Sequence[Parcel]) -> None: ...

    def on_confirmed(self, count: int) -> None:
        """The oldest `count` open items were taken by the broker (see `Traits.strength`), or were `ItemRejected`."""
        ...

    def on_notice(self, notice: EnsNotice) -> None: ...

    def on_failed(self, error: Exception, /) -> None:
        """Something is broken inside the adapter, or was raised by one of the calls above: nothing more will come."""
        ...


class Traits(Struct, frozen=True):
    """What this service promises."""

    name: str
    strength: Strength
    """`ordered`: a confirmed payload is at the broker's mercy. `stored`: the broker keeps it."""
    retains: bool = False
    """Whether `subscribe(after=position)` can replay."""
    payload_bytes_max: int = 1024 * 1024
    """A longer payload is a MisuseError. It may change with a reconnect: what was open then and is longer is
    `ItemRejected`."""
    once: bool = True
    """Whether items that were open during a reconnect are still delivered once; else they may come twice."""


class AdapterLimits(Struct, frozen=True):
    """Bounds of one adapter."""

    open_items_max: int = 20_000
    """Published and not yet confirmed. Price: throughput is at most this per round trip to the broker."""
    open_bytes_max: int = 64 * 1024 * 1024
    """The same in payload bytes; this is the memory a publisher may take while the broker is away."""
    reconnect_us_max: int = 2_000_000
    """Longest pause between two attempts to reach a broker that is away; pauses double from 20 ms."""


class FullError(TransportError):
    """`publish` would exceed the bounds; nothing of the batch was taken. Await `room()` and try again."""


class Ens(Protocol):
    """A connection to one event notification service."""

    @property
    def traits(self) -> Traits: ...

    @property
    def open_count(self) -> int:
        """How many items are published and not yet confirmed."""
        ...

    async def open(self) -> None:
        """Connects; raises TransportError if the broker cannot be reached now."""
        ...

    def publish(self, items: Sequence[Parcel]) -> None:
        """Takes all items or raises FullError; they leave together, at the latest at the end of the loop turn."""
        ...

    async def room(self) -> None:
        """Returns when at least half of the bounds is free: the next `publish` is taken, however large its batch."""
        ...

    async def flush(self) -> None:
        """Returns when everything published before has been confirmed or rejected."""
        ...

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        """Returns when everything published anywhere from now on will be heard; `after` replays what a stream kept."""
        ...

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        """Nothing of the channel is handed over from now on."""
        ...

    def pause(self) -> None:
        """Hand over nothing until `resume`: the broker sees a slow reader."""
        ...

    def resume(self) -> None: ...

    async def close(self) -> None:
        """Lets open items be confirmed if the broker is there, and disconnects."""
        ...


_PUBLISHER = re.compile(r"[!-~]{0,200}")


def check_publisher(name: str) -> str:
    """Returns the name, or raises MisuseError: it travels in headers, so it is printable ASCII without blanks."""
    if _PUBLISHER.fullmatch(name) is None:
        raise MisuseError(f"publisher {name!r}: write up to 200 printable ASCII characters without blanks")
    return name


_HEADER_NAME = re.compile(r"[!-9;-~]+")
_OUR_HEADERS = ("unisono-", "nats-")


def check_headers(headers: dict[str, str]) -> None:
    """Raises MisuseError for what cannot travel as a header, or is one of the broker's or ours."""
    size = 0
    for name, value in headers.items():
        size += len(name) + len(value.encode(errors="replace"))
        if _HEADER_NAME.fullmatch(name) is None or name.lower().startswith(_OUR_HEADERS):
            raise MisuseError(f"header {name!r}: a name is printable ASCII without ':', and not Unisono-… or Nats-…")
        if value != value.strip() or "\r" in value or "\n" in value:
            raise MisuseError(f"header {name!r}: a value has no line breaks and no blanks at its ends")
    if size > HEADERS_BYTES_MAX:
        raise MisuseError(f"headers of {size} bytes; up to {HEADERS_BYTES_MAX} can travel beside a payload")


def adopted_channel(deployment: str, topic: str) -> str:
    """Where events of strangers on a topic are published again, by nodes only; to an adapter a topic like others."""
    return f"{RESERVED}.{deployment}.adopted.{topic}"


def is_adopted(topic: str) -> bool:
    return _ADOPTED.fullmatch(topic) is not None


def original(channel: str) -> str:
    """The topic whose events, or whose strangers' events, a channel carries."""
    found = _ADOPTED.fullmatch(channel)
    return channel if found is None else found[1]


def check_channel(topic: str) -> str:
    """Returns the topic name, or raises MisuseError: a bad name, or one of ours."""
    adopted = _ADOPTED.fullmatch(topic)
    if check_topic_name(topic if adopted is None else adopted[1]).split(".")[0] == RESERVED:
        raise MisuseError(f"topic {topic!r}: names starting with {RESERVED!r} are reserved")
    return topic
