"""SCRIBE on Pastry: a rendezvous multicast tree over prefix routing (thesis, sections 3.5.1 and 5.5).

*Pastry*: nodes have 128-bit ids on a ring. A node forwards a key to a node that shares one more hexadecimal digit with
it (b = 4), or, near the end, to the numerically closest node of its leaf set; a key reaches the node with the closest
id in about log16 N hops. *SCRIBE*: a topic's root is the node closest to the hash of its name. A join is routed towards
the root and stops at the first node that is in the tree already; the way it took becomes a branch. A publisher finds
the root by routing once and sends to it directly afterwards; the root sends down the tree.

The simulated overlay does not change while it is used: hosts and `nodes` other nodes forward whether or not the
processes on them are up, each by a machine of its own where the protocol has one for that (`unisono.sim.relay`).
Routing tables are filled as they are used, each entry once and for ever, with a random node
of the right prefix, as in a Pastry without proximity.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from unisono.model.ids import Topic
from unisono.sim.ens import EnsSpec, PathLosses
from unisono.sim.links import ByRegion, Sampler

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost
    from unisono.sim.world import World

ID_BITS = 128
DIGIT_BITS = 4
LEAVES_EACH_SIDE = 8

NodeId = int


def node_id(name: str) -> NodeId:
    return int.from_bytes(sha256(name.encode()).digest()[: ID_BITS // 8])


def shared_digits(a: NodeId, b: NodeId) -> int:
    return (ID_BITS - (a ^ b).bit_length()) // DIGIT_BITS


class Ring:
    """Pastry's nodes, and the way from one to another."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._ids: list[NodeId] = []
        self._tables: dict[tuple[NodeId, int, int], NodeId] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, node: NodeId) -> None:
        insort(self._ids, node)

    def closest(self, key: NodeId) -> NodeId:
        """The node responsible for a key: the one numerically closest on the ring."""
        return self._closest_of(self._around(key, 1), key)

    def route(self, start: NodeId, key: NodeId) -> list[NodeId]:
        """The nodes a message for `key` visits, from `start` to the one responsible."""
        path = [start]
        while (step := self._next(path[-1], key)) != path[-1]:
            path.append(step)
        return path

    def _next(self, node: NodeId, key: NodeId) -> NodeId:
        leaves = self._around(node, LEAVES_EACH_SIDE)
        reach = max(_distance(node, leaf) for leaf in leaves)
        if len(leaves) == len(self._ids) or _distance(node, key) <= reach:
            return self._closest_of(leaves, key)
        row = shared_digits(node, key)
        entry = self._entry(node, row, (key >> (ID_BITS - DIGIT_BITS * (row + 1))) & ((1 << DIGIT_BITS) - 1))
        # An empty entry: any leaf that is closer to the key; one always is, or the key would be within reach.
        return entry if entry is not None else self._closest_of(leaves, key)

    def _entry(self, node: NodeId, row: int, digit: int) -> NodeId | None:
        found = self._tables.get((node, row, digit))
        if found is None:
            rest_bits = ID_BITS - DIGIT_BITS * (row + 1)
            prefix = (node >> (rest_bits + DIGIT_BITS)) << DIGIT_BITS | digit
            first = bisect_left(self._ids, prefix << rest_bits)
            last = bisect_left(self._ids, (prefix + 1) << rest_bits)
            if first == last:
                return None
            found = self._tables[node, row, digit] = self._ids[self._dice.randrange(first, last)]
        return found

    def _around(self, key: NodeId, each_side: int) -> list[NodeId]:
        size = len(self._ids)
        if size <= 2 * each_side + 1:
            return self._ids
        place = bisect_left(self._ids, key)
        return [self._ids[i % size] for i in range(place - each_side, place + each_side + 1)]

    @staticmethod
    def _closest_of(nodes: list[NodeId], key: NodeId) -> NodeId:
        return min(nodes, key=lambda node: (_distance(node, key), node))


def _distance(a: NodeId, b: NodeId) -> int:
    apart = abs(a - b)
    return min(apart, (1 << ID_BITS) - apart)


class ScribeTree:
    """SCRIBE's tree of one topic: forwarders and members below a root."""

    def __init__(self, root: NodeId) -> None:
        self.root = root
        self.parent: dict[NodeId, NodeId] = {}
        self.children: dict[NodeId, dict[NodeId, None]] = {root: {}}
        self.members: dict[NodeId, None] = {}

    def join(self, path: list[NodeId]) -> int:
        """Adds the member `path[0]`, whose join was routed along `path`; returns the hops it took."""
        self.members[path[0]] = None
        hops = 0
        while path[hops] not in self.children:
            self.children[path[hops]] = {}
            self.parent[path[hops]] = path[hops + 1]
            hops += 1
        if hops:
            self.children[path[hops]][path[hops - 1]] = None
            for i in range(1, hops):
                self.children[path[i]][path[i - 1]] = None
        return hops

    def leave(self, node: NodeId) -> None:
        """Removes a member, and the branch that nobody needs any more."""
        if self.members.pop(node, 0) == 0:
            return
        while node != self.root and not self.children[node] and node not in self.members:
            above = self.parent.pop(node)
            del self.children[node], self.children[above][node]
            node = above


class ScribePaths:
    """Paths of the ENS (`unisono.sim.ens.Paths`) through the topics' trees."""

    def __init__(self, world: "World", spec: EnsSpec) -> None:
        self._world = world
        self._spec = spec
        self._losses = PathLosses(world, spec.loss)
        self._samplers: dict[tuple[NodeId, NodeId], Sampler] = {}
        self.ring = Ring(world.dice("scribe"))
        self.trees: dict[Topic, ScribeTree] = {}
        self._hosts: dict[NodeId, SimulatedHost] = {}
        self._knows_root: dict[tuple[NodeId, Topic], None] = {}
        self.copies = 0
        for i in range(spec.nodes):
            self.ring.add(node_id(f"overlay node {i}"))

    def join(self, host: "SimulatedHost", topic: Topic) -> int:
        node = self._node(host)
        path = self.ring.route(node, self._key(topic))
        hops = self._tree(topic).join(path)
        return 2 * self._along(path[: hops + 1])

    def leave(self, host: "SimulatedHost", topic: Topic) -> None:
        self._tree(topic).leave(self._node(host))

    def spread(
        self, source: "SimulatedHost", topic: Topic, members: Iterable["SimulatedHost"]
    ) -> list[tuple["SimulatedHost", int]]:
        wanted = {self._node(host): host for host in members}
        reached: list[tuple[SimulatedHost, int]] = []
        under_way = self.to_root(source, topic)
        while under_way:
            here, delay = under_way.pop()
            if here in wanted:
                reached.append((wanted[here], delay))
            under_way += [(child, delay + hop) for child, hop in self.to_children(here, topic)]
        return reached

    def to_root(self, source: "SimulatedHost", topic: Topic) -> list[tuple[NodeId, int]]:
        """The topic's root and how long it takes to reach it; nothing if a hop loses it."""
        node, tree = self._node(source), self._tree(topic)
        path = [node, tree.root] if (node, topic) in self._knows_root else self.ring.route(node, self._key(topic))
        self._knows_root[node, topic] = None
        for a, b in pairwise(path):
            if self._loses(a, b):
                return []
        return [(tree.root, self._along(path))]

    def to_children(self, node: NodeId, topic: Topic) -> list[tuple[NodeId, int]]:
        """The children in the topic's tree that the next hop does not lose it for, and how long it takes."""
        children = self._tree(topic).children.get(node, {})
        return [(child, self._hop(node, child)) for child in children if not self._loses(node, child)]

    def has_children(self, node: NodeId, topic: Topic) -> bool:
        return bool(self._tree(topic).children.get(node))

    def host_at(self, node: NodeId) -> "SimulatedHost | None":
        return self._hosts.get(node)

    def _loses(self, a: NodeId, b: NodeId) -> bool:
        if a == b:
            return False
        self.copies += 1
        return self._losses.lost(a, b)

    def _node(self, host: "SimulatedHost") -> NodeId:
        node = node_id(host.address)
        if node not in self._hosts:
            for other in [host, *self._world.hosts.values()]:  # all at once: the overlay is there before its users
                if (each := node_id(other.address)) not in self._hosts:
                    self._hosts[each] = other
                    self.ring.add(each)
        return node

    def _key(self, topic: Topic) -> NodeId:
        return node_id(f"topic {self._world.topic_name(topic)}")

    def _tree(self, topic: Topic) -> ScribeTree:
        if topic not in self.trees:
            self.trees[topic] = ScribeTree(self.ring.closest(self._key(topic)))
        return self.trees[topic]

    def _along(self, path: list[NodeId]) -> int:
        return sum(self._hop(a, b) for a, b in pairwise(path))

    def _hop(self, a: NodeId, b: NodeId) -> int:
        if a == b:
            return 0
        sampler = self._samplers.get((a, b))
        if sampler is None:
            latency, between = self._spec.latency, 0
            if isinstance(latency, ByRegion):
                between = latency.within_us
                if a in self._hosts and b in self._hosts:
                    between = max(between, self._world.network.latency_between(self._hosts[a], self._hosts[b]))
            sampler = self._samplers[a, b] = Sampler(latency, self._world.dice("ens"), between)
        return sampler.draw()
