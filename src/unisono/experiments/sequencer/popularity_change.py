"""A topic becomes popular somewhere else, all at once: what latency does before, then, and when its home has followed.

Five public cloud regions on a star; everybody hears the three topics of their own site. One of them, busier than the
rest, loses its audience and its publishers in one region and finds others in the farthest one: there, the events of the
region's own topics now wait for a climb too, since they must be ordered against the newcomer. Every period a ranking
looks at what was asked for in the last one and moves homes, one link at a time, while events go on.
"""

from random import Random
from statistics import fmean
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow, contradiction
from unisono.experiments.sequencer.schemes import TOTAL, Stage, build_sequencer, star
from unisono.experiments.sequencer.sites import Crowd, CrowdSubscriber, Publication, Sites, find_sites
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.ranking import ClimbCost, DeploymentView, Popularity, Ranking
from unisono.sim.world import World

TOPICS = 3
"""Of each site; the first one of `FROM` is the one that moves."""
FROM, TO = "ap-northeast-1", "sa-east-1"
RANKINGS: dict[str, Ranking | None] = {
    "none": None,
    "popularity (thesis)": Popularity(),
    "climb cost": ClimbCost(worth_us=1_000.0),
}


class PopularityChangeOptions(Struct, frozen=True):
    """When it happens, and how closely it is watched."""

    seconds: Annotated[int, Meta(ge=1, description="how long events are published")] = 12
    change: Annotated[int, Meta(ge=0, description="the second in which the audience changes")] = 4
    period_ms: Annotated[int, Meta(ge=1, description="how often a ranking looks")] = 500
    subscribers: Annotated[int, Meta(ge=1, description="subscribers at each site")] = 4
    rate: Annotated[float, Meta(gt=0, description="publications per second, of all sites together")] = 200.0
    seed: Annotated[int, Meta(description="seed of the publications")] = 0

    def __post_init__(self) -> None:
        if self.change >= self.seconds:
            raise contradiction(self, "it is over before anything changes", "change", "seconds")
        if self.period_ms > self.seconds * 1000:
            raise contradiction(self, "it is over before a ranking can have seen anything", "period_ms", "seconds")


def run(options: PopularityChangeOptions) -> list[ResultRow]:
    return [row for name in RANKINGS for row in _rows(options, name)]


def _rows(options: PopularityChangeOptions, name: str) -> list[ResultRow]:
    sites = find_sites("B5")
    world = play(options, RANKINGS[name])
    site_of = {f"p-{site}": i for i, site in enumerate(sites.names)}
    site_of |= {s.name: s.site for s in _crowd(options, sites).subscribers}
    taken: dict[int, list[tuple[int, int]]] = {}
    for r in world.records:
        if r.kind == "deliver" and r.published_us and r.delivered_us and r.publisher and r.subscriber:
            direct = sites.path_us(site_of[r.publisher], site_of[r.subscriber])
            second = r.published_us // SECOND - BEGIN_S
            taken.setdefault(second, []).append((r.delivered_us - r.published_us, direct))
    moves = [r.at_us // SECOND - BEGIN_S for r in world.records if r.kind == "move"]
    return [
        ResultRow(
            {"ranking": name, "second": second},
            {
                "mean_ms": round(fmean(us for us, _ in found) / 1000, 2),
                "longest_ms": round(max(us for us, _ in found) / 1000, 1),
                "ratio": round(sum(us for us, _ in found) / sum(direct for _, direct in found), 2),
                "moves": moves.count(second),
            },
        )
        for second, found in sorted(taken.items())
    ]


BEGIN_S = 2
"""Subscriptions are in force by then."""


def _crowd(options: PopularityChangeOptions, sites: Sites) -> Crowd:
    dice, count = Random(f"{options.seed}/change"), len(sites.names)
    hot, here, there = _hot(sites), sites.names.index(FROM), sites.names.index(TO)
    subscribers = tuple(
        CrowdSubscriber(f"c{i}", i % count, tuple(range(i % count * TOPICS, (i % count + 1) * TOPICS)))
        for i in range(count * options.subscribers)
    )
    publications: list[Publication] = []
    at, change = float(BEGIN_S * SECOND), (BEGIN_S + options.change) * SECOND
    while True:
        at += dice.expovariate(options.rate / SECOND)
        if at >= (BEGIN_S + options.seconds) * SECOND:
            break
        site = len(publications) % count
        if site == (here if at < change else there) and dice.random() < 0.5:
            topic = hot
        else:
            topic = site * TOPICS + dice.randrange(TOPICS)
            if topic == hot:
                topic += 1
        publications.append(Publication(round(at), site, topic))
    if not publications:
        raise contradiction(options, "nothing is published", "rate", "seconds")
    return Crowd(count * TOPICS, TOPICS, subscribers, tuple(publications))


def _hot(sites: Sites) -> int:
    return sites.names.index(FROM) * TOPICS


def play(options: PopularityChangeOptions, ranking: Ranking | None) -> World:
    """The crowd's life under this ranking; `move` records say when a home moved where."""
    sites = find_sites("B5")
    crowd = _crowd(options, sites)
    stage = Stage(sites.world(options.seed), sites, crowd)
    parents = star(stage.nodes, sites.hub)
    build_sequencer(stage, parents, dict(stage.own_homes), TOTAL)
    stage.start()
    world, hot = stage.world, f"t{_hot(sites)}"
    for client in crowd.subscribers:
        host = world.host(client.name)
        if sites.names[client.site] == TO:
            world.at((BEGIN_S + options.change) * SECOND, host.subscribe, hot)
        elif sites.names[client.site] == FROM:
            world.at((BEGIN_S + options.change) * SECOND, host.unsubscribe, hot)
    if ranking is not None:
        Mover(stage, parents, ranking, options.period_ms * 1000).start()
    world.run(until=crowd.end_us + 60 * SECOND)
    world.note("end")
    return world


class Mover:
    """Looks at the nodes every period and plays what the ranking names."""

    def __init__(self, stage: Stage, parents: dict[Address, Address | None], ranking: Ranking, period_us: int) -> None:
        self._stage = stage
        self._parents = parents
        self._ranking = ranking
        self._period_us = period_us
        self._issued: dict[Topic, int] = {}
        names = stage.sites.table.regions
        self._up_us = {
            name: stage.sites.table.between(names[site], names[stage.sites.hub])
            for site, name in enumerate(stage.nodes)
        }

    def start(self) -> None:
        self._stage.world.at(self._stage.crowd.publications[0].at_us, self._look)

    def _look(self) -> None:
        world = self._stage.world
        view = self._view()
        # Between two homes a topic is nobody's, and then there is nothing sound to say about the deployment.
        if len(view.homes) == len(self._stage.topics):
            for move in self._ranking(view):
                world.note("move", move.at, topic=world.topic_name(move.topic), peer=move.to)
                world.host(move.at).tell(Migrate(move.topic, move.to))
        if world.now < self._stage.crowd.end_us:
            world.after(self._period_us, self._look)

    def _view(self) -> DeploymentView:
        homes: dict[Topic, Address] = {}
        issued: dict[Topic, int] = {}
        groups: dict[Topic, tuple[Topic, ...]] = {}
        for name in self._stage.nodes:
            sessions: Any = self._stage.world.host(name).machine
            node: TopicManager = sessions.inside
            for topic, hosted in node.hosted.items():
                homes[topic] = name
                issued[topic] = node.clock[topic] - self._issued.get(topic, 0)
                self._issued[topic] = node.clock[topic]
                groups[topic] = tuple(hosted.group.members)
        up_us = {name: Micros(us) for name, us in self._up_us.items()}
        return DeploymentView(self._parents, homes, issued, groups, up_us, self._asked())

    def _asked(self) -> dict[Topic, dict[Address, int]]:
        """Requests of the last period, by the node nearest to their publishers."""
        now = self._stage.world.now
        asked: dict[Topic, dict[Address, int]] = {}
        for p in self._stage.crowd.publications:
            if now - self._period_us < p.at_us <= now:
                at, node = asked.setdefault(self._stage.topics[p.topic], {}), self._stage.nodes[p.site]
                at[node] = at.get(node, 0) + 1
        return asked


EXPERIMENT = Experiment(
    title="A sudden change of popularity: latency before, during and after the home follows",
    source="thesis, chapter 3 (dynamic ranking of topics)",
    options=PopularityChangeOptions,
    run=run,
    figure=Figure("second", "ratio", "ranking", log_y=True),
)
