"""What clients and nodes say to each other beside the protocols: who is where, which topics there are, how are you.

Together with the messages of the sequencer these are all the types that a connection or a log may carry.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, get_args

from msgspec import Struct

from unisono.machine import Fired, Restarted
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.numbers import Number, TopicNumber
from unisono.protocols.overlay.messages import BrokerMessage as OverlayMessage
from unisono.protocols.overlay.messages import ClientMessage as FromOverlay
from unisono.protocols.sequencer.inputs import Forget, Host, Lapse, Migrate, Reborn
from unisono.protocols.sequencer.messages import SENDERS, Answer, ClientMessage, PeerMessage, Turn
from unisono.runtime.fetching import FromArchive, ToArchive
from unisono.runtime.lives import Began, Height, Reminds
from unisono.structures.sessions import BroadcastsDone, Frame, Handled


class Open(Struct, frozen=True, tag=True):
    """A client wants these topics to exist; those that do not are born here."""

    client: Address
    request: Number
    names: tuple[str, ...]


class Opened(Struct, frozen=True, tag=True):
    """They exist, and the whole tree knows them; or they have been born elsewhere, at the node with this slot."""

    request: Number
    topics: tuple[tuple[str, TopicNumber], ...]
    elsewhere: tuple[tuple[str, Number], ...] = ()


class NotOpened(Struct, frozen=True, tag=True):
    """They can not exist here; `code` is one of `model.limits.REASONS`."""

    request: Number
    reason: str
    code: str = "protocol"


class Watch(Struct, frozen=True, tag=True):
    """A client wants to hear of all topics at home here that match a pattern, now and whenever one is born."""

    client: Address
    pattern: str


class Watched(Struct, frozen=True, tag=True):
    """The answer to Watch: what matches now."""

    node: Address
    pattern: str
    names: tuple[str, ...]


class TopicsBorn(Struct, frozen=True, tag=True):
    """To those who watch."""

    names: tuple[str, ...]


class Refused(Struct, frozen=True, tag=True):
    """To a client: that would be too much. `code` is one of `model.limits.REASONS`, `about` names what it asked for."""

    code: str
    reason: str
    about: str


class Where(Struct, frozen=True, tag=True):
    """A client asks for the deployment."""

    client: Address


class Directory(Struct, frozen=True, tag=True):
    """The deployment, as the node runs it."""

    deployment: Deployment


class Inquire(Struct, frozen=True, tag=True):
    """`unisono status` asks how a node is."""

    client: Address


class Report(Struct, frozen=True, tag=True):
    """How a node is: counters by role, and what failed."""

    node: str
    counters: dict[str, dict[str, int]]
    topics: tuple[str, ...]
    peers: tuple[str, ...]
    failure: str | None = None


class Named(Struct, frozen=True, tag=True):
    """Node to node, in line before the first message about a topic that the other end may not know."""

    topic: TopicNumber
    name: str


class Claim(Struct, frozen=True, tag=True):
    """Node to its parent: may I bear a topic of this name? `path`: who asks, and who passed it on."""

    name: str
    slot: Number
    path: tuple[Address, ...]


class Claimed(Struct, frozen=True, tag=True):
    """The answer, back along the path: the name belongs to the node with this slot."""

    name: str
    slot: Number
    path: tuple[Address, ...]


NodeMessage = PeerMessage | Named | Claim | Claimed
ToNode = (
    Frame[NodeMessage]
    | Handled
    | ClientMessage
    | Open
    | Watch
    | Where
    | Inquire
    | Forget
    | Reminds
    | ToArchive
    | OverlayMessage
)
ToClient = (
    Answer
    | Opened
    | NotOpened
    | Watched
    | TopicsBorn
    | Refused
    | Directory
    | Report
    | Height
    | FromArchive
    | FromOverlay
)
Letters = ToNode | ToClient
Logged = (
    Frame[NodeMessage]
    | Handled
    | BroadcastsDone
    | Fired
    | Restarted
    | Began
    | ClientMessage
    | Turn
    | Open
    | Host
    | Migrate
    | Forget
    | Lapse
    | Reborn
)


_CLAIMS: dict[type, Callable[[Any], Address]] = {
    **SENDERS,
    **dict.fromkeys((Frame, Handled, *get_args(OverlayMessage)), attrgetter("source")),
    **dict.fromkeys((Open, Watch, Where, Inquire, Forget, Reminds, *get_args(ToArchive)), attrgetter("client")),
}


def claims(message: Any) -> Address | None:
    """Who a message says it is from; None for answers, which claim nothing."""
    claimed = _CLAIMS.get(type(message))
    return claimed(message) if claimed is not None else None
