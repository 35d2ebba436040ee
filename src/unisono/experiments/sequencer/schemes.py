"""The ways to order that the wide-area experiments compare, each set up for the same crowd in the same world."""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from unisono.experiments.baselines.chain import ChainClient, ChainSite
from unisono.experiments.baselines.clock_merge import MergePublisher, MergeSubscriber
from unisono.experiments.baselines.ticket import TicketClient, TicketNode
from unisono.experiments.baselines.topic_order import TopicHome, TopicOrderClient
from unisono.experiments.baselines.unordered import UnorderedClient
from unisono.experiments.sequencer.sites import Crowd, Sites
from unisono.machine import Fired, Machine
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.planning.leans import plan_leans
from unisono.planning.placement import PlacementTree, place, stars, two_levels
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import BrokerMessage as ClockBrokerMessage
from unisono.protocols.clock.messages import PeerMessage as ClockPeerMessage
from unisono.protocols.clock.messages import SetLean
from unisono.protocols.clock.stamper import UNNUMBERED, StamperMachine, repeats
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig, planet
from unisono.protocols.sequencer.messages import BrokerMessage, PeerMessage
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.host import SimulatedHost
from unisono.sim.world import World
from unisono.structures.sessions import Sessions, SessionsConfig

BEAT_US = 10_000
"""How often publishers beat under the clock merge; half of it is the price of the beat, on average."""
WARM_UP_US = SECOND
"""So long before the crowd does, each site publishes on each topic that it will publish on: its lanes are open then."""
AWAKE_US = SECOND // 20
"""Until it does, each site publishes so often: the first event after a silence has to wake the other clocks, and what
is measured is a deployment at work."""
TWO_LEVELS_FROM = 8
"""From so many sites on, a two-level tree is tried beside the star."""
TOTAL = replace(planet(), shared_subscriptions_min=2)


class Stage:
    """A crowd, its sites, and the world they are put into."""

    def __init__(self, world: World, sites: Sites, crowd: Crowd) -> None:
        self.world = world
        self.sites = sites
        self.crowd = crowd
        self.topics = [world.topic(f"t{i}") for i in range(crowd.topics)]
        self.nodes = [Address(f"n-{name}") for name in sites.names]
        self.publishers = [Address(f"p-{name}") for name in sites.names]
        self.own_homes = {topic: self.nodes[crowd.site_of(topic)] for topic in self.topics}

    def add_node(self, site: int, machine: Machine) -> None:
        self.world.add(self.nodes[site], lambda _: machine, region=self.sites.names[site], snapshot_every=0)

    def add_nodes(self, build: Callable[[Address], Machine]) -> None:
        for site, name in enumerate(self.nodes):
            self.add_node(site, build(name))

    def add_clients(self, publisher: Callable[[Address], Machine], subscriber: Callable[[Address], Machine]) -> None:
        for site, name in enumerate(self.publishers):
            self.world.add(name, lambda name: publisher(Address(name)), region=f"{self.sites.names[site]}/pub")
        for client in self.crowd.subscribers:
            region = f"{self.sites.names[client.site]}/sub"
            self.world.add(client.name, lambda name: subscriber(Address(name)), region=region)

    def start(self) -> None:
        """Everybody subscribes now; publications come when they are due."""
        world = self.world
        for client in self.crowd.subscribers:
            world.host(client.name).subscribe(*(f"t{topic}" for topic in client.topics))
        for publication in self.crowd.publications:
            host = world.host(self.publishers[publication.site])
            world.at(publication.at_us, _publish, host, f"t{publication.topic}")


def build_sequencer(
    stage: Stage, parents: Mapping[Address, Address | None], homes: dict[Topic, Address], config: SequencerConfig
) -> None:
    """The real machines: a node for each of `parents`, ordering clients everywhere."""
    for site, name in enumerate(stage.nodes):
        if name in parents:
            stage.add_node(site, _node(name, parents, homes, config))

    def client(name: Address) -> Machine:
        return OrderingClient(name, homes, config)

    stage.add_clients(client, client)


def _node(
    me: Address, parents: Mapping[Address, Address | None], homes: dict[Topic, Address], config: SequencerConfig
) -> Machine:
    children = tuple(name for name, above in parents.items() if above == me)
    hosted = tuple(topic for topic, home in homes.items() if home == me)
    above = parents[me]
    peers = children if above is None else (above, *children)
    inside = TopicManager(me, above, children, hosted, _below(me, parents, homes), config)
    return Sessions(inside, me, peers, PeerMessage, BrokerMessage, SessionsConfig(resend_after_us=Micros(2 * SECOND)))


def _below(me: Address, parents: Mapping[Address, Address | None], homes: dict[Topic, Address]) -> dict[Topic, Address]:
    """Behind which child of a node each topic lives that is hosted below it."""
    below: dict[Topic, Address] = {}
    for topic, home in homes.items():
        at: Address | None = home
        while at is not None and at != me:
            if parents[at] == me:
                below[topic] = at
            at = parents[at]
    return below


def line(nodes: list[Address]) -> dict[Address, Address | None]:
    return dict(zip(nodes, [None, *nodes[:-1]]))


def star(nodes: list[Address], hub: int) -> dict[Address, Address | None]:
    return {name: None if site == hub else nodes[hub] for site, name in enumerate(nodes)}


def build_chain(stage: Stage) -> None:
    """The paper's: managers by topic number over the sites, the first site highest."""
    groups = stage.crowd.groups()
    stage.add_nodes(lambda name: ChainSite(name, stage.own_homes, groups))

    def client(name: Address) -> Machine:
        return ChainClient(name, stage.own_homes)

    stage.add_clients(client, client)


def build_line_ticket(stage: Stage) -> None:
    parents, homes, groups = line(stage.nodes), stage.own_homes, stage.crowd.groups()

    def node(me: Address) -> Machine:
        hosted = tuple(topic for topic, home in homes.items() if home == me)
        return TicketNode(parents[me], hosted, _below(me, parents, homes), groups)

    stage.add_nodes(node)

    def client(name: Address) -> Machine:
        return TicketClient(name, homes)

    stage.add_clients(client, client)


def build_line_stamp(stage: Stage) -> None:
    build_sequencer(stage, line(stage.nodes), stage.own_homes, replace(TOTAL, early=False))


def build_star_stamp(stage: Stage) -> None:
    build_sequencer(stage, star(stage.nodes, stage.sites.hub), stage.own_homes, replace(TOTAL, early=False))


def build_star_early(stage: Stage) -> None:
    build_sequencer(stage, star(stage.nodes, stage.sites.hub), stage.own_homes, TOTAL)


def build_placed(stage: Stage) -> None:
    """Early stamps; homes, and with many sites the tree, by the planner's expected latency."""
    table = stage.sites.table
    trees: list[PlacementTree] = [stars(table)[stage.sites.hub]]
    if len(table.regions) >= TWO_LEVELS_FROM:
        trees += two_levels(table, 3)[:1]
    found = place(stage.crowd.demand(table.regions), table, trees)
    node = dict(zip(table.regions, stage.nodes))
    parents = {name: None if above < 0 else stage.nodes[above] for name, above in zip(stage.nodes, found.tree.parents)}
    homes = {t: node[found.homes[str(i)]] if str(i) in found.homes else home
             for i, (t, home) in enumerate(stage.own_homes.items())}  # fmt: skip
    build_sequencer(stage, parents, homes, TOTAL)


def build_central(stage: Stage) -> None:
    """One node for all topics, at its best site."""
    costs = _detours(stage)
    best = stage.nodes[min(range(len(stage.nodes)), key=lambda site: sum(of_topic[site] for of_topic in costs))]
    build_sequencer(stage, {best: None}, dict.fromkeys(stage.topics, best), TOTAL)


def build_topic_order(stage: Stage) -> None:
    """Every topic at its own best site."""
    homes = {
        topic: stage.nodes[min(range(len(stage.nodes)), key=of_topic.__getitem__)]
        for topic, of_topic in zip(stage.topics, _detours(stage))
    }
    stage.add_nodes(lambda _: TopicHome())

    def client(_: Address) -> Machine:
        return TopicOrderClient(homes)

    stage.add_clients(client, client)


def _detours(stage: Stage) -> list[list[int]]:
    """Per topic and site: the time all its deliveries take together if they pass that site."""
    crowd, one_way = stage.crowd, stage.sites.table.one_way_us
    sites = range(len(stage.nodes))
    hearers = [
        [sum(t in s.topics for s in crowd.subscribers if s.site == site) for site in sites] for t in range(crowd.topics)
    ]
    costs = [[0] * len(sites) for _ in hearers]
    for publication in crowd.publications:
        there = hearers[publication.topic]
        for via in sites:
            ways = (one_way[publication.site][via] + one_way[via][to] for to in sites)
            costs[publication.topic][via] += sum(count * way for count, way in zip(there, ways))
    return costs


def build_clock_merge(stage: Stage) -> None:
    beats = stage.world.topic("beats")
    until = stage.crowd.end_us + 2 * BEAT_US  # a last beat after the last event
    publishers = tuple(stage.publishers)
    stage.add_clients(
        lambda name: MergePublisher(name, beats, BEAT_US, until), lambda _: MergeSubscriber(publishers, beats)
    )
    for site, name in enumerate(publishers):  # out of step with each other, as clocks of their own would be
        host = stage.world.host(name)
        stage.world.at(stage.crowd.publications[0].at_us + site * BEAT_US // len(publishers), host.tell, Fired("beat"))


def build_clock(stage: Stage, leans: bool) -> None:
    """One global order by clocks, a stamper at every site. Lanes are open, leans in force, when the crowd begins."""
    config, crowd, regions = ClockConfig(causal=not leans), stage.crowd, stage.sites.table.regions
    demand = crowd.demand(regions)
    number = {name: i for i, name in enumerate(stage.nodes)}
    homes = {topic: number[home] for topic, home in stage.own_homes.items()}
    for i, rates in demand.rates.items():
        homes[stage.topics[int(i)]] = regions.index(max(rates, key=rates.__getitem__))
    keepers = {str(i): regions[homes[topic]] for i, topic in enumerate(stage.topics)}
    stampers = tuple(stage.nodes)
    for site, name in enumerate(stampers):
        peers = tuple(other for other in stampers if other != name)
        kept = tuple(topic for topic, home in homes.items() if home == site)
        inside = StamperMachine(site, stampers, homes.get, kept, config)
        stage.add_node(
            site,
            Sessions(inside, name, peers, ClockPeerMessage, ClockBrokerMessage, SessionsConfig(), repeats, UNNUMBERED),
        )
    sites = {str(name): site for site, name in enumerate(stage.publishers)}
    sites |= {client.name: client.site for client in crowd.subscribers}

    def client(name: Address) -> Machine:
        return _clock_client(sites[name], stampers, homes, config, name)

    stage.add_clients(client, client)
    warm_up_us = crowd.publications[0].at_us - WARM_UP_US
    for (topic, region), lean in plan_leans(demand, stage.sites.table, keepers, config.beat_us).leans_us.items():
        host = stage.world.host(stampers[regions.index(region)])
        if leans:
            stage.world.at(warm_up_us, host.tell, SetLean(stage.topics[int(topic)], lean))
    for site, region in enumerate(regions):
        opener = stage.world.add(
            f"w-{region}", partial(_clock_client, site, stampers, homes, config), region=f"{region}/pub"
        )
        own = [f"t{name}" for name, rates in demand.rates.items() if region in rates]
        for published in own:
            stage.world.at(warm_up_us + 1, _publish, opener, published)
        for at_us in range(warm_up_us + 1, crowd.publications[0].at_us, AWAKE_US) if own else ():
            stage.world.at(at_us, _publish, opener, own[0])


def _clock_client(
    site: int, stampers: tuple[Address, ...], homes: dict[Topic, int], config: ClockConfig, name: str
) -> ClockClient:
    return ClockClient(Address(name), site, stampers, homes.get, config)


def build_direct(stage: Stage) -> None:
    stage.add_clients(lambda _: UnorderedClient(), lambda _: UnorderedClient())


SCHEMES: dict[str, Callable[[Stage], None]] = {
    "chain, ticket (the paper's)": build_chain,
    "line, ticket": build_line_ticket,
    "line, stamp": build_line_stamp,
    "star, stamp": build_star_stamp,
    "star, early": build_star_early,
    "star, early, placed": build_placed,
    "one central sequencer": build_central,
    "per-topic order only": build_topic_order,
    "clock, leans": partial(build_clock, leans=True),
    "clock, no leans": partial(build_clock, leans=False),
    "clock merge": build_clock_merge,
    "direct, unordered": build_direct,
}
DIRECT = "direct, unordered"


def play(scheme: str, sites: Sites, crowd: Crowd, seed: int, jitter: float = 0.0) -> World:
    """The crowd subscribes, publishes and comes to rest under this scheme; the journal says what happened."""
    stage = Stage(sites.world(seed, jitter), sites, crowd)
    SCHEMES[scheme](stage)
    stage.start()
    stage.world.run(until=crowd.end_us + 60 * SECOND)
    stage.world.note("end")
    return stage.world


def _publish(host: SimulatedHost, topic: str) -> None:
    host.publish(topic)
