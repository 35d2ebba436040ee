"""Homes that move by themselves: every node tells the root what it is asked for, and the root moves what should move.

Nothing here is kept: a root that was restarted hears within a period how everything is, and waits for two of them
before it moves anything. The planner decides (`planning.homes`); this carries views up and orders down.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.homes import sequencers
from unisono.model.ids import Address, Topic
from unisono.model.journal import Record
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros
from unisono.planning.demand import DemandCounter, DemandView
from unisono.planning.homes import BetterRoot, HomePlanner, HomesConfig, ProposedMove
from unisono.protocols.sequencer.messages import Relocate
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.driver.clock import Clock
from unisono.runtime.links import control
from unisono.runtime.links.links import Links
from unisono.runtime.node.clients import Clients
from unisono.runtime.node.leaning import Leaning
from unisono.runtime.node.lookout import Lookout
from unisono.runtime.node.ordering import ClockStampers, TopicManagers
from unisono.runtime.node.sequencer import SequencerRole

logger = logging.getLogger(__name__)

KEPT_MAX = 20
"""Moves that `status` shows."""


class Placing:
    """The part of one node in where homes are."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        role: SequencerRole,
        clients: Clients,
        guard: Guard,
        note: Callable[[Record], None],
        lookout: Lookout,
        config: HomesConfig,
    ) -> None:
        self._deployment, self._spec, self._me = deployment, spec, Address(spec.name)
        self._links, self._role, self._clients, self._guard, self._note = links, role, clients, guard, note
        self._lookout, self._config, self._clock = lookout, config, Clock()
        self._counter = DemandCounter(self._me)
        nodes = {node: deployment.node(node) for node in sequencers(deployment)}
        parents = {node: Address(nodes[node].parent or "") or None for node in nodes}
        regions = {node: each.region for node, each in nodes.items()}
        guessed = {_pair(pair): round(span * 1000) for pair, span in deployment.round_trip_ms.items()}
        self._managers = role.ordering if isinstance(role.ordering, TopicManagers) else None
        self._leaning: Leaning | None = None
        if isinstance(role.ordering, ClockStampers):
            self._leaning = Leaning(deployment, spec, links, role, role.ordering, clients, guard, lookout, config.leans)
        able = (
            self._managers is not None and len(nodes) > 1 and all(up is None or up in nodes for up in parents.values())
        )
        self._planner = HomePlanner(parents, regions, guessed, config) if able and spec.parent is None else None
        self._is_auto = deployment.sequencing.placement == "auto"
        self._works = able
        self._waiting: list[DemandView] = []  # heard while a plan is made
        self._is_planning = False
        self._moves: deque[control.MovedHome] = deque(maxlen=KEPT_MAX)
        self.moves = 0
        """Homes that were ordered to move, since the start."""
        self._root: BetterRoot | None = None
        self._periods = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._leaning is not None:
            self._leaning.start()
        if self._works:
            self._timer = self._guard.later(self._config.period_us / 1e6, self._look)

    def stop(self) -> None:
        if self._leaning is not None:
            self._leaning.stop()
        if self._timer is not None:
            self._timer.cancel()

    def post(self, message: control.AboutHomes) -> None:
        """What clients and other nodes say about where things are."""
        match message:
            case DemandView() if self._leaning is not None:
                self._leaning.heard(message)
            case DemandView():
                self.heard(message)
            case control.LeanLanes():
                if self._leaning is not None:
                    self._leaning.told(message)
            case control.ClientAt(region=region, round_trips_us=spans):
                regions = dict.fromkeys(node.region for node in self._deployment.nodes)
                if region in regions and all(other in regions for other in spans):
                    self._clients.is_at(message)
            case control.MoveTopic(client=client):
                self._charge(client)
                self._links.send(client, self.ordered(message))
            case control.PlanHomes(client=client):
                self._charge(client)
                self._links.send(client, self.planned(message))

    def _charge(self, client: Address) -> None:
        """A plan goes through as many topics as a list of them does."""
        self._links.charge(client, 1 + self._config.topics_max)

    # views, on their way up

    def heard(self, view: DemandView) -> None:
        """Of a node below."""
        if self._planner is None:
            if self._spec.parent is not None:
                self._links.send(Address(self._spec.parent), view)
        elif self._is_planning:
            self._waiting.append(view)
        else:
            self._planner.hear(view, self._clock.now())

    def _look(self) -> None:
        assert self._managers is not None
        spans = self._clients.round_trips_us()
        if near := self._lookout.distances_us():
            own = spans.setdefault(self._spec.region, {})
            own |= {region: min(span, own.get(region, span)) for region, span in near.items()}
        self.heard(self._counter.look(self._managers.machine.hosted, self._clients.region_of, spans))
        if self._planner is not None and not self._is_planning:
            self._periods += 1
            looks = self._periods % self._config.root_periods == 0
            if self._is_auto or looks:
                self._is_planning = True
                planning = asyncio.get_running_loop().run_in_executor(
                    None, self._plan, self._planner, self._clock.now(), self._pinned(), looks
                )
                planning.add_done_callback(lambda done: self._guard.call(self._planned, done))
        self._timer = self._guard.later(self._config.period_us / 1e6, self._look)

    def _plan(self, planner: HomePlanner, now: Micros, pinned: frozenset[Topic], looks: bool) -> list[ProposedMove]:
        """In a thread: nothing else touches the planner meanwhile."""
        moves = planner.plan(now, pinned=pinned) if self._is_auto else []
        if looks:
            self._root = planner.better_root(now, pinned if self._is_auto else frozenset(planner.where()))
        return moves

    def _planned(self, done: "asyncio.Future[list[ProposedMove]]") -> None:
        self._is_planning = False
        waiting, self._waiting = self._waiting, []
        for view in waiting:
            self.heard(view)
        if not done.cancelled():
            for move in done.result():
                self._order(move)

    def _pinned(self) -> frozenset[Topic]:
        """Topics whose home is in the file stay there."""
        named = [topic.name for topic in self._deployment.topics if topic.home is not None]
        numbers = [self._role.topic_names.number_of(name) for name in named]
        return frozenset(number for number in numbers if number is not None)

    # orders, on their way down

    def _order(self, move: ProposedMove) -> None:
        host = self._role.host
        name = self._role.topic_names.names.get(move.topic)
        if host is None or name is None:
            return
        host.post(Relocate(move.topic, move.path))
        logger.info("moving %s from %s to %s: %s", name, move.at, move.to, move.reason)
        self._note(Record("move", self._clock.now(), self._me, topic=name, peer=move.to, note=move.reason))
        self.moves += 1
        self._moves.append(control.MovedHome(name, move.at, move.to, move.reason, time.time_ns() // 1000))

    def ordered(self, message: control.MoveTopic) -> control.MoveOrdered:
        """A person wants a topic to be at home elsewhere."""
        try:
            move = self._as_asked(message.topic, message.to)
        except MisuseError as error:
            return control.MoveOrdered(message.topic, message.to, None, str(error))
        if move.path:
            self._order(move)
        return control.MoveOrdered(message.topic, message.to, move.at)

    def _as_asked(self, name: str, to: str) -> ProposedMove:
        if self._managers is None:
            raise MisuseError("by clock topics stay with the node that keeps them: only their events have other ways")
        if self._planner is None:
            root = self._deployment.root.name
            why = f"ask the root, {root}" if self._spec.parent is not None else "there is one sequencer node alone"
            raise MisuseError(f"{self._me} moves no homes: {why}")
        topic, where = self._role.topic_names.number_of(name), self._planner.where()
        if topic is None:
            raise MisuseError(f"there is no topic {name!r}")
        if to not in sequencers(self._deployment):
            raise MisuseError(f"{to!r} is no sequencer node: there are {', '.join(sequencers(self._deployment))}")
        if topic not in where:
            span = f"{self._config.period_us / 1e6:g}"
            raise MisuseError(f"no node has said that {name!r} is at home there: ask again in {span} s")
        return self._planner.as_asked(topic, where[topic], Address(to), self._clock.now())

    def planned(self, message: control.PlanHomes) -> control.HomesPlanned:
        """What would be best by what was asked for lately; with `apply` it is done."""
        if self._planner is None or self._is_planning:
            return control.HomesPlanned((), None, None)
        moves = self._planner.plan(self._clock.now(), at_once=True, pinned=self._pinned(), keep=message.apply)
        names = self._role.topic_names.names
        told = tuple(control.MovedHome(names[move.topic], move.at, move.to, move.reason) for move in moves)
        if message.apply:
            for move in moves:
                self._order(move)
        return control.HomesPlanned(told, *(self._planner.expected_us or (None, None)))

    def leans(self) -> control.LeansReport | None:
        """Of the root, by clock."""
        return self._leaning.report() if self._leaning is not None else None

    def report(self) -> control.HomesReport | None:
        """Of the root."""
        if self._planner is None:
            return None
        expected, possible = self._planner.expected_us or (None, None)
        placement, unknown = self._deployment.sequencing.placement, tuple(self._planner.pairs_unknown())
        return control.HomesReport(placement, expected, possible, tuple(self._moves), self._root, unknown)


def _pair(text: str) -> tuple[str, str]:
    one, other = text.split()
    return one, other
