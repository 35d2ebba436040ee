"""What stampers, keepers and clients say to each other, and the entries of lanes.

Stampers are numbered as the deployment lists them. A *claim* about a lane (its last entry `last`, a watermark) is a
fact that stays true: every entry after `last` has a later stamp than the watermark. So it does not matter in which
order claims arrive; whoever holds all entries up to `last` may believe one.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from unisono.model.event import Payload
from unisono.model.ids import Address
from unisono.model.numbers import Count, Number, NumberOrNone, Request, TopicNumber

STAMPERS_MAX = 1024
Stamper = Annotated[int, Meta(ge=0, lt=STAMPERS_MAX)]
"""A stamper's place in the deployment."""
Stamp = Annotated[int, Meta(ge=0, le=2**51)]
"""Microseconds of a stamper's clock (and lean): 2^51 of them are 71 years."""
ErrorBound = Annotated[int, Meta(ge=-1, le=2**51)]
Lean = Annotated[int, Meta(ge=-(2**40), le=2**40)]


def number_of(stamp: int, stamper: int) -> int:
    """The number an event has in its topic. Numbers of a topic count up as keys do; most of them name nothing."""
    return stamp * STAMPERS_MAX + stamper


def before(stamp: int) -> int:
    """The highest number below every number with a later stamp than this."""
    return number_of(stamp + 1, 0) - 1


class Stamped(Struct, frozen=True, tag="Stamped", array_like=True, gc=False):
    """An event has a key: the `request`-th of its publisher. Or `count` in a row have: their stamps, requests and
    places count up together."""

    stamp: Stamp
    publisher: Address
    request: Request
    count: Count = 1


class Opened(Struct, frozen=True, tag="Opened", array_like=True, gc=False):
    """In a keeper's lane: `stamper` may stamp on this topic too, later than this stamp. Its lane has this entry's place
    as its epoch."""

    stamp: Stamp
    stamper: Stamper


class Closed(Struct, frozen=True, tag="Closed", array_like=True, gc=False):
    """In a keeper's lane: the lane of that epoch has ended, with entry `last`; or, where `last` is -1, somewhere not
    later than stamp `upto`."""

    stamp: Stamp
    stamper: Stamper
    epoch: Number
    last: NumberOrNone
    upto: Stamp


Entry = Stamped | Opened | Closed


class LaneName(NamedTuple):
    """Entries of one topic by one stamper; the keeper's own has epoch 0."""

    topic: TopicNumber
    stamper: Stamper
    epoch: Number


class LaneStamps(Struct, frozen=True, tag="clock.Stamps", gc=False):
    """Broadcast beside the topic, or sent to whoever asked: entries `first` and those after it of a lane."""

    lane: LaneName
    first: Number
    entries: tuple[Entry, ...]


class LaneClaim(NamedTuple):
    """Of a lane: its last entry, that entry's stamp, and its lean, as of the reading it is part of."""

    topic: TopicNumber
    epoch: Number
    last: Number
    stamp: Stamp
    lean: Lean


class Beat(Struct, frozen=True, tag="clock.Beat", gc=False):
    """A stamper's clock, to the other stampers. Promises, for the lanes that this or an earlier beat of the same term
    has listed and for no others, that later entries have later stamps than `clock` and lean. The first of a term, and
    the answer to `AskBeat`, are whole."""

    source: Address
    term: Number
    number: Number
    reading: Stamp
    """What its clock shows; promises nothing."""
    clock: Stamp
    lanes: tuple[LaneClaim, ...]
    whole: bool = False
    error: ErrorBound = -1
    """How far its stamps may be from the clock of all; -1: nobody knows."""
    ended: tuple[TopicNumber, ...] = ()
    """Lanes that it speaks for no more."""


class Tick(Struct, frozen=True, tag="clock.Tick", gc=False):
    """A stamper's clock between its beats, to those who keep it awake: what beat `number` says, with this clock."""

    source: Address
    term: Number
    number: Number
    clock: Stamp


class Wake(Struct, frozen=True, tag="clock.Wake", gc=False):
    """To a stamper, from another whose listeners wait for its clock: tick, until nothing has been asked for a while."""

    source: Address


class AskBeat(Struct, frozen=True, tag="clock.AskBeat"):
    """To a stamper, from another that has missed a beat: tell everything."""

    source: Address


class OpenLane(Struct, frozen=True, tag="clock.OpenLane"):
    """To the keeper: I have something to stamp on your topic; my clock is at `clock`."""

    stamper: Stamper
    topic: TopicNumber
    clock: Stamp


class Granted(Struct, frozen=True, tag="clock.Granted"):
    """From the keeper: stamp on the topic, later than `after` and not later than `lease`."""

    topic: TopicNumber
    epoch: Number
    after: Stamp
    lease: Stamp


class NotKept(Struct, frozen=True, tag="clock.NotKept"):
    """From a stamper that was taken for the keeper: it knows no such topic."""

    topic: TopicNumber


class CloseLane(Struct, frozen=True, tag="clock.CloseLane"):
    """To the keeper: I shall not stamp on this lane again; its last entry is this."""

    stamper: Stamper
    topic: TopicNumber
    epoch: Number
    last: Number
    stamp: Stamp


class LaneEnded(Struct, frozen=True, tag="clock.LaneEnded"):
    """From the keeper: the lease of that lane has run out, and it is closed."""

    topic: TopicNumber
    epoch: Number


class RenewLease(Struct, frozen=True, tag="clock.Renew"):
    """To a keeper: my clock (with the largest lean on your topics) is at `clock`; let me go on."""

    stamper: Stamper
    clock: Stamp


class Leased(Struct, frozen=True, tag="clock.Leased"):
    """From a keeper: stamp on my topics, not later than this."""

    keeper: Stamper
    lease: Stamp


PeerMessage = OpenLane | Granted | NotKept | CloseLane | LaneEnded | RenewLease | Leased
"""Over the link sessions between stampers: exactly once, in order, durable."""


class Create(Struct, frozen=True, tag="clock.Create", gc=False):
    """To the publisher's stamper, and no other: keys for requests `first` and those after it, later than `after`;
    `runs` has their topics, each with how many in a row are on it. Requests up to `settled` need no answer any more."""

    client: Address
    stamper: Address
    first: Request
    runs: tuple[tuple[TopicNumber, Count], ...]
    after: Stamp
    settled: Request


class StampTaken(Struct, frozen=True, tag="clock.Taken", gc=False):
    """To a publisher: all requests up to `upto` have durable keys, the last one this stamp."""

    upto: Request
    stamp: Stamp


class StampDenied(Struct, frozen=True, tag="clock.Denied"):
    """To a publisher: request `request` has no key and will get none."""

    request: Request
    reason: str


class AskLanes(Struct, frozen=True, tag="clock.AskLanes"):
    """To a keeper, from a client that joins: who may stamp on this topic?"""

    client: Address
    topic: TopicNumber
    token: Request


class Lanes(Struct, frozen=True, tag="clock.Lanes"):
    """From a keeper: its own lane's last entry and watermark at this moment, and the lanes open then."""

    topic: TopicNumber
    token: Request
    last: Number
    watermark: Stamp
    lanes: tuple[tuple[Stamper, Number], ...]
    begun: Number = 0
    """The keeper had forgotten, and began again after this place, with no lane open; it has all entries since. 0: it
    never had, or not all of them."""
    above: Stamp = 0
    """Those entries are later than this."""


class AskBase(Struct, frozen=True, tag="clock.AskBase"):
    """To a stamper, from a client that joins: where does this lane of yours stand?"""

    client: Address
    lane: LaneName
    token: Request


class Base(Struct, frozen=True, tag="clock.Base"):
    """From a stamper: all entries after `last` have later stamps than `watermark`. An ended lane has none."""

    lane: LaneName
    token: Request
    last: Number
    watermark: Stamp
    has_ended: bool = False


class FetchEntries(Struct, frozen=True, tag="clock.Fetch"):
    """To a stamper, from a client that misses entries `first` to `last` of a lane."""

    client: Address
    lane: LaneName
    first: Number
    last: Number


FORGOTTEN: Number = 2**62


class Gone(Struct, frozen=True, tag="clock.Gone"):
    """From a stamper: entries of that lane up to `upto` are not kept any more; `FORGOTTEN`: it knows no such lane."""

    lane: LaneName
    upto: Number


class Listen(Struct, frozen=True, tag="clock.Listen"):
    """To the node of a client's region: tell me what you hear of clocks, for these topics."""

    client: Address
    topics: tuple[TopicNumber, ...]
    waits: Stamp = 0
    """And I wait until all clocks have passed this; 0: nothing that you could not know of."""


class Reading(NamedTuple):
    """One stamper's clock, and its lanes that a listener asked about, as of one beat."""

    stamper: Stamper
    clock: Stamp
    lanes: tuple[LaneClaim, ...]
    error: ErrorBound = -1


class Tide(Struct, frozen=True, tag="clock.Tide", gc=False):
    """From a node to its listeners: what it has heard of clocks."""

    readings: tuple[Reading, ...]


class SetLean(Struct, frozen=True, tag="clock.SetLean"):
    """From the operator or the planner: stamp events of this topic as if the clock stood this much ahead."""

    topic: TopicNumber
    lean: Lean


class KeyRules(Struct, frozen=True, tag="clock.Rules"):
    """From the driver of a stamper as it starts: what its deployment promises from now on, as in its config. Keys
    depend on it, so it is written down: what was stamped under other rules gets the same keys again."""

    causal: bool
    tolerance_us: Annotated[int, Meta(ge=0, le=2**51)]


class ClockBound(Struct, frozen=True, tag="clock.Bound"):
    """From the driver of a stamper, again and again: how far its moments may be from the clock of all stampers, half
    of them being before that and half after; -1: nobody knows."""

    error: ErrorBound


class Nearest(Struct, frozen=True):
    """From the driver of a client: publish through this stamper, and hear of clocks from it. A publisher that waits for
    another one's answers changes when it has them."""

    stamper: Address


class Witnessed(Struct, frozen=True):
    """From the driver of a client: another machine of it was notified up to this stamp."""

    stamp: int


BrokerMessage = Payload | LaneStamps
ClientMessage = Create | AskLanes | AskBase | FetchEntries | Listen
"""From clients to nodes."""
NodeMessage = StampTaken | StampDenied | Lanes | Base | LaneStamps | Gone | Tide
"""From nodes to clients."""
SENDERS: dict[type, Callable[[Any], Address]] = {
    **dict.fromkeys((Create, AskLanes, AskBase, FetchEntries, Listen), attrgetter("client")),
    **dict.fromkeys((Beat, Tick, Wake, AskBeat), attrgetter("source")),
}
"""Who a message says it is from."""
