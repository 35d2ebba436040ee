"""How many brokers a region needs, in how many levels, and who could be served directly: from subscriptions and rates.

A broker can send so many copies per second: its share of a CPU by what one copy costs. The brokers at the bottom of a
region's tree send a copy per notification, those above one to each broker below that wants the event; each takes every
event once. A tree of the fewest brokers is drawn that stays below the bound at every level. It is advice: rates change,
filters want less than topics, and direct connections take load off the upper levels.

A publisher of a topic could connect directly to the lowest brokers of every region that hears it (`direct`): that many
copies leave the publisher instead of the roots.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import ceil

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.deployment import DEPLOYMENT_VERSION, Deployment
from unisono.model.region import LatencyTable
from unisono.model.settings import MembershipSpec, NodeSpec, Region

FAN_OUT_MAX = 64
"""More children than this are given a level of their own, whatever a root could send."""
LEVELS_MAX = 6


class RegionDemand(Struct, frozen=True):
    """What one region hears: topic -> how many there subscribe to it."""

    region: str
    subscribers: Mapping[str, int]


class RegionTree(Struct, frozen=True):
    """The tree of one region."""

    region: str
    events_per_s: float
    """That are wanted there, or published there: every root has them once."""
    notifications_per_s: float
    levels: tuple[int, ...]
    """Brokers by level, the root first."""
    busiest: float
    """The share of what it may send that the busiest broker sends."""

    @property
    def brokers(self) -> int:
        return sum(self.levels)

    @property
    def fan_out(self) -> int:
        return max((ceil(below / above) for above, below in pairwise(self.levels)), default=0)


class RegionsPlan(Struct, frozen=True):
    """Trees of all regions, and for each topic how many copies a publisher would send directly."""

    copies_per_s_max: float
    trees: tuple[RegionTree, ...]
    direct: dict[str, int]


def count_demand(rows: Iterable[tuple[str, str, str]]) -> list[RegionDemand]:
    """From rows of subscriber, topic and region; a row that comes twice counts once."""
    found: dict[str, dict[str, int]] = {}
    for _, topic, region in dict.fromkeys(rows):
        topics = found.setdefault(region, {})
        topics[topic] = topics.get(topic, 0) + 1
    return [RegionDemand(region, topics) for region, topics in sorted(found.items())]


def plan_regions(
    demand: Iterable[RegionDemand], rates: Mapping[str, Mapping[str, float]], copy_us: float, cpu_share: float
) -> RegionsPlan:
    """`rates`: topic -> region -> events per second that are published there."""
    if copy_us <= 0 or not 0 < cpu_share <= 1:
        raise MisuseError(f"a copy costs some microseconds, not {copy_us:g}, of a share of a CPU above 0 and up to 1")
    most = cpu_share * 1_000_000 / copy_us
    wanted = {each.region: dict(each.subscribers) for each in demand}
    for own in rates.values():
        for region in own:
            wanted.setdefault(region, {})
    total = {topic: sum(own.values()) for topic, own in rates.items()}
    trees = tuple(_tree(region, wanted, rates, total, most) for region in sorted(wanted))
    bottom = {tree.region: tree.levels[-1] for tree in trees}
    direct = {
        topic: sum(bottom[region] for region, heard in wanted.items() if heard.get(topic)) for topic in sorted(total)
    }
    return RegionsPlan(most, trees, direct)


def _tree(
    region: str,
    wanted: Mapping[str, Mapping[str, int]],
    rates: Mapping[str, Mapping[str, float]],
    total: Mapping[str, float],
    most: float,
) -> RegionTree:
    mine = wanted[region]
    inward = sum(total.get(topic, 0.0) for topic in mine)
    published = {topic: own[region] for topic, own in rates.items() if own.get(region)}
    events = inward + sum(rate for topic, rate in published.items() if topic not in mine)
    told = sum(total.get(topic, 0.0) * count for topic, count in mine.items())
    outward = sum(
        rate * sum(1 for other, heard in wanted.items() if other != region and heard.get(topic))
        for topic, rate in published.items()
    )
    if told + outward <= most:
        return RegionTree(region, events, told, (1,), (told + outward) / most)
    if inward + outward > most:
        raise MisuseError(
            f"{region}: its root would send {outward:.0f} copies per second to other regions and {inward:.0f} down, and"
            f" {most:.0f} are the most: publish in several regions, give brokers more CPU, or split the topics"
        )
    leaves = max(2, ceil(told / most))
    fan_out = min(FAN_OUT_MAX, int(most / inward)) if inward else FAN_OUT_MAX
    top = min(FAN_OUT_MAX, int((most - outward) / inward)) if inward else FAN_OUT_MAX
    levels = [leaves]
    while levels[0] > max(1, top):
        if fan_out < 2 or len(levels) > LEVELS_MAX:
            raise MisuseError(
                f"{region}: {inward:.0f} events per second are too many for brokers that send {most:.0f} copies: none"
                " could feed two below it. Give brokers more CPU, or split the topics"
            )
        levels.insert(0, ceil(levels[0] / fan_out))
    levels.insert(0, 1)
    loads = [told / leaves, *(inward * ceil(below / above) for above, below in pairwise(levels))]
    loads[1:2] = [loads[1] + outward]
    return RegionTree(region, events, told, tuple(levels), max(loads) / most)


def regions_deployment(plan: RegionsPlan, table: LatencyTable, name: str = "planned") -> Deployment:
    """A deployment file's content: the trees, every broker below one of the level above, addresses to be filled in."""
    nodes: list[NodeSpec] = []
    for tree in plan.trees:
        above: list[str] = []
        for level, count in enumerate(tree.levels):
            names = [f"{tree.region}-{level}-{number}" for number in range(1, count + 1)]
            for place, broker in enumerate(names):
                parent = above[place * len(above) // count] if above else None
                listen = f"127.0.0.1:{7474 + len(nodes)}"
                nodes.append(NodeSpec(broker, tree.region, listen, parent, ("regions",)))
            above = names
    names_of = [tree.region for tree in plan.trees]
    known = [region for region in names_of if region in table.regions]
    among = table.among(set(known))
    round_trips = {
        f"{a} {b}": among.one_way_us[among.regions.index(a)][among.regions.index(b)] / 500
        for place, a in enumerate(known)
        for b in known[place + 1 :]
    }
    kept = MembershipSpec(("nats://127.0.0.1:4222",)) if len(nodes) > len(plan.trees) else MembershipSpec()
    regions = tuple(Region(region) for region in names_of)
    return Deployment(DEPLOYMENT_VERSION, name, regions, round_trips, tuple(nodes), kind="regions", membership=kept)
