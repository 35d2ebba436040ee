"""What clients and nodes say to each other beside the protocols: who is where, which topics there are, how are you.

Together with the messages of the sequencer these are all the types that a connection or a log may carry.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, get_args

from msgspec import Struct

from unisono.machine import Fired, Restarted
from unisono.model.deployment import Deployment
from unisono.model.health import GroupSeen, Health, StamperSeen, TopicSeen
from unisono.model.ids import Address
from unisono.model.numbers import Span, TopicNumber
from unisono.planning.demand import DemandView
from unisono.planning.homes import BetterRoot
from unisono.protocols.causal.messages import ToCausalBroker, ToCausalClient
from unisono.protocols.clock.messages import SENDERS as CLOCK_SENDERS
from unisono.protocols.clock.messages import AskBeat, Beat, ClockBound, Create, KeyRules, Lean, SetLean, Tick, Wake
from unisono.protocols.clock.messages import ClientMessage as ToStamper
from unisono.protocols.clock.messages import NodeMessage as FromStamper
from unisono.protocols.clock.messages import PeerMessage as StamperMessage
from unisono.protocols.naming.messages import NodeMessage as NamingMessage
from unisono.protocols.naming.messages import OpenTopics, TopicsBorn, TopicsNotOpened, TopicsOpened
from unisono.protocols.overlay.messages import BrokerMessage as OverlayMessage
from unisono.protocols.overlay.messages import ClientMessage as FromOverlay
from unisono.protocols.regions.messages import RegionMessage
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.lives import Began, Height, Reminds
from unisono.protocols.sequencer.messages import SENDERS, Answer, ClientMessage, PeerMessage, Relocate, Turn
from unisono.runtime.links.archive_messages import FromArchive, ToArchive
from unisono.structures.hosting import Forget, HostTopic, Lapse
from unisono.structures.sessions import BroadcastsDone, Frame, Handled, Reborn


class Watch(Struct, frozen=True, tag="Watch"):
    """A client wants to hear of all topics at home here that match a pattern, now and whenever one is created."""

    client: Address
    pattern: str


class Watched(Struct, frozen=True, tag="Watched"):
    """The answer to Watch: what matches now."""

    node: Address
    pattern: str
    names: tuple[str, ...]


class OverLimit(Struct, frozen=True, tag="Refused"):
    """To a client: that would be too much. `code` is one of `model.limits.REASONS`, `about` names what it asked for."""

    code: str
    reason: str
    about: str


class YourRights(Struct, frozen=True, tag="YourRights"):
    """To a client that may only do some things, before anything else: what they are, as patterns of topics."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class AskDeployment(Struct, frozen=True, tag="Where"):
    """A client asks for the deployment."""

    client: Address


class RunningDeployment(Struct, frozen=True, tag="Directory"):
    """The deployment, as the node runs it."""

    deployment: Deployment


PING_FEATURE = "ping"
"""Of a node that answers `PeerPing`."""


class PeerPing(Struct, frozen=True, tag="PeerPing"):
    """Node to neighbour: are you there, and what time is it?"""

    source: Address
    at_us: int


class PeerPong(Struct, frozen=True, tag="PeerPong"):
    """The answer: the moment of the question, by the asker's clock, and that of the answer, by ours."""

    source: Address
    asked_us: int
    at_us: int


class Survey(Struct, frozen=True, tag="Survey"):
    """`unisono topics` and `unisono groups` ask for what is at home here, by a pattern of names."""

    client: Address
    pattern: str


class Surveyed(Struct, frozen=True, tag="Surveyed"):
    """At most `SURVEYED_MAX` topics that match, and how many more there are; groups, if the node has an archive."""

    node: str
    at_us: int
    topics: tuple[TopicSeen, ...]
    more: int = 0
    groups: tuple[GroupSeen, ...] = ()


SURVEYED_MAX = 10_000


class AskReport(Struct, frozen=True, tag="Inquire"):
    """`unisono status` asks how a node is."""

    client: Address


class ClientAt(Struct, frozen=True, tag="ClientAt"):
    """A client says in which region it is, and how far the regions of nodes are from it."""

    client: Address
    region: str
    round_trips_us: dict[str, Span] = {}


class MoveTopic(Struct, frozen=True, tag="MoveTopic"):
    """A person wants this topic to be at home at that node; for the root."""

    client: Address
    topic: str
    to: str


class MoveOrdered(Struct, frozen=True, tag="MoveOrdered"):
    """It is on its way, from `at`; or why it is not."""

    topic: str
    to: str
    at: str | None
    problem: str | None = None


class PlanHomes(Struct, frozen=True, tag="PlanHomes"):
    """Which homes would be better by what was asked for lately? With `apply` they move; for the root."""

    client: Address
    apply: bool = False


class MovedHome(Struct, frozen=True):
    """A topic that moves, from where to where and why; `at_us` is wall clock time, of moves that were ordered."""

    topic: str
    at: str
    to: str
    reason: str
    at_us: int = 0


class HomesPlanned(Struct, frozen=True, tag="HomesPlanned"):
    """The answer to PlanHomes; what events take on average as homes are, and as they could be, if there were any."""

    moves: tuple[MovedHome, ...]
    expected_us: float | None
    possible_us: float | None


class HomesReport(Struct, frozen=True):
    """Of the root: whether homes move by themselves, what the last plan expected, and the last moves."""

    placement: str
    expected_us: float | None
    possible_us: float | None
    moves: tuple[MovedHome, ...]
    root: BetterRoot | None = None
    """Who should stand at the root instead; nobody changes that but a person."""
    pairs_unknown: tuple[tuple[str, str], ...] = ()
    """Regions between which nobody has measured or configured a distance."""

    def advice(self) -> list[str]:
        """What a person could do about it."""
        lines = [
            f"the distance between {a} and {b} is not known: add round_trip_ms, or connect a client in one of them"
            for a, b in self.pairs_unknown
        ]
        if (found := self.root) is not None:
            lines.append(
                f"the root is badly placed: with {found.node} there events would take {found.possible_us / 1000:.1f} ms"
                f" on average, {found.expected_us / 1000:.1f} ms as it is (docs/reference/operations.md, Another root)"
            )
        return lines


class LeanLanes(Struct, frozen=True, tag="LeanLanes"):
    """From the root to a stamper: its lanes of these topics lean by so many microseconds from now on."""

    source: Address
    leans: tuple[tuple[TopicNumber, Lean], ...]


class LeansReport(Struct, frozen=True):
    """Of the root, by clock: whether lanes lean by themselves, what the last plan expected, and when leans changed."""

    leans: str
    expected_us: float | None = None
    possible_us: float | None = None
    changed_at_us: int = 0
    """Wall clock time; 0: not yet."""
    changes: int = 0
    problem: str | None = None


class NodeReport(Struct, frozen=True, tag="Report"):
    """How a node is: counters by role, and what failed."""

    node: str
    counters: dict[str, dict[str, int]]
    topics: tuple[str, ...]
    peers: tuple[str, ...]
    failure: str | None = None
    health: Health | None = None
    """None from a node of an earlier release."""
    homes: HomesReport | None = None
    """Of the root of several sequencer nodes."""
    stamper: StamperSeen | None = None
    """Where clocks order."""
    leans: LeansReport | None = None
    """Of the root of several stampers."""


AboutHomes = ClientAt | DemandView | MoveTopic | PlanHomes | LeanLanes
"""Where clients are, what is asked for, what should be at home elsewhere."""
NodeMessage = PeerMessage | StamperMessage | NamingMessage
_FromClients = (
    OpenTopics
    | Watch
    | AskDeployment
    | AskReport
    | Survey
    | ClientAt
    | MoveTopic
    | PlanHomes
    | Forget
    | Reminds
    | ToArchive
    | OverlayMessage
    | RegionMessage
    | ToCausalBroker
)
FromClients = {"tree": _FromClients | ClientMessage, "clock": _FromClients | ToStamper}
"""What a node reads from a client, by how it orders: no machine is handed by clients what only nodes say, or what
others than itself understand."""
ToNode = (
    _FromClients
    | ClientMessage
    | ToStamper
    | Frame[NodeMessage]
    | Handled
    | Beat
    | Tick
    | Wake
    | AskBeat
    | PeerPing
    | PeerPong
    | DemandView
    | LeanLanes
)
ToClient = (
    Answer
    | FromStamper
    | TopicsOpened
    | TopicsNotOpened
    | Watched
    | TopicsBorn
    | OverLimit
    | RunningDeployment
    | NodeReport
    | YourRights
    | MoveOrdered
    | HomesPlanned
    | Surveyed
    | Height
    | FromArchive
    | FromOverlay
    | ToCausalClient
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
    | Create
    | Beat
    | SetLean
    | ClockBound
    | KeyRules
    | Turn
    | OpenTopics
    | HostTopic
    | Migrate
    | Relocate
    | Forget
    | Lapse
    | Reborn
)


_CLAIMS: dict[type, Callable[[Any], Address]] = {
    DemandView: attrgetter("node"),
    **SENDERS,
    **CLOCK_SENDERS,
    **dict.fromkeys(
        (Frame, Handled, PeerPing, PeerPong, LeanLanes, *get_args(OverlayMessage), *get_args(RegionMessage)),
        attrgetter("source"),
    ),
    **dict.fromkeys(
        (
            *(OpenTopics, Watch, AskDeployment, AskReport, Survey, Forget, Reminds, ClientAt, MoveTopic, PlanHomes),
            *get_args(ToArchive | ToCausalBroker),
        ),
        attrgetter("client"),
    ),
}


def claims(message: Any) -> Address | None:
    """Who a message says it is from; None for answers, which claim nothing."""
    claimed = _CLAIMS.get(type(message))
    return claimed(message) if claimed is not None else None
