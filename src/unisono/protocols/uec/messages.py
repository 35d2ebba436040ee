"""What sites say to each other, and what they tell the database above them.

An operation is an event; its key says where it belongs. Keys are ordered by epoch, creator of the coalition, sequence
number and rank: numbers are unique only within one coalition, and two of the same epoch may have been made apart.
"""

from typing import Any

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address

CoalitionId = tuple[int, Address]
"""Epoch and creator."""
StreamId = tuple[int, Address, int]
"""Epoch, creator and rank: what one sequencer has numbered in one coalition, from 1 without holes."""
UecKey = tuple[int, Address, int, int]
"""Epoch, creator, sequence number, rank."""


class Coalition(Struct, frozen=True, tag="Coalition"):
    """Sequencers; a member's rank is its place in `members`, from 1. `before`: coalitions that this one replaces."""

    epoch: int
    creator: Address
    members: tuple[Address, ...]
    before: tuple[CoalitionId, ...] = ()

    @property
    def id(self) -> CoalitionId:
        return self.epoch, self.creator


class Seek(Struct, frozen=True, tag="Seek"):
    """Who knows of a coalition?"""

    seeker: Address


class Formed(Struct, frozen=True, tag="Formed"):
    """This coalition exists."""

    coalition: Coalition


class NumberRequest(Struct, frozen=True, tag="Request"):
    """To a sequencer: number this operation."""

    event: Event


class Ordered(Struct, frozen=True, tag="Ordered", gc=False):
    """An operation with its place; `index` is consecutive in its stream, its sequence number need not be."""

    stream: StreamId
    index: int
    number: int
    event: Event

    @property
    def key(self) -> UecKey:
        epoch, creator, rank = self.stream
        return epoch, creator, self.number, rank


class Digest(Struct, frozen=True, tag="Digest"):
    """What a site has of every stream: all up to a number, and some beyond; `is_answer`: it wants none in return."""

    site: Address
    coalition: Coalition | None
    known: tuple[tuple[StreamId, int, tuple[int, ...]], ...]
    is_answer: bool = False


class Cut(Struct, frozen=True, tag="Cut"):
    """On a topic in total order: of each stream all up to a number is stable, if it was not before."""

    upto: tuple[tuple[StreamId, int], ...]


class Placed(Struct, frozen=True, tag="Placed"):
    """To the database: this operation is applied where its key says, after `undone` others were taken back."""

    key: tuple[Any, ...]
    event: Event
    undone: int


class SettledOrder(Struct, frozen=True, tag="Settled"):
    """To the database: these operations come next in the order that every site has."""

    events: tuple[Event, ...]


UecMessage = Any
"""Publish, Heard and Joined from outside; Seek, Formed, NumberRequest, Ordered, Digest from other sites; Fired."""
