"""What is said about the names of topics: between clients and nodes, and up and down the tree of nodes."""

from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.numbers import Number, TopicNumber


class OpenTopics(Struct, frozen=True, tag="Open"):
    """A client wants these topics to exist; those that do not are created here."""

    client: Address
    request: Number
    names: tuple[str, ...]
    through: bool = False
    """None is created; the answer names those that this node knows the way to, wherever they are at home."""


class TopicsOpened(Struct, frozen=True, tag="Opened"):
    """They exist, and the whole tree knows them; or they have been created elsewhere, at the node with this slot."""

    request: Number
    topics: tuple[tuple[str, TopicNumber], ...]
    elsewhere: tuple[tuple[str, Number], ...] = ()


class TopicsNotOpened(Struct, frozen=True, tag="NotOpened"):
    """They can not exist here; `code` is one of `model.limits.REASONS`."""

    request: Number
    reason: str
    code: str = "protocol"


class TopicsBorn(Struct, frozen=True, tag="TopicsBorn"):
    """To those who watch."""

    names: tuple[str, ...]


class TopicNamed(Struct, frozen=True, tag="Named"):
    """Node to node, in line before the first message about a topic that the other end may not know."""

    topic: TopicNumber
    name: str


class Claim(Struct, frozen=True, tag="Claim"):
    """Node to its parent: may I create a topic of this name? `path`: who asks, and who passed it on."""

    name: str
    slot: Number
    path: tuple[Address, ...]


class Claimed(Struct, frozen=True, tag="Claimed"):
    """The answer, back along the path: the name belongs to the node with this slot. `topic` if it was created there."""

    name: str
    slot: Number
    path: tuple[Address, ...]
    topic: TopicNumber = Topic(0)


TopicsAnswer = TopicsOpened | TopicsNotOpened
"""To a client that asked."""
NodeMessage = TopicNamed | Claim | Claimed
"""Between a node and its parent."""
