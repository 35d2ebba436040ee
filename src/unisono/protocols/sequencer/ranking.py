"""When and where to move homes: ranking functions over what is known of a deployment.

A ranking looks at a `DeploymentView` and names moves along single links of the tree (`Migrate` at the node `at`);
whoever holds the view plays them and looks again. Moves never endanger order, so a ranking may be as wrong as it likes:
it costs messages, not correctness. Two are here, and any callable will do:

* `Popularity`, the thesis (chapter 3): busy topics belong near the root, where climbs are short for them.
* `ClimbCost` (default): the time that requests spend climbing, counting the topics that are subscribed together.
"""

from math import exp
from typing import Protocol

from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.time import Micros


class DeploymentView(Struct, frozen=True):
    """A deployment as seen over the last period."""

    parent: dict[Address, Address | None]
    homes: dict[Topic, Address]
    issued: dict[Topic, int]
    """Numbers issued per topic in the period; a sudden change of popularity shows within one period."""
    groups: dict[Topic, tuple[Topic, ...]]
    up_us: dict[Address, Micros] = {}
    """One-way latency from a node to its parent."""
    asked: dict[Topic, dict[Address, int]] = {}
    """Requests per topic and the node nearest to the publisher; empty means they come from the home's own site."""

    def path(self, node: Address) -> list[Address]:
        """The node and all above it."""
        found = [node]
        while (above := self.parent[found[-1]]) is not None:
            found.append(above)
        return found

    def way(self, a: Address, b: Address) -> list[Address]:
        """The links between two nodes, each named by its lower end."""
        ups, downs = self.path(a), self.path(b)
        meet = next(node for node in ups if node in downs)
        return [*ups[: ups.index(meet)], *downs[: downs.index(meet)]]

    def between_us(self, a: Address, b: Address) -> int:
        """One-way latency along the tree."""
        return sum(self.up_us.get(node, 1) for node in self.way(a, b))

    def neighbours(self, node: Address) -> list[Address]:
        above = self.parent[node]
        return ([] if above is None else [above]) + [child for child, up in self.parent.items() if up == node]


class Relocation(Struct, frozen=True):
    """Move a home over one link."""

    topic: Topic
    at: Address
    to: Address
    gain: float


class Ranking(Protocol):
    """Names the moves worth making now, best first; at most one per topic."""

    def __call__(self, view: DeploymentView) -> list[Relocation]: ...


class Popularity(Struct, frozen=True):
    """Swaps two topics of neighbouring nodes when the lower is more popular by more than `beta`."""

    alpha: float = 0.1
    """Smaller converges later and swaps more; 0.1 and `beta` 0.2 are the thesis' choice."""
    beta: float = 0.2
    """How much more popular the lower topic must be; prevents swapping back and forth."""

    def worth(self, issued: int) -> float:
        """f(x) = exp(-1 / (alpha (x + 1))): grows with x and settles at 1."""
        return exp(-1 / (self.alpha * (issued + 1)))

    def __call__(self, view: DeploymentView) -> list[Relocation]:
        worth = {topic: self.worth(view.issued.get(topic, 0)) for topic in view.homes}
        moves: list[Relocation] = []
        moved: dict[Topic, None] = {}
        for low, high in view.parent.items():
            if high is None:
                continue
            below = [t for t, node in view.homes.items() if node == low and t not in moved]
            above = [t for t, node in view.homes.items() if node == high and t not in moved]
            if not below or not above:
                continue
            best, worst = max(below, key=worth.__getitem__), min(above, key=worth.__getitem__)
            gain = worth[best] - worth[worst]
            if gain > self.beta:
                moves += [Relocation(best, low, high, gain), Relocation(worst, high, low, gain)]
                moved |= {best: None, worst: None}
        return sorted(moves, key=lambda move: -move.gain)


class ClimbCost(Struct, frozen=True):
    """Moves a home when that shortens the way of requests: to the home, and up to where their groups meet.

    A topic pulls on the topics it is subscribed with: their climbs change when it moves, and they count with their
    own rates. Looking at the site of the majority of a topic's publishers alone is not enough.
    """

    worth_us: float = 0.0
    """Moves that save less than this per event are not worth the trouble."""

    def __call__(self, view: DeploymentView) -> list[Relocation]:
        moves: list[Relocation] = []
        homes = dict(view.homes)
        for topic in sorted(view.homes, key=lambda t: -view.issued.get(t, 0)):
            at = homes[topic]
            stay = self._cost(view, homes, topic, at)
            events = max(1, view.issued.get(topic, 0))
            gains = [(stay - self._cost(view, homes, topic, to), to) for to in view.parent if to != at]
            gain, best = max(gains, default=(0.0, at), key=lambda pair: pair[0])
            if gain > self.worth_us * events:
                # One link at a time: a hub on the way may be no better than where we are.
                to = min(view.neighbours(at), key=lambda node: len(view.way(node, best)))
                moves.append(Relocation(topic, at, to, gain))
                homes[topic] = best
        return sorted(moves, key=lambda move: -move.gain)

    def _cost(self, view: DeploymentView, homes: dict[Topic, Address], topic: Topic, at: Address) -> float:
        """What the topic and its companions would pay if its home were `at`."""
        tried = homes | {topic: at}
        return sum(self._own(view, tried, x) for x in (topic, *view.groups.get(topic, ())))

    def _own(self, view: DeploymentView, homes: dict[Topic, Address], topic: Topic) -> float:
        home = homes[topic]
        asked = view.asked.get(topic) or {home: view.issued.get(topic, 0)}
        arrive = sum(count * view.between_us(node, home) for node, count in asked.items())
        path = view.path(home)
        height = max((self._meeting(path, view, homes[x]) for x in view.groups.get(topic, ())), default=0)
        climb = sum(view.up_us.get(node, 1) for node in path[:height])
        return arrive + view.issued.get(topic, 0) * climb

    def _meeting(self, path: list[Address], view: DeploymentView, other: Address) -> int:
        others = view.path(other)
        return next(i for i, node in enumerate(path) if node in others)
