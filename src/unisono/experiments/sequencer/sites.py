"""Sites, distances and crowds of the wide-area experiments.

A client reaches the broker of its own site in `access_us`, sites reach each other in the time of the table, and the
sequencer nodes stand beside the brokers. So the direct path of an event is access, distance, access, and an event whose
order is decided on that path costs nothing extra. Publishers and subscribers are hosts of their own.
"""

from collections.abc import Sequence
from functools import cache
from random import Random

from msgspec import Struct

from unisono.model.ids import Topic
from unisono.model.region import LatencyTable, public_cloud
from unisono.model.time import MILLISECOND
from unisono.planning.placement import Demand, Interest
from unisono.sim.ens import EnsSpec
from unisono.sim.links import ByRegion, LinkSpec
from unisono.sim.spec import Span
from unisono.sim.workloads import PopularityLaw
from unisono.sim.world import World

ONE_PER_CONTINENT = ("us-east-1", "eu-west-1", "ap-northeast-1", "ap-southeast-2", "sa-east-1")


class Sites(Struct, frozen=True):
    """Where people are, and how far that is."""

    table: LatencyTable
    access_us: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.table.regions

    @property
    def hub(self) -> int:
        """The 1-median: the site nearest to all."""
        return min(range(len(self.names)), key=lambda site: sum(self.table.one_way_us[site]))

    def world(self, seed: int, jitter: float = 0.0) -> World:
        """A world with three regions per site: its servers, its publishers `/pub` and its subscribers `/sub`."""
        one_way, access = self.table.one_way_us, self.access_us
        roles = (("", 0), ("/pub", access), ("/sub", access))
        hosts = [(site, suffix, reach) for site in range(len(self.names)) for suffix, reach in roles]
        latencies = LatencyTable(
            tuple(self.names[site] + suffix for site, suffix, _ in hosts),
            tuple(
                tuple(0 if (a, s) == (b, t) else one_way[a][b] + to_a + to_b for b, t, to_b in hosts)
                for a, s, to_a in hosts
            ),
        )
        by_region = ByRegion(Span(1), jitter)
        return World(
            seed, links=LinkSpec(latency=by_region), latencies=latencies, ens=EnsSpec("direct", latency=by_region)
        )

    def path_us(self, a: int, b: int) -> int:
        """The direct path from a publisher at a to a subscriber at b."""
        return 2 * self.access_us + self.table.one_way_us[a][b]


@cache
def find_sites(name: str) -> Sites:
    """A: the paper's five sites, 10 ms to one's own and 100 ms between them. B5, B10: public cloud regions."""
    if name == "A":
        far = 100 * MILLISECOND
        names = tuple(f"site-{i + 1}" for i in range(5))
        return Sites(LatencyTable(names, tuple(tuple(far * (a != b) for b in range(5)) for a in range(5))), 10_000)
    table = public_cloud()
    return Sites(table.among(ONE_PER_CONTINENT) if name == "B5" else table, 500)


class CrowdSubscriber(Struct, frozen=True):
    """A client that listens."""

    name: str
    site: int
    topics: tuple[int, ...]


class Publication(Struct, frozen=True):
    """An event to come."""

    at_us: int
    site: int
    topic: int


class Crowd(Struct, frozen=True):
    """Who listens to what where, and what is published where and when. Topic t belongs to site `t // per_site`."""

    topics: int
    per_site: int
    subscribers: tuple[CrowdSubscriber, ...]
    publications: tuple[Publication, ...]

    def site_of(self, topic: int) -> int:
        return topic // self.per_site

    def is_of_one_site(self, subscriber: CrowdSubscriber) -> bool:
        return all(self.site_of(topic) == subscriber.site for topic in subscriber.topics)

    @property
    def end_us(self) -> int:
        return self.publications[-1].at_us

    def demand(self, names: Sequence[str]) -> Demand:
        """The same for the planner."""
        rates: dict[str, dict[str, float]] = {}
        for publication in self.publications:
            of_topic = rates.setdefault(str(publication.topic), {})
            of_topic[names[publication.site]] = of_topic.get(names[publication.site], 0) + 1
        interests = tuple(Interest(names[s.site], tuple(str(t) for t in s.topics)) for s in self.subscribers)
        return Demand(interests, rates)

    def groups(self) -> dict[Topic, tuple[Topic, ...]]:
        """What each topic is ordered against: the topics that two subscribers have together with it."""
        shared: dict[tuple[int, int], int] = {}
        for subscriber in self.subscribers:
            for a in subscriber.topics:
                for b in subscriber.topics:
                    shared[a, b] = shared.get((a, b), 0) + 1
        topics = range(self.topics)
        return {Topic(a): tuple(Topic(b) for b in topics if a != b and shared.get((a, b), 0) >= 2) for a in topics}


class Habits(Struct, frozen=True):
    """How a crowd is drawn. The share `remote` of subscriptions and of publications is for topics of other sites."""

    remote: float
    shape: float
    subscribers: int = 20
    """Per site."""
    topics: int = 10
    """Per site."""
    per_client: int = 5
    events: int = 2_000
    rate_per_s: float = 1_000.0
    begin_us: int = 3_000_000


def draw_crowd(sites: int, habits: Habits, seed: int) -> Crowd:
    """Topics of a site are chosen by a power law, sites by lot; every site has equally many people."""
    dice, popularity = (
        Random(f"{seed}/{habits.remote}/{habits.shape}/{sites}"),
        PopularityLaw(habits.topics, habits.shape),
    )

    def look(site: int) -> int:
        """The site whose topics are chosen from."""
        return (site + dice.randrange(1, sites)) % sites if dice.random() < habits.remote else site

    def draw(site: int) -> int:
        return site * habits.topics + popularity.draw(dice)

    subscribers = []
    for i in range(habits.subscribers * sites):
        own: dict[int, None] = {}
        for there in [look(i % sites) for _ in range(min(habits.per_client, habits.topics))]:
            while (topic := draw(there)) in own:
                continue
            own[topic] = None
        subscribers.append(CrowdSubscriber(f"c{i}", i % sites, tuple(own)))
    publications, at = [], float(habits.begin_us)
    for i in range(habits.events):
        at += dice.expovariate(habits.rate_per_s / 1_000_000)
        publications.append(Publication(round(at), i % sites, draw(look(i % sites))))
    return Crowd(habits.topics * sites, habits.topics, tuple(subscribers), tuple(publications))
