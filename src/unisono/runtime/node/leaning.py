"""Leans that follow the demand: every stamper tells the root what it stamps and who listens to it, and the root says
which lanes should lean.

What the root knows is not kept: when it was restarted it hears within a period how everything is. Leans themselves are
durable at the stampers. The planner decides (`planning.leaning`); this carries views up and orders out.
"""

import asyncio
import logging
import time

from unisono.errors import PlanError
from unisono.model.deployment import Deployment
from unisono.model.homes import sequencers
from unisono.model.ids import Address, Topic
from unisono.model.settings import NodeSpec
from unisono.planning.demand import DemandView, LaneCounter
from unisono.planning.leaning import LeanOrders, LeanPlanner, LeansConfig
from unisono.planning.leans import can_plan
from unisono.protocols.clock.deployed import clock_config
from unisono.protocols.clock.messages import SetLean
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.driver.clock import Clock
from unisono.runtime.links import control
from unisono.runtime.links.links import Links
from unisono.runtime.node.clients import Clients
from unisono.runtime.node.lookout import Lookout
from unisono.runtime.node.ordering import ClockStampers
from unisono.runtime.node.sequencer import SequencerRole

logger = logging.getLogger(__name__)


class Leaning:
    """The part of one stamper in how lanes lean."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        role: SequencerRole,
        stampers: ClockStampers,
        clients: Clients,
        guard: Guard,
        lookout: Lookout,
        config: LeansConfig,
    ) -> None:
        self._spec, self._me, self._links, self._role = spec, Address(spec.name), links, role
        self._stampers, self._clients, self._guard, self._config = stampers, clients, guard, config
        self._lookout = lookout
        self._clock, self._counter = Clock(), LaneCounter(self._me, spec.region)
        self._is_auto = deployment.sequencing.leans_lanes
        nodes = sequencers(deployment)
        self._root = Address(deployment.root.name)
        guessed = {(a, b): round(span * 1000) for (a, b), span in _pairs(deployment)}
        regions = {node: deployment.node(node).region for node in nodes}
        works = self._is_auto and len(nodes) > 1 and self._me == self._root
        self._planner = LeanPlanner(regions, guessed, clock_config(deployment).beat_us, config) if works else None
        self._problem = None
        if self._planner is not None and not can_plan():
            self._problem = "planning leans needs scipy at the root: pip install 'unisono[plan]'; no lane leans"
            logger.warning(self._problem)
        self._waiting: list[DemandView] = []  # heard while a plan is made
        self._is_planning = False
        self._changed_at_us = self._changes = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._is_auto:
            self._timer = self._guard.later(self._config.period_us / 1e6, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, view: DemandView) -> None:
        """Of another stamper."""
        if self._planner is None:
            return
        if self._is_planning:
            self._waiting.append(view)
        else:
            self._planner.hear(view, self._clock.now())

    def told(self, message: control.LeanLanes) -> None:
        """By the root, and by nobody else."""
        if self._is_auto and message.source == self._root:
            self._lean(tuple((Topic(topic), lean) for topic, lean in message.leans))

    def _lean(self, leans: tuple[tuple[Topic, int], ...]) -> None:
        for topic, lean in leans:
            if self._role.host is not None:
                self._role.host.post(SetLean(topic, lean))

    def _look(self) -> None:
        machine = self._stampers.machine
        spans = self._clients.round_trips_us()
        own = spans.setdefault(self._spec.region, {})
        own |= {region: min(span, own.get(region, span)) for region, span in self._lookout.distances_us().items()}
        view = self._counter.look(machine.lanes(), machine.listening(), machine.leans(), spans)
        if self._planner is None:
            self._links.send(self._root, view)
        else:
            self.heard(view)
            self._plan()
        self._timer = self._guard.later(self._config.period_us / 1e6, self._look)

    def _plan(self) -> None:
        if self._planner is None or self._is_planning or self._problem is not None:
            return
        self._is_planning = True
        plan = asyncio.get_running_loop().run_in_executor(None, self._planner.plan, self._clock.now())
        plan.add_done_callback(lambda done: self._guard.call(self._planned, done))

    def _planned(self, done: "asyncio.Future[LeanOrders]") -> None:
        self._is_planning = False
        waiting, self._waiting = self._waiting, []
        for view in waiting:
            self.heard(view)
        if done.cancelled():
            return
        try:
            orders = done.result()
        except PlanError as error:
            logger.warning("no plan of leans: %s", error)
            return
        if orders and self._planner is not None and self._planner.expected_us is not None:
            before, after = (span / 1000 for span in self._planner.expected_us)
            lanes = sum(len(leans) for leans in orders.values())
            logger.info("%d lanes lean anew: events take %.1f ms on average, %.1f ms then", lanes, before, after)
            self._changed_at_us, self._changes = time.time_ns() // 1000, self._changes + 1
        for node, leans in orders.items():
            if node == self._me:
                self._lean(leans)
            else:
                self._links.send(node, control.LeanLanes(self._me, leans))

    def report(self) -> control.LeansReport | None:
        """Of the root."""
        if self._me != self._root:
            return None
        expected, possible = self._planner.expected_us or (None, None) if self._planner is not None else (None, None)
        how = "auto" if self._is_auto else "off"
        return control.LeansReport(how, expected, possible, self._changed_at_us, self._changes, self._problem)


def _pairs(deployment: Deployment) -> list[tuple[tuple[str, str], float]]:
    found = []
    for pair, span in deployment.round_trip_ms.items():
        one, other = pair.split()
        found.append(((one, other), span))
    return found
