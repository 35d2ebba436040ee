"""At which of a region's nodes its topics should live: those that are heard together at one, the others spread.

Inside a region nothing is far, so prices say nothing of it. But an event whose group lies at two nodes makes both work:
two nodes then carry less than one alone does (`unisono bench cores`). A group that is at one node stays there; one that
is split goes to where a person has put some of it, else to where most of it is, unless that node has more to do than
another, by as much as the group asks for.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from unisono.model.ids import Address, Topic


class _Company(NamedTuple):
    """Topics that should be at home at one node of this region."""

    region: str
    topics: list[Topic]
    asked: int
    here: dict[Address, int]
    """What its topics weigh at each of the region's nodes, as they are."""
    pinned: dict[Address, int]
    """How many of them stay at a node whatever happens."""


def share_out(
    homes: Mapping[Topic, Address],
    better: Mapping[Topic, Address],
    asked: Mapping[Topic, int],
    heard: Iterable[tuple[int, ...]],
    regions: Mapping[Address, str],
    asked_min: int,
    pinned: frozenset[Topic] = frozenset(),
) -> dict[Topic, Address]:
    """Where topics should go: `better` is where prices want them, of which the region counts. `heard` names the topics
    of each kind of subscriber; companies that were asked for less than `asked_min` times stay as they are, and so do
    topics that are `pinned`."""
    nodes: dict[str, list[Address]] = {}
    for node, region in regions.items():
        nodes.setdefault(region, []).append(node)
    if all(len(each) == 1 for each in nodes.values()):
        return dict(better)
    found = {topic: to for topic, to in better.items() if len(nodes[regions[to]]) == 1}
    load = dict.fromkeys(regions, 0)
    every = _companies(homes, better, asked, heard, regions, pinned)
    companies = [each for each in every if len(nodes[each.region]) > 1]
    for company in sorted(companies, key=lambda each: (len(each.here) != 1, -each.asked, each.topics[0])):
        least = min(nodes[company.region], key=lambda node: load[node])
        to = max(company.pinned or company.here, key=lambda node: (company.here[node], -load[node]), default=least)
        if len(company.here) != 1 and not company.pinned and load[to] >= load[least] + company.asked:
            to = least
        load[to] += company.asked
        is_wanted = company.asked >= asked_min
        found |= {topic: to for topic in company.topics if homes[topic] != to and (is_wanted or topic in better)}
    return {topic: to for topic, to in found.items() if topic not in pinned}


def _companies(
    homes: Mapping[Topic, Address],
    better: Mapping[Topic, Address],
    asked: Mapping[Topic, int],
    heard: Iterable[tuple[int, ...]],
    regions: Mapping[Address, str],
    pinned: frozenset[Topic],
) -> list[_Company]:
    """Topics of one region, directly or by way of others of it heard together."""
    region_of = {topic: regions[better.get(topic, home)] for topic, home in homes.items()}
    above = {topic: topic for topic in homes}

    def first(topic: Topic) -> Topic:
        while above[topic] != topic:
            above[topic] = topic = above[above[topic]]
        return topic

    for topics in heard:
        last: dict[str, Topic] = {}
        for topic in map(Topic, topics):
            if topic in homes:
                other = first(last.setdefault(region_of[topic], topic))
                above[max(other, first(topic))] = min(other, first(topic))
    members: dict[Topic, list[Topic]] = {}
    for topic in homes:
        members.setdefault(first(topic), []).append(topic)
    found = []
    for company in members.values():
        region, here, stay = region_of[company[0]], dict[Address, int](), dict[Address, int]()
        for topic in company:
            home = homes[topic]
            if regions[home] == region:
                here[home] = here.get(home, 0) + 1 + asked.get(topic, 0)
                if topic in pinned:
                    stay[home] = stay.get(home, 0) + 1
        found.append(_Company(region, sorted(company), sum(asked.get(topic, 0) for topic in company), here, stay))
    return found
