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

from unisono.model.event import Payload
from unisono.model.ids import Address
from unisono.model.numbers import Count, Moment, Number, Request, TopicNumber
from unisono.structures.hosting import Announced

Entries = dict[TopicNumber, Number]
Topics = tuple[TopicNumber, ...]
Numbers = tuple[Number, ...]


class Run(Struct, frozen=True, gc=False, omit_defaults=True):
    """Numbers `first` .. `first + count - 1` of a topic, given to requests `request` .. of one publisher."""

    first: Number
    count: Number
    publisher: Address
    request: Number
    topics: Topics = ()
    numbers: Numbers = ()
    """Beside each of `topics` the number of it that must be delivered before."""
    short: bool = False
    """It names one event of another topic, and stands for all that was numbered before that one in their group: true
    for whoever has processed it in its turn, and hears no topic that it did not hear then."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def entries(self) -> Entries:
        return dict(zip(self.topics, self.numbers))


class Wanted(Struct, frozen=True, gc=False, omit_defaults=True):
    """Requests `first` .. `first + count - 1` on a topic want numbers; those below `ack` are settled or given up.

    What was asked before the topic was begun again `since` a number is among those."""

    topic: TopicNumber
    first: Request
    count: Count = 1
    ack: Request = 1
    since: Number = 0


# Client to node.


class Creates(Struct, frozen=True, tag="Creates", gc=False):
    """A publisher asks for numbers. With `wait` it also wants to hear when they are complete (causal order).

    Items are concurrent, and may be numbered topic by topic; `in_line`: in the order in which they stand.
    """

    publisher: Address
    items: tuple[Wanted, ...]
    wait: bool = False
    in_line: bool = False


class Turn(Struct, frozen=True, tag="Turn", gc=False):
    """Requests of several publishers that came together. Made by a node's driver: it is logged and never travels."""

    creates: tuple[Creates, ...]


class Collect(Struct, frozen=True, tag="Collect"):
    """Subscription, phase 1, at the home of the topics `here`: register `topics` there, push their numbers up."""

    sid: Address
    version: Request
    here: Topics
    topics: Topics
    new: Topics
    left: Entries = {}
    short: bool = False
    """Whether the subscriber can read short timestamps: one of an earlier release takes them for whole ones."""


class Install(Struct, frozen=True, tag="Install"):
    """Subscription, phase 2, at the home of the new topics `here`."""

    sid: Address
    version: Request
    here: Topics
    topics: Topics
    left: Entries = {}
    short: bool = False


class Update(Struct, frozen=True, tag="Update"):
    """Unsubscription, at the home of the topics `here`: what is left of the subscription is `topics`, nothing where
    they are those that were left."""

    sid: Address
    version: Request
    here: Topics
    topics: Topics
    left: Entries = {}
    short: bool = False


class Ask(Struct, frozen=True, tag="Ask"):
    """A subscriber asks the home what became of a number, or (with `publisher`) of a request."""

    sid: Address
    topic: TopicNumber
    number: Request = 0
    publisher: Address = Address("")
    request: Request = 0


class Withdraw(Struct, frozen=True, tag="Withdraw"):
    """The broker has refused the payloads of these requests for good: their numbers are void. Repeated until answered;
    of requests that have no numbers yet nothing is withdrawn, and nothing is answered."""

    publisher: Address
    topic: TopicNumber
    first: Request
    count: Request = 1


class Renew(Struct, frozen=True, tag="Renew"):
    """A subscriber is still here: does the home of these topics know it? `sent` is its own time, and comes back."""

    sid: Address
    here: Topics
    sent: Moment


# Node to client.


class Taken(Struct, frozen=True, tag="Taken", gc=False):
    """The requests up to these, on each topic, have durable numbers."""

    upto: dict[TopicNumber, Number]


class Completed(Struct, frozen=True, tag="Completed"):
    """The timestamps of the requests up to `upto` are complete: later requests anywhere come after them."""

    topic: TopicNumber
    upto: Number


class Withdrawn(Struct, frozen=True, tag="Withdrawn"):
    """The answer to Withdraw: the numbers of these requests are void."""

    topic: TopicNumber
    first: Number
    count: Number


class Collected(Struct, frozen=True, tag="Collected"):
    """Phase 1 is over for `topic`: its part has reached its height."""

    topic: TopicNumber
    version: Number


class Installed(Struct, frozen=True, tag="Installed"):
    """Phase 2 is over for `topic`: numbers above `base` are owed, none before those of `gate` were delivered."""

    topic: TopicNumber
    version: Number
    base: Number
    gate: Entries = {}


class Updated(Struct, frozen=True, tag="Updated"):
    """The registration at the home of `topic` is in force."""

    topic: TopicNumber
    version: Number


class Renewed(Struct, frozen=True, tag="Renewed"):
    """The answer to Renew; unless `known`, the registration is gone, and the subscriber must come back as another."""

    here: Topics
    sent: Moment
    known: bool


class Denied(Struct, frozen=True, tag="Denied"):
    """The registration named numbers that were never issued; it changed nothing."""

    topic: TopicNumber
    version: Number
    reason: str


Fate = Literal["pending", "published", "void", "forgotten", "unissued"]


class Told(Struct, frozen=True, tag="Told"):
    """The answer to Ask. `run` is complete unless the fate is pending; with forgotten, `floor` is the oldest kept.

    Numbers up to `mark` are complete, as in a Mark.
    """

    topic: TopicNumber
    number: Number
    fate: Fate
    run: Run | None = None
    floor: Number = 0
    mark: Number = 0


class Moved(Struct, frozen=True, tag="Moved"):
    """The topic's home is `home`; send there from now on."""

    topic: TopicNumber
    home: Address
    since: Number = 0
    """The topic was begun again with this number, and what was asked before may have been numbered before."""
    is_here: bool = True
    """At this home: so whoever has asked no other has heard of it when it connected."""


# Node to node, all on sessions.


class Fill(Struct, frozen=True, tag="Fill", gc=False):
    """The timestamp of a run under construction, on its way up.

    `todo`: topics still to be filled. `full`: those of them that need an explicit entry. `bars`: bar values of topics
    in `todo`, merged where the topic is decided.
    """

    topic: TopicNumber
    run: Run
    todo: Topics
    full: Topics = ()
    bars: Entries = {}


class Part(Struct, frozen=True, tag="Part"):
    """A Collect on its way up, in line with the Fills: these numbers of topics have been issued, tell all nodes."""

    collected: Entries
    sid: Address
    version: Number
    todo: Topics


class Done(Struct, frozen=True, tag="Done", gc=False):
    """The timestamp of a run is complete; on its way down to the home."""

    topic: TopicNumber
    run: Run


class Prove(Struct, frozen=True, tag="Prove"):
    """Has `number` of `topic` been issued, and has it passed the node that orders it against `asker`?"""

    topic: TopicNumber
    number: Number
    asker: TopicNumber


class Proven(Struct, frozen=True, tag="Proven"):
    """On its way to the home of `asker`: numbers of `topic` up to `number` have been issued.

    It leaves the home of `topic` in line after their Fills, so when it passes the meeting point they have passed too.
    """

    asker: TopicNumber
    topic: TopicNumber
    number: Number


class Disproved(Struct, frozen=True, tag="Disproved"):
    """On its way to the home of `asker`: `number` of `topic` was never issued."""

    asker: TopicNumber
    topic: TopicNumber
    number: Number


class Move(Struct, frozen=True, tag="Move"):
    """`topic` changes its home along this link, and then along those to the nodes `then`. `state` is what the old home
    knew of it, `clock` what it had seen."""

    topic: TopicNumber
    state: Any
    clock: Entries
    then: tuple[Address, ...] = ()
    moves: Number = 0
    """How often it has moved, with this; whoever remembers the highest knows where it went last."""


class Relocate(Struct, frozen=True, tag="Relocate"):
    """To the home of `topic`, from its driver or through the tree: move to the last of these nodes, link by link."""

    topic: TopicNumber
    path: tuple[Address, ...]


class Born(Struct, frozen=True, tag="Born"):
    """A new topic below `child`; climbs to the root."""

    topic: TopicNumber
    child: Address


class Routed(Struct, frozen=True, tag="Routed"):
    """A client's message on its way through the tree to the home of `topic`."""

    topic: TopicNumber
    message: "Creates | Withdraw | Collect | Install | Update | Ask | Renew"


class Recalled(Struct, frozen=True, tag="Recalled"):
    """To a parent, when one of both has forgotten: after `moves` this topic is below `child`, or has left it by way of
    you (`is_gone`), and its numbers up to this have passed you."""

    topic: TopicNumber
    child: Address
    number: Number
    moves: Number = 0
    is_gone: bool = False


class AllRecalled(Struct, frozen=True, tag="AllRecalled"):
    """To a parent, when one of both has forgotten: that is all that `child` knows. Unless 0, `asks` counts the
    questions of a child that has forgotten itself: what of that is mine?"""

    child: Address
    asks: Number = 0


class Yours(Struct, frozen=True, tag="Yours"):
    """To a child that has forgotten: after `moves` this topic went to you, and has not come back."""

    topic: TopicNumber
    moves: Number = 0
    number: Number = 0


class NotYours(Struct, frozen=True, tag="NotYours"):
    """To a child: this topic is neither at home with you nor below you; after `moves` it was elsewhere."""

    topic: TopicNumber
    moves: Number


class AllYours(Struct, frozen=True, tag="AllYours"):
    """To a child that has forgotten: the end of the answer to its question `asks`."""

    asks: Number


class Unfinished(Struct, frozen=True, tag="Unfinished"):
    """Downwards: a node above has forgotten, and timestamps that were climbing through it may never be complete."""


# On the broker. Payloads travel on the topic itself, the others beside it.


class Stamps(Struct, frozen=True, tag="Stamps", gc=False):
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


class Pieces(Struct, frozen=True, tag="Pieces", gc=False):
    """Early stamps: parts of timestamps, as soon as they are decided."""

    topic: TopicNumber
    pieces: tuple[Piece, ...]


class Void(Struct, frozen=True, tag="Void"):
    """Numbers `first` .. of a complete run are withdrawn; they obey the delivery rule like events and notify nobody."""

    topic: TopicNumber
    run: Run
    first: Number
    count: Number


class Mark(Struct, frozen=True, tag="Mark"):
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
    | Relocate
    | Born
    | Announced
    | Routed
    | Recalled
    | AllRecalled
    | Yours
    | NotYours
    | AllYours
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
        return Part, tuple(message.collected), message.sid, message.version, message.todo
    if type(message) is Prove:
        return Prove, message.topic, message.number, message.asker
    if type(message) is Relocate:
        return Relocate, message.topic, message.path
    if type(message) is not Routed:
        return None
    match message.message:
        case Creates(publisher=publisher, items=items, wait=wait, in_line=in_line):
            return publisher, items, wait, in_line
        case Collect() | Install() | Update() as registration:
            return type(registration), registration.sid, registration.here, registration.version
        case Ask(sid=sid, topic=topic, number=number, publisher=publisher, request=request):
            return Ask, sid, topic, number, publisher, request
        case Renew(sid=sid, here=here):
            return Renew, sid, here
        case _:
            return None
