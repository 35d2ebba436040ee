"""What coded nodes say: packets beside the broker's path, questions for what is missing, news of what is complete."""

from msgspec import Struct

from unisono.model.ids import Address
from unisono.model.numbers import Number, TopicNumber

SAMPLE = 4
"""Members told about in a message."""


class EventKey(Struct, frozen=True, array_like=True, order=True):
    """Names an event: publishers number their events per topic, from 1."""

    topic: TopicNumber
    publisher: int
    sequence: Number


class Observed(Struct, frozen=True, array_like=True):
    """What a receiver sees of the publisher's path: share of packets lost, and loss runs per packet."""

    loss: float = 0.0
    runs: float = 0.0


class Seen(Struct, frozen=True, array_like=True):
    """A member of a topic and its distance from the publisher in the multicast tree."""

    address: Address
    depth: Number


class PacketPiece(Struct, frozen=True, tag="Piece"):
    """One packet (`wire`). `source` is the peer that sent it in gossip, empty on the publisher's own path."""

    data: bytes
    source: Address = Address("")


class AskPackets(Struct, frozen=True, tag="Ask"):
    """REQ: `source` lacks `need` packets of a generation; `held` has a bit for each plain row it holds, or is empty."""

    source: Address
    event: EventKey
    generation: Number
    need: Number
    held: bytes = b""
    observed: Observed = Observed()


class Nothing(Struct, frozen=True, tag="Nothing"):
    """NONE: `source` knows nothing of that generation; ask somebody else."""

    source: Address
    event: EventKey
    generation: Number


class Advert(Struct, frozen=True, array_like=True):
    """A complete event, and how long ago the advertiser first knew of it."""

    event: EventKey
    age_us: Number


class Adverts(Struct, frozen=True, tag="Adverts"):
    """DIGEST: complete events of `source`, newest first, and some members of the topic it knows."""

    source: Address
    topic: TopicNumber
    entries: tuple[Advert, ...]
    peers: tuple[Seen, ...] = ()
    depth: Number = 0
    observed: Observed = Observed()


class MemberHello(Struct, frozen=True, tag="Hello"):
    """Beside the topic, to everybody: `source` takes part. Some answer with `Members`."""

    source: Address
    topic: TopicNumber
    depth: Number = 0


class Members(Struct, frozen=True, tag="Members"):
    """An answer to `MemberHello`: some members of the topic."""

    source: Address
    topic: TopicNumber
    peers: tuple[Seen, ...]


Gossip = PacketPiece | AskPackets | Nothing | Adverts | Members
"""What coded nodes send each other directly."""

OnTopic = PacketPiece | MemberHello | Adverts
"""What coded nodes publish on the service beneath."""
