"""What members of a causal deployment say: frames, gossip about frames, and publications of clients to their broker."""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.numbers import Number, Request

Key = tuple[int, int]
"""A sender's incarnation, and a group."""
Past = dict[Key, tuple[int, int]]
"""Of every key the newest stamp known, and the largest deadline known."""
PastRows = tuple[tuple[Number, Number, Number, Number], ...]
"""The same as it travels: sender, group, stamp, deadline."""
FrameId = tuple[int, int]
"""The sender's incarnation and the stamp."""


class CausalFrame(Struct, frozen=True, tag="causal.Frame"):
    """MSG: what one sender says to some groups at one stamp. `past` is what its sender knew; it never changes."""

    sender: int
    stamp: int
    groups: tuple[int, ...]
    deadline: int
    past: Past
    body: Any = ()

    @property
    def id(self) -> FrameId:
        return self.sender, self.stamp


class FrameFate(Enum):
    """What becomes of a frame at one member. All but the last four are final, and a frame has exactly one of those."""

    DELIVERED = "delivered"
    LATE = "late"
    """It came after its deadline."""
    LATE_BLOCKED = "late-blocked"
    """It came after its deadline, and something it depends on may still come."""
    SUCC_DELIVERED = "successor-delivered"
    """Something that depends on it could wait no longer, and has been delivered."""
    PRE_JOIN = "before-subscription"
    NOT_MINE = "not-subscribed"
    OVERFLOW = "overflow"
    DUP = "duplicate"
    FUTURE = "future"
    """Its stamp is further ahead of the own clock than two clocks may be apart."""
    FULL = "full"
    """More frames have come lately than can be remembered; it may come again."""


MemberName = Annotated[Address, Meta(max_length=128)]


class CausalMember(Struct, frozen=True, array_like=True):
    """Somebody who takes part: where, what it is subscribed to, and the tick of its last sign of life. It is told on by
    others, so it is short."""

    address: MemberName
    region: Annotated[str, Meta(max_length=255)]
    groups: Annotated[tuple[int, ...], Meta(max_length=256)]
    seen: Number


CausalLeft = tuple[MemberName, Number]
"""Who has left, and the tick at which it said so."""


class CausalDigest(Struct, frozen=True, array_like=True):
    """Frames of one sender that somebody holds: bit i of `bits` stands for stamp `first + i`."""

    sender: int
    first: Number
    bits: bytes


class CausalGossip(Struct, frozen=True, tag="causal.Gossip"):
    """Once a round: frames for the first time, what is held, members, and who has left. `tick` is the sender's
    clock."""

    member: CausalMember
    tick: Number
    push: tuple[CausalFrame, ...] = ()
    digest: tuple[CausalDigest, ...] = ()
    members: tuple[CausalMember, ...] = ()
    left: tuple[CausalLeft, ...] = ()


class CausalRequest(Struct, frozen=True, tag="causal.Request"):
    """`source` lacks these."""

    source: Address
    ids: tuple[FrameId, ...]


class CausalFrames(Struct, frozen=True, tag="causal.Frames"):
    """What was asked for; between brokers also what is new, to all at once."""

    source: Address
    frames: tuple[CausalFrame, ...]


class CausalSeeds(Struct, frozen=True, tag="causal.Seeds"):
    """From above: members to turn to when nobody else is known."""

    members: tuple[CausalMember, ...]


class CausalGoodbye(Struct, frozen=True, tag="causal.Goodbye"):
    """From above: tell the others that we leave."""


class CausalEnter(Struct, frozen=True, tag="causal.Enter"):
    """A client to a broker: I will publish through you. The answer is `CausalWelcome`."""

    client: Address


class CausalWelcome(Struct, frozen=True, tag="causal.Welcome"):
    """An answer: this is the incarnation you are talking to."""

    client: Address
    incarnation: Number


class CausalPublication(Struct, frozen=True, tag="causal.Publication"):
    """A client to its broker: emit this after all that I know of, at a stamp up to `until`, or refuse.

    `broker` is the incarnation it is meant for: another one must not emit it. `deadline` is a tick; 0 stands for the
    life of the deployment.
    """

    client: Address
    broker: Number
    request: Request
    groups: tuple[Number, ...]
    events: tuple[Event, ...]
    past: PastRows
    high: Number
    until: Number
    deadline: Number = 0


class CausalEmitted(Struct, frozen=True, tag="causal.Emitted"):
    """An answer: it has left, and this is known now."""

    client: Address
    request: Request
    past: PastRows
    high: Number


class CausalRefused(Struct, frozen=True, tag="causal.Refused"):
    """An answer: it was definitely not emitted. `gone`: the incarnation that it was meant for is no more."""

    client: Address
    request: Request
    reason: str
    gone: bool = False


FromMember = CausalGossip | CausalRequest | CausalFrames
"""What members send each other; datagrams, which may be lost, repeated and overtaken."""
ToCausalBroker = CausalEnter | CausalPublication
ToCausalClient = CausalWelcome | CausalEmitted | CausalRefused


def rows_of(past: Mapping[Key, tuple[int, int]]) -> PastRows:
    return tuple((*key, *past[key]) for key in sorted(past))


def past_of(rows: PastRows) -> Past:
    return {(sender, group): (stamp, deadline) for sender, group, stamp, deadline in rows}
