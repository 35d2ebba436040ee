"""Who subscribes to what, who publishes when: the populations of the papers' evaluations.

*Popularity.* The papers' "power law with shape a" over n topics is pmf(i) proportional to i^-(1+a): with 10 000
clients of 10 distinct topics out of 1000 it gives the published mean sequencing-group sizes (46 for a = 0.349, 17 for
a = 0.901; paper 000, section 5.1). `last` publishes on the last topic only, the thesis' worst case (section 3.5.1);
`all` subscribes everybody to everything.
"""

from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Literal

from msgspec import field

from unisono.errors import MisuseError
from unisono.model.event import Scalar
from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost
    from unisono.sim.world import World


class WorkloadSpec(Spec, frozen=True):
    """Random subscriptions and publications."""

    clients: int = 4
    publishers: int = 0
    """Hosts that only publish; with 0 the clients do."""
    topics: int = 0
    """How many; the deployment's first, then t0, t1, …; with 0 the deployment's alone."""
    topics_per_client: int = 2
    interest: Literal["uniform", "power-law", "all"] = "uniform"
    publications: Literal["uniform", "power-law", "last"] = "uniform"
    shape: float = 0.901
    arrivals: Literal["poisson", "fixed"] = "poisson"
    rate_per_s: float = 100.0
    """Publications of all publishers together."""
    churn_per_s: float = 0.0
    """Changes of subscription of all clients together: half join a topic, half leave one."""
    begin: Span = Span(2_000_000)
    """Publications and churn begin; subscriptions are made in the first half of this."""
    duration: Span = Span(1_000_000)
    payload_bytes: int = 0
    deadlines: tuple[Span, ...] = ()
    """Each event has one of these for a deadline of its own; 0: none of its own."""
    attributes: dict[str, int] = field(default_factory=dict)
    """What events carry for filters to look at: per attribute a random whole number below this one."""


class PopularityLaw:
    """Draws topics 0 .. n-1 by a power law, the most popular first; shape -1 is uniform."""

    def __init__(self, n: int, shape: float) -> None:
        if n < 1:
            raise MisuseError("a workload needs at least one topic")
        self._cumulative = list(accumulate((i + 1) ** -(1.0 + shape) for i in range(n)))

    def draw(self, dice: Random) -> int:
        return bisect_right(self._cumulative, dice.random() * self._cumulative[-1])

    def draw_distinct(self, dice: Random, count: int) -> list[int]:
        """Draws until `count` different topics came up, in the order they did; all of them if there are no more."""
        count = min(count, len(self._cumulative))
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[self.draw(dice)] = None
        return list(drawn)


class Workload:
    """Lets a spec happen in a world."""

    def __init__(
        self,
        world: "World",
        spec: WorkloadSpec,
        clients: list["SimulatedHost"],
        publishers: list["SimulatedHost"],
        topics: list[str],
    ) -> None:
        self._world = world
        self._spec = spec
        self._clients = clients
        self._publishers = publishers
        self._topics = topics
        self._dice = world.dice("workload")
        uniform = PopularityLaw(len(topics), -1.0)
        power = PopularityLaw(len(topics), spec.shape)
        self._interest = power if spec.interest == "power-law" else uniform
        self._publications = power if spec.publications == "power-law" else uniform
        self._end = spec.begin + spec.duration
        self._payload = bytes(spec.payload_bytes)

    def schedule(self) -> None:
        """Subscriptions now, publications and churn from `begin` on."""
        world, spec, dice = self._world, self._spec, self._dice
        per_client = len(self._topics) if spec.interest == "all" else spec.topics_per_client
        for client in self._clients:
            chosen = self._interest.draw_distinct(dice, per_client)
            if chosen:
                world.at(dice.randint(0, spec.begin // 2), client.subscribe, *(self._topics[i] for i in chosen))
        if self._publishers and spec.rate_per_s > 0:
            world.at(spec.begin + self._gap(spec.rate_per_s), self._publish)
        if self._clients and spec.churn_per_s > 0:
            world.at(spec.begin + self._gap(spec.churn_per_s), self._churn)

    def _gap(self, rate_per_s: float) -> int:
        if self._spec.arrivals == "fixed":
            return max(1, round(1_000_000 / rate_per_s))
        return max(1, round(self._dice.expovariate(rate_per_s / 1_000_000)))

    def _publish(self) -> None:
        if self._world.now > self._end:
            return
        last = self._spec.publications == "last"
        topic = self._topics[-1 if last else self._publications.draw(self._dice)]
        attributes: dict[str, Scalar] = {n: self._dice.randrange(count) for n, count in self._spec.attributes.items()}
        publisher = self._dice.choice(self._publishers)
        deadline = int(self._dice.choice(self._spec.deadlines)) if self._spec.deadlines else 0
        publisher.publish(topic, self._payload, attributes, deadline)
        self._world.after(self._gap(self._spec.rate_per_s), self._publish)

    def _churn(self) -> None:
        if self._world.now > self._end:
            return
        client = self._dice.choice(self._clients)
        subscribed = [self._world.topic_name(topic) for topic in client.subscribed]
        names = [name for name in subscribed if name in self._topics]  # not the cells of a grid
        if names and self._dice.random() < 0.5:
            client.unsubscribe(self._dice.choice(names))
        else:
            wanted = self._topics[self._interest.draw(self._dice)]
            if wanted not in names:
                client.subscribe(wanted)
        self._world.after(self._gap(self._spec.churn_per_s), self._churn)
