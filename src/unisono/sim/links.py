"""Links between hosts: how long a message takes, whether it keeps its place, whether it arrives at all.

A link is a directed pair of hosts and comes into being with its first message. Its spec is that of the last rule
that names both ends, else the world's default. Loss follows Gilbert and Elliott in the form the thesis uses (section
5.4): a packet loss rate and an average burst length; in the bad state everything is lost, in the good state nothing.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from unisono.model.ids import Address
from unisono.model.region import LatencyTable
from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost
    from unisono.sim.world import World


class Fixed(Spec, frozen=True, tag_field="kind", tag="fixed"):
    """Every message takes the same time."""

    us: Span = Span(1_000)


class Uniform(Spec, frozen=True, tag_field="kind", tag="uniform"):
    """Any time between two bounds, drawn per message."""

    least_us: Span = Span(100)
    most_us: Span = Span(100_000)


class Gaussian(Spec, frozen=True, tag_field="kind", tag="gaussian"):
    """Drawn per message from a normal distribution, cut off at `least_us`."""

    mean_us: Span = Span(21_000)
    deviation_us: Span = Span(10_850)
    least_us: Span = Span(100)


class TwoClass(Spec, frozen=True, tag_field="kind", tag="two-class"):
    """The thesis' WAN (section 3.5.1): a share of all links is slow for good; both classes are Gaussian."""

    slow_share: float = 0.2
    fast: Gaussian = Gaussian()
    slow: Gaussian = Gaussian(Span(240_000), Span(129_270))


class ByRegion(Spec, frozen=True, tag_field="kind", tag="regions"):
    """The one-way latency between the regions of the two hosts, `within_us` inside one, plus exponential jitter."""

    within_us: Span = Span(500)
    jitter: float = 0.0
    """Mean of the jitter as a share of the latency."""


Latency = Fixed | Uniform | Gaussian | TwoClass | ByRegion


class Loss(Spec, frozen=True):
    """Gilbert-Elliott: lost share of all messages, and how many are lost in a row on average."""

    rate: float = 0.05
    burst: float = 2.0


class LinkSpec(Spec, frozen=True):
    """What a link is like."""

    latency: Latency = Fixed()
    fifo: bool = True
    loss: Loss | None = None
    duplicate: float = 0.0
    """Share of messages that arrive a second time, with a latency of their own."""
    bytes_per_s: int | None = None
    """Bandwidth: messages leave one after the other, each taking its encoded size divided by this."""


class LinkRule(Spec, frozen=True):
    """Links from hosts named like `source` to hosts named like `to` (shell patterns), in both directions if `both`."""

    source: str
    to: str
    link: LinkSpec
    both: bool = True

    def names(self, a: str, b: str) -> bool:
        one = fnmatchcase(a, self.source) and fnmatchcase(b, self.to)
        return one or (self.both and fnmatchcase(b, self.source) and fnmatchcase(a, self.to))


class GilbertElliott:
    """The two-state chain; it steps once per message."""

    __slots__ = ("_bad", "_dice", "_leave", "_stay_good")

    def __init__(self, loss: Loss, dice: Random) -> None:
        self._dice = dice
        self._leave = 1 / max(loss.burst, 1.0)
        # Stationary share of the bad state = rate: enter / (enter + leave) = rate.
        self._stay_good = 1 - min(1.0, self._leave * loss.rate / max(1 - loss.rate, 1e-9))
        self._bad = dice.random() < loss.rate

    def loses(self) -> bool:
        lost, roll = self._bad, self._dice.random()
        self._bad = roll >= self._leave if self._bad else roll >= self._stay_good
        return lost


class Sampler:
    """Draws latencies of one link; a two-class link has thrown its class when it was made."""

    __slots__ = ("_base", "_dice", "_latency")

    def __init__(self, latency: Latency, dice: Random, between_us: int) -> None:
        if isinstance(latency, TwoClass):
            latency = latency.slow if dice.random() < latency.slow_share else latency.fast
        self._latency = latency
        self._dice = dice
        self._base = between_us

    def draw(self) -> int:
        match self._latency:
            case Fixed(us=us):
                return us
            case Uniform(least_us=least, most_us=most):
                return self._dice.randint(least, most)
            case Gaussian(mean_us=mean, deviation_us=deviation, least_us=least):
                return max(least, round(self._dice.gauss(mean, deviation)))
            case ByRegion(jitter=jitter):
                return self._base + (round(self._dice.expovariate(1 / (jitter * self._base))) if jitter else 0)
            case TwoClass():
                raise AssertionError("a class was thrown when the link was made")


class _Link:
    __slots__ = ("busy_until", "clogs", "cuts", "held", "last_arrival", "loss", "sampler", "spec")

    def __init__(self, spec: LinkSpec, sampler: Sampler, loss: GilbertElliott | None) -> None:
        self.spec = spec
        self.sampler = sampler
        self.loss = loss
        self.last_arrival = 0
        self.busy_until = 0
        self.cuts = 0  # partitions now in force: what is sent is lost
        self.clogs = 0  # clogs now in force: what is sent waits in `held`
        self.held: list[Any] = []


def _place(to: Address) -> Address:
    """The host that an address belongs to, or belonged to: `c0#2` is what c0 has called itself since it forgot."""
    return Address(to.partition("#")[0])


class Network:
    """All links of a world."""

    def __init__(
        self, world: "World", default: LinkSpec, rules: tuple[LinkRule, ...], latencies: LatencyTable | None
    ) -> None:
        self._world = world
        self._default = default
        self._rules = rules
        self._latencies = latencies
        self._links: dict[tuple[Address, Address], _Link] = {}
        self.sent = 0
        self.lost = 0
        self.sending_us = 0
        """How long a host is busy with each message it sends, one after the other; stages that need it set it."""
        self._busy_until: dict[Address, int] = {}

    def carry(self, source: "SimulatedHost", to: Address, message: Any) -> None:
        """Takes a message from `source`; it arrives at `to` after its latency, perhaps twice or never."""
        if self.sending_us:
            done = max(self._world.now, self._busy_until.get(source.address, 0)) + self.sending_us
            self._busy_until[source.address] = done
            self._world.at(done, self._carry, source, to, message)
        else:
            self._carry(source, to, message)

    def _carry(self, source: "SimulatedHost", to: Address, message: Any) -> None:
        link = self._link(source.address, _place(to))
        self.sent += 1
        if link.cuts or (link.loss is not None and link.loss.loses()):
            self.lost += 1
        elif link.clogs:
            link.held.append(message)
        else:
            self._depart(link, to, message)

    def latency_between(self, a: "SimulatedHost", b: "SimulatedHost") -> int:
        """One-way latency by region alone: what the direct path between two hosts costs."""
        if a.region == b.region or self._latencies is None:
            return 0
        return self._latencies.between(a.region, b.region)

    def _depart(self, link: _Link, to: Address, message: Any) -> None:
        world, spec = self._world, link.spec
        start = world.now
        if spec.bytes_per_s is not None:
            start = max(start, link.busy_until) + len(msgspec.msgpack.encode(message)) * 1_000_000 // spec.bytes_per_s
            link.busy_until = start
        copies = 2 if spec.duplicate and world.dice("links").random() < spec.duplicate else 1
        for _ in range(copies):
            arrival = start + link.sampler.draw()
            if spec.fifo:
                arrival = link.last_arrival = max(arrival, link.last_arrival)
            world.at(arrival, self._arrive, to, message)

    def _arrive(self, to: Address, message: Any) -> None:
        host = self._world.hosts.get(_place(to))
        if host is not None and (to == host.address or to == host.name):
            host.hear(message)

    def _link(self, a: Address, b: Address) -> _Link:
        link = self._links.get((a, b))
        if link is None:
            spec = next((rule.link for rule in reversed(self._rules) if rule.names(a, b)), self._default)
            dice = self._world.dice("links")
            between = 0
            if isinstance(spec.latency, ByRegion):
                between = spec.latency.within_us
                if a in self._world.hosts and b in self._world.hosts:
                    between = max(between, self.latency_between(self._world.hosts[a], self._world.hosts[b]))
            loss = GilbertElliott(spec.loss, dice) if spec.loss is not None else None
            link = self._links[a, b] = _Link(spec, Sampler(spec.latency, dice, between), loss)
        return link

    def hinder(self, pairs: Iterable[tuple[Address, Address]], how: Literal["cut", "clog"]) -> None:
        """Cut links lose what is sent over them, clogged links keep it; what is under way already arrives."""
        for a, b in pairs:
            if how == "cut":
                self._link(a, b).cuts += 1
            else:
                self._link(a, b).clogs += 1

    def heal(self, pairs: Iterable[tuple[Address, Address]], how: Literal["cut", "clog"]) -> None:
        """Ends one `hinder` of the same pairs; a link hindered twice needs two."""
        for a, b in pairs:
            link = self._link(a, b)
            if how == "cut":
                link.cuts -= 1
                continue
            link.clogs -= 1
            if not link.clogs:
                held, link.held = link.held, []
                for message in held:
                    self._depart(link, b, message)
