"""What travels between brokers, publishers and subscribers of a hierarchy (specs: entourage, sections 0, 4, 6 and 7).

A link is a reliable FIFO channel in each direction that reports its own loss; all its messages share one stream. So is
a direct connection between a publisher and its target. A *stream* is what one publishing client says in one life: its
name is the client's address, and its items are numbered from 1.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.numbers import Moment, Number, Request
from unisono.model.predicate import Filter

Side = Literal["parent", "peer", "broker", "client"]
"""Who a neighbour is to us: the broker above, another root, a broker below, a client."""


class RegionSaid(Struct, frozen=True, tag="RegionsSaid"):
    """What is said on links and on direct connections; everything carries its sender."""

    source: Address


class Tally(Struct, frozen=True, tag="RegionsTally"):
    """What is below a neighbour, itself included: subscribers, their hops to it, brokers, changes per hour."""

    subscribers: Number = 0
    hops: Number = 0
    brokers: Number = 0
    changes: Number = 0


class Attach(RegionSaid, frozen=True, tag="RegionsAttach"):
    """To the broker above, or to another root: all that is wanted here from now on; the first of a link, and updates.

    `turn` counts them; `Attached` answers one when everything that matches and is published from then on will come.
    """

    turn: Number
    wanted: Filter
    tally: Tally = Tally()
    accepts_direct: bool = False


class Attached(RegionSaid, frozen=True, tag="RegionsAttached"):
    """What was wanted in that turn is known wherever it has to be; `reaches_all` is false if some root could not be."""

    turn: Number
    reaches_all: bool = True


class Churn(RegionSaid, frozen=True, tag="RegionsChurn"):
    """Upwards: somebody came or went below, though the broker above need not be told of other interests."""

    tally: Tally


class StreamSaid(RegionSaid, frozen=True, tag="RegionsStreamSaid"):
    """About one stream."""

    stream: Address


class OpenStream(StreamSaid, frozen=True, tag="RegionsOpen"):
    """Before the first item of a stream on a link. `epoch` counts the paths its publisher has had.

    Nothing up to `base` is owed through this link; the sender has processed all up to `now`. A stream `is_new` if
    everything from its first item on will come this way.
    """

    epoch: Number
    base: Number
    now: Number
    is_new: bool = False


class Reopen(StreamSaid, frozen=True, tag="RegionsReopen"):
    """Towards the publisher: a broker on the path has a new link above, so open a path of the next epoch."""


class StreamItem(StreamSaid, frozen=True, tag="RegionsItem"):
    """One item. Without an event it is a mark, which passes wherever `scope` overlaps what is wanted."""

    number: Number
    at: Moment
    event: Event | None = None
    scope: Filter | None = None


class StreamGap(StreamSaid, frozen=True, tag="RegionsGap"):
    """Items `first` to `last` cannot be brought any more; `publishers` are the names that may have spoken in them."""

    first: Number
    last: Number
    publishers: tuple[str, ...] = ()


class CloseStream(StreamSaid, frozen=True, tag="RegionsClose"):
    """The publisher has gone: `last` is the last item that came so far; `left` says that it said goodbye.

    `publishers` are the names it is known to have used.
    """

    epoch: Number
    last: Number
    left: bool = False
    publishers: tuple[str, ...] = ()


class RootAck(StreamSaid, frozen=True, tag="RegionsRootAck"):
    """Towards the publisher: its root has accepted all items up to `number`."""

    number: Number


class PruneStream(StreamSaid, frozen=True, tag="RegionsPrune"):
    """To where a stream comes from: it comes directly now, in session `session`; send it no more."""

    session: Number


class UnpruneStream(StreamSaid, frozen=True, tag="RegionsUnprune"):
    """To where a stream comes from: open it again."""

    session: Number


class Recover(StreamSaid, frozen=True, tag="RegionsRecover"):
    """To the publisher, against the stream's path or directly: send what came after `last`.

    Of somebody who has never heard the stream (`since`): what is not older than that moment, or comes after `base`.
    """

    token: Number
    last: Number
    since: Moment | None = None
    base: Number | None = None
    way: tuple[Address, ...] = ()


class ReplayStream(StreamSaid, frozen=True, tag="RegionsReplay"):
    """The answer, in parts: items in order; the last part says up to which number that is everything.

    What was asked for up to `gone` is kept no more.
    """

    token: Number
    items: tuple[StreamItem, ...]
    until: Number
    is_last: bool
    gone: Number = 0
    publishers: tuple[str, ...] = ()
    way: tuple[Address, ...] = ()


# direct connections: `session` is counted by the publisher


class DirectSaid(StreamSaid, frozen=True, tag="RegionsDirectSaid"):
    """In a session between a publisher and a target."""

    session: Number


class DirectConnect(DirectSaid, frozen=True, tag="RegionsConnect"):
    """Publisher to target: the first word on a new connection."""


class DirectAccept(DirectSaid, frozen=True, tag="RegionsAccept"):
    """Target: I wait for the start."""


class DirectRefuse(DirectSaid, frozen=True, tag="RegionsRefuse"):
    """Target: not now."""

    reason: str = ""


class DirectStart(DirectSaid, frozen=True, tag="RegionsStart"):
    """Publisher: items from `first` on come here."""

    first: Number


class DirectItem(DirectSaid, frozen=True, tag="RegionsDirectItem"):
    """Publisher: an item."""

    item: StreamItem


class DirectDone(DirectSaid, frozen=True, tag="RegionsDone"):
    """Target: the stream is taken from here."""


class DirectLeave(DirectSaid, frozen=True, tag="RegionsLeave"):
    """Publisher: the session is to end; items still come."""


class DirectReady(DirectSaid, frozen=True, tag="RegionsReady"):
    """Target: the overlay's stream is open again, and buffered from here."""

    token: Number


class DirectStop(DirectSaid, frozen=True, tag="RegionsStop"):
    """Publisher: that was the last item here; `first` is the first that is not."""

    first: Number
    token: Number


class DirectEnded(DirectSaid, frozen=True, tag="RegionsEnded"):
    """Target: the session has ended as agreed."""


class DirectNoStart(DirectSaid, frozen=True, tag="RegionsNoStart"):
    """Target: no start came, I am where I was."""


class DirectBreak(DirectSaid, frozen=True, tag="RegionsBreak"):
    """Either end: the session is over, now."""


# discovery of entourages


class GraphEntry(Struct, frozen=True, tag="RegionsEntry"):
    """A node of the graph that a publisher is told of: whom it could connect to, and whom that would serve."""

    node: Address
    hops: Number
    subscribers: Number
    distance: Number
    """Hops from the node to its subscribers, added up."""
    brokers: Number
    children: "tuple[GraphEntry, ...]" = ()


class GraphReport(Struct, frozen=True, tag="RegionsReport"):
    """What a broker answers: entries, none of them, or that it refuses."""

    entries: tuple[GraphEntry, ...] = ()
    is_refused: bool = False


class CountRound(Struct, frozen=True, tag="RegionsRound"):
    """What a publisher asks about: what it will publish, how close is close enough, and what it published lately."""

    number: Request
    advertised: Filter
    closeness: Annotated[float, Meta(ge=0.0, le=1.0)]
    samples: tuple[dict[str, str | int | float | bool], ...] = ()


class CountEntourage(StreamSaid, frozen=True, tag="RegionsCount"):
    """COUNT: upwards to the publisher's root, from there to all roots, and down."""

    round: CountRound
    budget_us: Number
    is_climbing: bool = False


class CountReply(StreamSaid, frozen=True, tag="RegionsCountReply"):
    """COUNTREPLY: upwards to who asked; from a root to the publisher, with what is below that root."""

    number: Request
    report: GraphReport
    root: Address | None = None
    tally: Tally = Tally()


class StirEntourage(StreamSaid, frozen=True, tag="RegionsStir"):
    """A target to its publisher: somebody came or went below me, so count again."""


REASON_CHARS_MAX = 200


class EntourageTold(StreamSaid, frozen=True, tag="RegionsEntourage"):
    """A publisher to its broker, for whoever looks at the deployment: how many direct connections it has, and why."""

    connections: Number
    reason: Annotated[str, Meta(max_length=REASON_CHARS_MAX)]


RegionMessage = (
    Attach
    | Attached
    | Churn
    | OpenStream
    | Reopen
    | StreamItem
    | StreamGap
    | CloseStream
    | RootAck
    | PruneStream
    | UnpruneStream
    | Recover
    | ReplayStream
    | DirectConnect
    | DirectAccept
    | DirectRefuse
    | DirectStart
    | DirectItem
    | DirectDone
    | DirectLeave
    | DirectReady
    | DirectStop
    | DirectEnded
    | DirectNoStart
    | DirectBreak
    | CountEntourage
    | CountReply
    | StirEntourage
    | EntourageTold
)
"""All that travels."""


# from the driver


class RegionLinkUp(Struct, frozen=True, tag="RegionsLinkUp"):
    """There is a new link, and who the other end is."""

    peer: Address
    side: Side


class RegionLinkDown(Struct, frozen=True, tag="RegionsLinkDown"):
    """The last thing read from a lost link."""

    peer: Address


class DirectLost(Struct, frozen=True, tag="RegionsDirectLost"):
    """The last thing read from a lost direct connection for a stream; None: for whatever streams there were."""

    peer: Address
    stream: Address | None = None


class RegionMeasured(Struct, frozen=True, tag="RegionsMeasured"):
    """To a client: what one direct copy has cost lately, in CPU time."""

    copy_us: float


class RegionLeave(Struct, frozen=True, tag="RegionsLeaving"):
    """To a client: say goodbye."""
