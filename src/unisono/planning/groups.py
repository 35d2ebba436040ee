"""Sequencing groups of a set of subscriptions: how large timestamps get, and which nodes a request visits.

The group of a topic T is T and every topic that at least `shared_min` subscribers have together with T (two for total
order, one for causal order; paper 000, section 3.1). A timestamp of T has an entry per member of its group. In a
deployment, a request of T climbs from the home of T until every home of its group lies below.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, combinations, islice
from statistics import fmean, pstdev

import msgspec
from msgspec import Struct

from unisono.model.deployment import Deployment
from unisono.planning.counting import number_rows, shared_pairs

ROWS_FEW = 50_000
"""Below this the import of numpy costs more than it saves."""


class TopicGroup(Struct, frozen=True):
    """One topic: who hears it, what it must be ordered against, where its requests go."""

    topic: str
    subscribers: int
    members: tuple[str, ...]
    """The group without the topic itself, sorted."""
    nodes: tuple[str, ...] = ()
    """From its home to the node that completes its timestamps; empty when no deployment was given."""

    @property
    def size(self) -> int:
        return 1 + len(self.members)


class GroupPlan(Struct, frozen=True):
    """All groups, largest first."""

    subscribers: int
    subscriptions: int
    shared_min: int
    groups: tuple[TopicGroup, ...]

    @property
    def mean_size(self) -> float:
        return fmean(group.size for group in self.groups)

    @property
    def std_size(self) -> float:
        return pstdev(group.size for group in self.groups)

    @property
    def bytes_full(self) -> float:
        """Mean size on the wire of a full timestamp, measured with the codec: 32-bit topics, numbers near 10 000."""
        return fmean(
            len(msgspec.msgpack.encode({1 << 20 | i: 10_000 for i in range(group.size)})) for group in self.groups
        )


def plan_groups(
    rows: Iterable[tuple[str, str]], shared_min: int = 2, deployment: Deployment | None = None
) -> GroupPlan:
    """Groups of `(subscriber, topic)` rows; a row that comes twice counts once.

    Many rows are counted by numpy where it is installed (the extra `fast`); the plan is the same.
    """
    rows = iter(rows)
    first = list(islice(rows, ROWS_FEW))
    if len(first) == ROWS_FEW and find_spec("numpy") is not None:
        return plan_many(chain(first, rows), shared_min, deployment)
    interests: dict[str, dict[str, None]] = {}
    hearers: dict[str, int] = {}
    for subscriber, topic in chain(first, rows):
        topics = interests.setdefault(subscriber, {})
        if topic not in topics:
            topics[topic] = None
            hearers[topic] = hearers.get(topic, 0) + 1
    pairs = ((a, b) for (a, b), shared in pair_counts(interests.values()).items() if shared >= shared_min)
    return assemble(hearers, pairs, len(interests), shared_min, deployment)


def plan_many(rows: Iterable[tuple[str, str]], shared_min: int = 2, deployment: Deployment | None = None) -> GroupPlan:
    """The same, by numpy."""
    import numpy as np

    numbered = number_rows(rows)
    heard = np.bincount(numbered.topic, minlength=len(numbered.topics)).tolist()
    pairs = shared_pairs(numbered, shared_min)
    return assemble(dict(zip(numbered.topics, heard, strict=True)), pairs, numbered.subscribers, shared_min, deployment)


def assemble(
    hearers: Mapping[str, int],
    pairs: Iterable[tuple[str, str]],
    subscribers: int,
    shared_min: int,
    deployment: Deployment | None = None,
) -> GroupPlan:
    """The plan, once it is known how many hear a topic and which pairs of topics enough subscribers share."""
    members: dict[str, list[str]] = {topic: [] for topic in hearers}
    for a, b in pairs:
        members[a].append(b)
        members[b].append(a)
    groups = [
        TopicGroup(topic, hearers[topic], tuple(sorted(found)), visited(deployment, topic, found) if deployment else ())
        for topic, found in members.items()
    ]
    groups.sort(key=lambda group: (-group.size, group.topic))
    return GroupPlan(subscribers, sum(hearers.values()), shared_min, tuple(groups))


def pair_counts(interests: Iterable[Iterable[str]]) -> dict[tuple[str, str], int]:
    """How many subscribers have both topics, for every pair that any has; the smaller name first."""
    shared: dict[tuple[str, str], int] = {}
    for topics in interests:
        for pair in combinations(sorted(topics), 2):
            shared[pair] = shared.get(pair, 0) + 1
    return shared


def visited(deployment: Deployment, topic: str, members: Sequence[str]) -> tuple[str, ...]:
    """The nodes a request of `topic` passes: from its home up to the first node above all homes of its group."""
    homes = {spec.name: spec.home for spec in deployment.topics}
    wanted = [climb(deployment, home) for name in members if (home := homes.get(name)) is not None]
    home = homes.get(topic)
    if home is None:
        return ()
    path = []
    for node in climb(deployment, home):
        path.append(node)
        if all(node in other for other in wanted):
            break
    return tuple(path)


def climb(deployment: Deployment, home: str) -> tuple[str, ...]:
    """A node and everything above it, up to the root."""
    parents = {node.name: node.parent for node in deployment.nodes}
    path: list[str] = []
    at: str | None = home
    while at is not None:
        path.append(at)
        at = parents[at]
    return tuple(path)
