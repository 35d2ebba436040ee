"""Who orders at a node: the topic managers of a tree, or a stamper of the clock order. What the role needs of either.

Both are durable machines inside `Sessions`, with `TopicNames` between them; all else that differs is said here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from unisono.machine import DurableMachine
from unisono.model.deployment import Deployment
from unisono.model.health import LaneSeen, StamperSeen
from unisono.model.homes import sequencers
from unisono.model.ids import Address, Topic
from unisono.model.journal import Kind
from unisono.model.time import Micros
from unisono.protocols.clock.arrangements import StamperArrangement
from unisono.protocols.clock.deployed import clock_config, keepers, stampers
from unisono.protocols.clock.messages import Create, Granted, KeyRules, LaneStamps, Stamped, number_of
from unisono.protocols.clock.stamper import UNNUMBERED, StamperMachine
from unisono.protocols.clock.stamper import repeats as stamper_repeats
from unisono.protocols.naming.topic_names import TopicMessages
from unisono.protocols.sequencer.arrangements import NodeArrangement
from unisono.protocols.sequencer.deployed import sequencer_config
from unisono.protocols.sequencer.messages import (
    Born,
    BrokerMessage,
    Creates,
    Move,
    NotYours,
    Pieces,
    Recalled,
    Stamps,
    Unfinished,
    Void,
    Yours,
    repeats,
)
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.driver.data_directory import Rule
from unisono.runtime.links import control
from unisono.structures.sessions import Sessions
from unisono.turns import Arrangement

Asked = tuple[Topic, Address, int, int]
"""A topic, who publishes on it, his first request there, and how many."""
Numbered = tuple[Kind, str, int, int]
"""What became of a number: the kind of record, the publisher, his request, the number."""


TREE_TOPICS = TopicMessages(
    about=frozenset((Born, Move, Recalled, Yours, NotYours)),
    moves=frozenset((Move,)),
    forgotten=frozenset((Unfinished,)),
)
CLOCK_TOPICS = TopicMessages(about=frozenset((Granted,)))

TREE_LOG = "sequencer 7"
CLOCK_LOG = "clock 4"
"""Names and versions of what logs replay into; they change whenever old inputs would lead to another state."""


class NodeOrdering(Protocol):
    """What orders at one node."""

    @property
    def log_name(self) -> str:
        """What its log replays into."""
        ...

    @property
    def machine(self) -> DurableMachine: ...

    @property
    def topic_messages(self) -> TopicMessages: ...

    @property
    def arrangement(self) -> Arrangement: ...

    @property
    def parent(self) -> Address | None: ...

    def sessions(self, inside: DurableMachine) -> Sessions: ...

    @property
    def rules(self) -> Any:
        """What the machine is told as it starts, if what it decides depends on the file."""
        ...

    def clients(self) -> list[Address]:
        """Everybody whom the machine remembers."""
        ...

    def asked(self, message: Any) -> list[Asked] | None:
        """What a publisher asks for; None: the message is no such question."""
        ...

    def numbered(self, message: Any) -> Iterable[Numbered]:
        """What a broadcast says of numbers."""
        ...

    def reading(self, now: Micros) -> int | None:
        """What its clock shows, if its order is made of clocks."""
        ...

    def report(self, now: Micros, names: Mapping[Topic, str]) -> StamperSeen | None:
        """Of a stamper, for `status`."""
        ...

    def seen(self, topic: Topic) -> tuple[int, int, int, int, tuple[Topic, ...]] | None:
        """Of a topic at home here: its last number, what is under way, subscribers, itself, those ordered with it."""
        ...


class TopicManagers:
    """The node's part of the sequencing tree."""

    log_name = TREE_LOG
    topic_messages = TREE_TOPICS
    rules = None

    def __init__(self, deployment: Deployment, me: Address, parent: Address | None) -> None:
        self.me, self.parent = me, parent
        self._children = tuple(Address(child) for child in deployment.children(me))
        self.machine = TopicManager(me, parent, self._children, (), {}, sequencer_config(deployment))
        self.arrangement = NodeArrangement(self.machine)

    def sessions(self, inside: DurableMachine) -> Sessions:
        peers = (*((self.parent,) if self.parent is not None else ()), *self._children)
        return Sessions(inside, self.me, peers, control.NodeMessage, BrokerMessage, repeats=repeats)

    def clients(self) -> list[Address]:
        return self.machine.clients()

    def asked(self, message: Any) -> list[Asked] | None:
        if type(message) is not Creates:
            return None
        return [(item.topic, message.publisher, item.first, item.count) for item in message.items]

    def numbered(self, message: Any) -> Iterable[Numbered]:
        match message:
            case Stamps(runs=runs):
                pass
            case Pieces(pieces=pieces):
                runs = tuple(piece.run for piece in pieces if piece.missing is not None)
            case Void(first=first, count=count):
                for number in range(first, first + count):
                    yield "void", "", 0, number
                return
            case _:
                return
        for run in runs:
            for i in range(run.count):
                yield "timestamp", run.publisher, run.request + i, run.first + i

    def reading(self, now: Micros) -> int | None:
        return None

    def report(self, now: Micros, names: Mapping[Topic, str]) -> StamperSeen | None:
        return None

    def seen(self, topic: Topic) -> tuple[int, int, int, int, tuple[Topic, ...]] | None:
        home = self.machine.hosted.get(topic)
        if home is None:
            return None
        counts = (self.machine.clock[home.topic], len(home.open), home.group.subscribers)
        return (*counts, home.topic, tuple(home.group.members))


class ClockStampers:
    """The node's stamper. Names of topics climb the tree of nodes; beats and lanes go between all of them."""

    log_name = CLOCK_LOG
    topic_messages = CLOCK_TOPICS

    def __init__(self, deployment: Deployment, me: Address, parent: Address | None) -> None:
        self.me, self.parent = me, parent
        self._all = stampers(deployment)
        number = self._all.index(me)
        config = clock_config(deployment)
        self.rules = KeyRules(config.causal, config.tolerance_us)
        self.machine = StamperMachine(number, self._all, keepers(deployment), config=config)
        self.arrangement = StamperArrangement()

    def sessions(self, inside: DurableMachine) -> Sessions:
        peers = tuple(address for address in self._all if address != self.me)
        return Sessions(
            inside,
            self.me,
            peers,
            control.NodeMessage,
            LaneStamps,
            repeats=stamper_repeats,
            unnumbered=UNNUMBERED,
        )

    def clients(self) -> list[Address]:
        return self.machine.clients()

    def asked(self, message: Any) -> list[Asked] | None:
        if type(message) is not Create:
            return None
        asked, request = [], message.first
        for topic, count in message.runs:
            asked.append((topic, message.client, request, count))
            request += count
        return asked

    def numbered(self, message: Any) -> Iterable[Numbered]:
        if not isinstance(message, LaneStamps):
            return
        for entry in message.entries:
            if isinstance(entry, Stamped):
                for i in range(entry.count):
                    number = number_of(entry.stamp + i, message.lane.stamper)
                    yield "timestamp", entry.publisher, entry.request + i, number

    def reading(self, now: Micros) -> int | None:
        return self.machine.reading(now)

    def report(self, now: Micros, names: Mapping[Topic, str]) -> StamperSeen | None:
        look = self.machine.look(now)
        lanes = tuple(
            LaneSeen(names.get(topic, str(topic)), self._all[keeper], epoch, last, watermark - look.reading, lean)
            for topic, keeper, epoch, last, watermark, lean in look.lanes
        )
        heard = {str(self._all[stamper]): clock - look.reading for stamper, clock in look.heard.items()}
        error = look.error if look.error >= 0 else None
        ahead, told = look.clock - look.reading, {"beats": look.beats, "ticks": look.ticks}
        return StamperSeen(look.term, look.is_warm, ahead, error, look.waiting, heard, lanes, **told)

    def seen(self, topic: Topic) -> tuple[int, int, int, int, tuple[Topic, ...]] | None:
        found = self.machine.seen(topic)
        return (*found, 0, topic, ()) if found is not None else None


def node_ordering(deployment: Deployment, me: Address, parent: Address | None) -> NodeOrdering:
    by_clock = deployment.sequencing.by == "clock"
    return ClockStampers(deployment, me, parent) if by_clock else TopicManagers(deployment, me, parent)


def rules_of_log(deployment: Deployment, me: Address) -> dict[str, Rule]:
    """The settings by which the log of a node that orders was decided: under others it would be replayed into another
    state than the one that others have heard of. By clock a stamper's number, and so a part of every key, is its place
    in the file."""
    spec, how = deployment.node(me), deployment.sequencing
    if "sequencer" not in spec.roles:
        return {}
    parent: dict[str, Rule] = {"parent": spec.parent}
    if how.by == "clock":
        return parent | {"the sequencers of the file, which new ones follow,": stampers(deployment)}
    return parent | {f"sequencing.{name}": getattr(how, name) for name in ("order", "early", "encoding")}


def neighbours(deployment: Deployment, me: str) -> tuple[str, ...]:
    """The nodes that it has a link with: its parent and children, by clock all that stamp, and in a causal mesh all
    brokers: their datagrams tell nobody who is away."""
    if deployment.kind == "causal":
        return tuple(node.name for node in deployment.nodes if node.name != me and "causal" in node.roles)
    spec = deployment.node(me)
    tree = (*((spec.parent,) if spec.parent is not None else ()), *deployment.children(me))
    if deployment.sequencing.by != "clock":
        return tree
    return (*tree, *(node for node in sequencers(deployment) if node != me and node not in tree))


def dials(deployment: Deployment, me: str) -> list[str]:
    """Those of its neighbours that it connects to; the others connect to it."""
    names = [node.name for node in deployment.nodes]
    children = deployment.children(me)
    parent = deployment.node(me).parent
    return [
        name
        for name in neighbours(deployment, me)
        if name == parent or (name not in children and names.index(name) < names.index(me))
    ]
