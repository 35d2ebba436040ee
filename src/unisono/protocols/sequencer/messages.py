"""Everything that travels: between clients and nodes, between nodes, and beside the topics on the broker.

Numbers are handled in **runs**: consecutive requests of one publisher on one topic that get consecutive numbers in
one turn. All numbers of a run share one timestamp (other topic -> number to be delivered before), in two columns:
a busy node hands on tuples it has at hand and builds no map per run. A single event is a run of one. A request is
named by (topic, publisher, request): requests count from 1 per publisher *and topic*, and a home numbers them in that
order, so its memory of a publisher is one counter.

A message that wants an answer carries its sender's address; `SENDERS` tell it, and a driver must refuse a message
whose sender is not the connection it came from.
"""

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct

from unisono.model.event import Event, Events
from unisono.model.ids import Address
from unisono.model.numbers import Count, Moment, Number, Request, TopicNumber

Entries = dict[TopicNumber, Number]
Topics = tuple[TopicNumber, ...]
Numbers = tuple[Number, ...]


class Run(Struct, frozen=True, gc=False):
    """Numbers `first` .. `first + count - 1` of a topic, given to requests `request` .. of one publisher."""

    first: Number
    count: Number
    publisher: Address
    request: Number
    topics: Topics = ()
    numbers: Numbers = ()
    """Beside each of `topics` the number of it that must be delivered before."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def entries(self) -> Entries:
        return dict(zip(self.topics, self.numbers))


class Wanted(Struct, frozen=True, gc=False):
    """Requests `first` .. `first + count - 1` on a topic want numbers; those below `ack` are settled or given up."""

    topic: TopicNumber
    first: Request
    count: Count = 1
    ack: Request = 1


# Client to node.


class Creates(Struct, frozen=True, tag=True, gc=False):
    """A publisher asks for numbers. With `wait` it also wants to hear when they are complete (causal order).

    Items are concurrent, and may be numbered topic by topic; `in_line`: in the order in which they stand.
    """

    publisher: Address
    items: tuple[Wanted, ...]
    wait: bool = False
    in_line: bool = False


class Turn(Struct, frozen=True, tag=True, gc=False):
    """Requests of several publishers that came together. Made by a node's driver: it is logged and never travels."""

    creates: tuple[Creates, ...]


class Collect(Struct, frozen=True, tag=True):
    """Subscription, phase 1, at the home of `topic`: register `topics` there and push its number up the tree."""

    sid: Address
    version: Request
    topic: TopicNumber
    topics: Topics
    new: Topics
    left: Entries = {}


class Install(Struct, frozen=True, tag=True):
    """Subscription, phase 2, at the home of the new topic `topic`."""

    sid: Address
    version: Request
    topic: TopicNumber
    topics: Topics
    left: Entries = {}


class Update(Struct, frozen=True, tag=True):
    """Unsubscription: what is left of the subscription (`topics`, empty at the topic that was left)."""

    sid: Address
    version: Request
    topic: TopicNumber
    topics: Topics
    left: Entries = {}


class Ask(Struct, frozen=True, tag=True):
    """A subscriber asks the home what became of a number, or (with `publisher`) of a request."""

    sid: Address
    topic: TopicNumber
    number: Request = 0
    publisher: Address = Address("")
    request: Request = 0


class Withdraw(Struct, frozen=True, tag=True):
    """The broker has refused the payloads of these requests for good: their numbers are void. Repeated until answered;
    of requests that have no numbers yet nothing is withdrawn, and nothing is answered."""

    publisher: Address
    topic: TopicNumber
    first: Request
    count: Request = 1


class Renew(Struct, frozen=True, tag=True):
    """A subscriber is still here: does the home still know it? `sent` is its own time, and comes back."""

    sid: Address
    topic: TopicNumber
    sent: Moment


# Node to client.


class Taken(Struct, frozen=True, tag=True, gc=False):
    """The requests up to these, on each topic, have durable numbers."""

    upto: dict[TopicNumber, Number]


class Completed(Struct, frozen=True, tag=True):
    """The timestamps of the requests up to `upto` are complete: later requests anywhere come behind them."""

    topic: TopicNumber
    upto: Number


class Withdrawn(Struct, frozen=True, tag=True):
    """The answer to Withdraw: the numbers of these requests are void."""

    topic: TopicNumber
    first: Number
    count: Number


class Collected(Struct, frozen=True, tag=True):
    """Phase 1 is over for `topic`: its part has reached its height."""

    topic: TopicNumber
    version: Number


class Installed(Struct, frozen=True, tag=True):
    """Phase 2 is over for `topic`: numbers above `base` are owed, none before those of `gate` were delivered."""

    topic: TopicNumber
    version: Number
    base: Number
    gate: Entries = {}


class Updated(Struct, frozen=True, tag=True):
    """The registration at the home of `topic` is in force."""

    topic: TopicNumber
    version: Number


class Renewed(Struct, frozen=True, tag=True):
    """The answer to Renew; unless `known`, the registration is gone, and the subscriber must come back as another."""

    topic: TopicNumber
    sent: Moment
    known: bool


class Denied(Struct, frozen=True, tag=True):
    """The registration named numbers that were never issued; it changed nothing."""

    topic: TopicNumber
    version: Number
    reason: str


Fate = Literal["pending", "published", "void", "forgotten", "unissued"]


class Told(Struct, frozen=True, tag=True):
    """The answer to Ask. `run` is complete unless the fate is pending; with forgotten, `floor` is the oldest kept.

    Numbers up to `mark` are complete, as in a Mark.
    """

    topic: TopicNumber
    number: Number
    fate: Fate
    run: Run | None = None
    floor: Number = 0
    mark: Number = 0


class Moved(Struct, frozen=True, tag=True):
    """The topic's home is `home`; send there from now on."""

    topic: TopicNumber
    home: Address


# Node to node, all on sessions.


class Fill(Struct, frozen=True, tag=True, gc=False):
    """The timestamp of a run under construction, on its way up.

    `todo`: topics still to be filled. `full`: those of them that need an explicit entry. `bars`: bar values of topics
    in `todo`, merged where the topic is decided.
    """

    topic: TopicNumber
    run: Run
    todo: Topics
    full: Topics = ()
    bars: Entries = {}


class Part(Struct, frozen=True, tag=True):
    """A Collect on its way up, in line with the Fills: `number` of `topic` has been issued, tell every node."""

    topic: TopicNumber
    number: Number
    sid: Address
    version: Number
    todo: Topics


class Done(Struct, frozen=True, tag=True, gc=False):
    """The timestamp of a run is complete; on its way down to the home."""

    topic: TopicNumber
    run: Run


class Prove(Struct, frozen=True, tag=True):
    """Has `number` of `topic` been issued, and has it passed the node that orders it against `asker`?"""

    topic: TopicNumber
    number: Number
    asker: TopicNumber


class Proven(Struct, frozen=True, tag=True):
    """On its way to the home of `asker`: numbers of `topic` up to `number` have been issued.

    It leaves the home of `topic` in line behind their Fills, so when it passes the meeting point they have passed too.
    """

    asker: TopicNumber
    topic: TopicNumber
    number: Number


class Disproved(Struct, frozen=True, tag=True):
    """On its way to the home of `asker`: `number` of `topic` was never issued."""

    asker: TopicNumber
    topic: TopicNumber
    number: Number


class Move(Struct, frozen=True, tag=True):
    """`topic` changes its home along this link. `state` is what the old home knew of it, `clock` what it had seen."""

    topic: TopicNumber
    state: Any
    clock: Entries


class Born(Struct, frozen=True, tag=True):
    """A new topic below `child`; climbs to the root."""

    topic: TopicNumber
    child: Address


class Announced(Struct, frozen=True, tag=True):
    """Every node up to the root knows the new topic; on its way down to its home."""

    topic: TopicNumber


class Routed(Struct, frozen=True, tag=True):
    """A client's message on its way through the tree to the home of `topic`."""

    topic: TopicNumber
    message: "Creates | Withdraw | Collect | Install | Update | Ask | Renew"


class Recalled(Struct, frozen=True, tag=True):
    """To a parent that has forgotten: this topic is below `child`, and its numbers up to this have passed you."""

    topic: TopicNumber
    child: Address
    number: Number


class AllRecalled(Struct, frozen=True, tag=True):
    """To a parent that has forgotten: that is all that is below `child`."""

    child: Address


class Yours(Struct, frozen=True, tag=True):
    """To a child that has forgotten: this topic is below you, or at home with you."""

    topic: TopicNumber


class Unfinished(Struct, frozen=True, tag=True):
    """Downwards: a node above has forgotten, and timestamps that were climbing through it may never be complete."""


# On the broker. Payloads travel on the topic itself, the others beside it.


class Payload(Struct, frozen=True, tag=True, gc=False):
    """The event; its number follows apart."""

    publisher: Address
    request: Number
    event: Event


class Payloads(Struct, frozen=True, tag=True, gc=False):
    """Consecutive requests of one publisher on one topic, heard or published in one go; never travels as such."""

    publisher: Address
    request: Number
    events: Events


class Stamps(Struct, frozen=True, tag=True, gc=False):
    """Complete timestamps."""

    topic: TopicNumber
    runs: tuple[Run, ...]


class Piece(Struct, frozen=True, gc=False):
    """What one node decided of a run's timestamp.

    `settled` names the topics it took out of the run's todo, also those whose entry was omitted because it had not
    changed; `missing`, in the piece of the home only, the topics it left to the nodes above.
    """

    run: Run
    settled: Topics
    missing: Topics | None = None


class Pieces(Struct, frozen=True, tag=True, gc=False):
    """Early stamps: parts of timestamps, as soon as they are decided."""

    topic: TopicNumber
    pieces: tuple[Piece, ...]


class Void(Struct, frozen=True, tag=True):
    """Numbers `first` .. of a complete run are withdrawn; they obey the delivery rule like events and notify nobody."""

    topic: TopicNumber
    run: Run
    first: Number
    count: Number


class Mark(Struct, frozen=True, tag=True):
    """High-water mark: numbers up to `number` are complete; whoever misses one should ask."""

    topic: TopicNumber
    number: Number


ClientMessage = Creates | Withdraw | Collect | Install | Update | Ask | Renew
"""Client to node."""
Answer = Taken | Completed | Withdrawn | Collected | Installed | Updated | Renewed | Denied | Told | Moved
"""Node to client."""
PeerMessage = (
    Fill
    | Part
    | Done
    | Prove
    | Proven
    | Disproved
    | Move
    | Born
    | Announced
    | Routed
    | Recalled
    | AllRecalled
    | Yours
    | Unfinished
)
"""Node to node, on sessions."""
BrokerMessage = Payload | Stamps | Pieces | Void | Mark
"""On the broker; nodes publish all but the first."""


SENDERS: dict[type, Callable[[Any], Address]] = {
    **dict.fromkeys((Creates, Withdraw), attrgetter("publisher")),
    **dict.fromkeys((Collect, Install, Update, Ask, Renew), attrgetter("sid")),
}
"""Per kind of message of a client, whose it says it is; a driver refuses it unless the connection is theirs."""


def repeats(message: Any) -> Hashable | None:
    """What makes two messages of a node the same question of a client, who asks until it is answered; None: none is."""
    if type(message) is Part:
        return Part, message.topic, message.sid, message.version, message.todo
    if type(message) is Prove:
        return Prove, message.topic, message.number, message.asker
    if type(message) is not Routed:
        return None
    match message.message:
        case Creates(publisher=publisher, items=items, wait=wait, in_line=in_line):
            return publisher, items, wait, in_line
        case Collect() | Install() | Update() as registration:
            return type(registration), registration.sid, registration.topic, registration.version
        case Ask(sid=sid, topic=topic, number=number, publisher=publisher, request=request):
            return Ask, sid, topic, number, publisher, request
        case Renew(sid=sid, topic=topic):
            return Renew, sid, topic
        case _:
            return None
