"""The simulated event notification service: topics, members, and paths that take their time.

One service, three kinds of paths. `direct`: each event takes the latency between publisher and subscriber. `reorder`:
every pair of subscriber and topic has a speed of its own, spread over decades, so events overtake each other at will
(paper 000, section 1: "multiple paths with different lengths and latencies"). `scribe`: a rendezvous multicast tree
(`unisono.sim.scribe`). Any of them may lose and repeat.

What it keeps to: an event published after `Joined` reached the subscriber is heard unless it is lost; between `Join`
and `Joined` it may go either way; after `Leave` nothing is heard. A crashed host loses its memberships.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from unisono.errors import MisuseError
from unisono.machine import Heard, Joined, Machine, NotTaken
from unisono.model.event import Payload
from unisono.model.ids import Address, Topic
from unisono.sim.links import ByRegion, GilbertElliott, Latency, Loss, Sampler
from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost
    from unisono.sim.relay import Relay
    from unisono.sim.world import World


REFUSED_US = 50_000
"""A refusal takes up to this long: it comes before the number of the payload, or after it."""


class EnsSpec(Spec, frozen=True):
    """What the service beneath is like."""

    kind: Literal["direct", "reorder", "scribe"] = "direct"
    latency: Latency = ByRegion()
    """`direct`: of the path from publisher to subscriber; `scribe`: of one hop between overlay nodes."""
    fifo: bool = True
    """`direct`: events of one publisher stay in order on their way to one subscriber."""
    fastest_us: Span = Span(100)
    slowest_us: Span = Span(1_000_000)
    """`reorder`: the mean delay of a (subscriber, topic) is drawn evenly over the decades between these two."""
    loss: Loss | None = None
    """`direct`, `reorder`: per (subscriber, topic); `scribe`: per hop, so that a loss is felt by a whole subtree."""
    duplicate: float = 0.0
    refuse: float = 0.0
    """Share of payloads that it does not take, as a full stream would; who broadcast one is told so."""
    keep_us: Span = Span(0)
    """It keeps what it confirms: keeping a payload takes up to this long, in the order of publication. What has left a
    process and is not kept when that process ends is gone. 0: it keeps nothing, and confirms at once."""
    nodes: int = 0
    """`scribe`: overlay nodes besides the hosts."""


class Paths(Protocol):
    """How long what takes."""

    copies: int
    """How many copies of messages were put on links so far."""

    def join(self, host: "SimulatedHost", topic: Topic) -> int:
        """The time until a subscription is in force."""
        ...

    def leave(self, host: "SimulatedHost", topic: Topic) -> None: ...

    def spread(
        self, source: "SimulatedHost", topic: Topic, members: Iterable["SimulatedHost"]
    ) -> list[tuple["SimulatedHost", int]]:
        """Whom an event reaches, and after how long."""
        ...


class SimulatedEns:
    """Members and deliveries; time is made by `Paths`."""

    def __init__(self, world: "World", spec: EnsSpec, paths: Paths) -> None:
        self._world = world
        self._spec = spec
        self.paths = paths
        self._members: dict[Topic, dict[Address, int]] = {}  # address -> its membership; a new one after each leave
        self._memberships = 0
        self._relay: Relay | None = None
        self.kept: dict[str, Topic] = {}
        """Events whose payloads it keeps."""
        self._done_at: dict[str, int] = {}  # per source: when what it published last is kept, or counted
        self.on_copies: Callable[[Any, int], None] | None = None
        """An observer of every message and the number of its copies that were put on links."""

    def forward_by(self, build: Callable[[str], Machine]) -> None:
        """Interior nodes of the multicast tree run these machines instead of just passing everything on."""
        from unisono.sim.relay import Relay
        from unisono.sim.scribe import ScribePaths

        if not isinstance(self.paths, ScribePaths):
            raise MisuseError(f"an ENS of kind {self._spec.kind!r} has no interior nodes; 'scribe' has")
        self._relay = Relay(self._world, self.paths, build, self._arrive, self._copied)

    def join(self, host: "SimulatedHost", topic: Topic) -> None:
        self._memberships += 1
        answer = self.paths.join(host, topic)
        in_force = self._world.dice("ens").randint(0, answer)
        self._world.after(in_force, self._admit, host, topic, self._memberships, host.life)
        self._world.after(answer, self._answer, host, topic, self._memberships)

    def _admit(self, host: "SimulatedHost", topic: Topic, membership: int, life: int) -> None:
        if host.life == life and host.wants(topic):
            self._members.setdefault(topic, {}).setdefault(host.address, membership)

    def _answer(self, host: "SimulatedHost", topic: Topic, membership: int) -> None:
        if self._members.get(topic, {}).get(host.address) == membership:
            host.receive(Joined(topic))

    def leave(self, host: "SimulatedHost", topic: Topic) -> None:
        self._members.get(topic, {}).pop(host.address, None)
        self.paths.leave(host, topic)

    def forget(self, host: "SimulatedHost") -> None:
        """The host has crashed."""
        for topic in self._members:
            self.leave(host, topic)

    def publish(self, source: "SimulatedHost", topic: Topic, message: Any, control: bool) -> None:
        """Carries a message to everybody who is a member now, and confirms it to a source that asks for that."""
        world, heard = self._world, Heard(topic, message, control)
        if isinstance(message, Payload) and self._spec.refuse and world.dice("refuse").random() < self._spec.refuse:
            after = world.dice("refuse").randint(0, REFUSED_US)
            if self._spec.keep_us:
                at = self._in_order(source, after)
                world.at(at, self._count, source, source.life, NotTaken(topic, message.request, "the broker is full"))
                return
            world.after(after, source.receive, NotTaken(topic, message.request, "the broker is full"))
            source.confirm_broadcast(after)  # it is counted, and no more
            return
        if self._relay is not None:
            self._relay.publish(source, heard)
        else:
            members, before = self._members.get(topic, {}), self.paths.copies
            for host, delay in self.paths.spread(source, topic, [world.hosts[address] for address in members]):
                self._arrive(host, heard, delay)
            self._copied(message, self.paths.copies - before)
        if self._spec.keep_us:
            at = self._in_order(source, world.dice("keep").randint(0, self._spec.keep_us))
            world.at(at, self._keep, source, source.life, topic, message)
        else:
            source.confirm_broadcast(world.dice("ens").randint(0, 1_000))

    def _in_order(self, source: "SimulatedHost", delay: int) -> int:
        at = self._done_at[source.name] = max(self._world.now + delay, self._done_at.get(source.name, 0))
        return at

    def _count(self, source: "SimulatedHost", life: int, rejected: NotTaken) -> None:
        if source.life == life:
            source.receive(rejected)
            source.confirm_broadcast(0)

    def _keep(self, source: "SimulatedHost", life: int, topic: Topic, message: Any) -> None:
        if source.life != life:
            return  # it was in a buffer of the process
        if isinstance(message, Payload):
            self.kept[message.event.id] = topic
        source.confirm_broadcast(self._world.dice("keep").randint(0, 1_000))

    def note_kept(self) -> None:
        """Somebody reads all that is kept, of every topic."""
        name = self._world.topic_name
        for event, topic in self.kept.items():
            self._world.note("kept", "reader", event=event, topic=name(topic))
        for topic in dict.fromkeys(self.kept.values()):
            self._world.note("searched", "reader", topic=name(topic))

    def _copied(self, message: Any, copies: int) -> None:
        if self.on_copies is not None:
            self.on_copies(message, copies)

    def _arrive(self, host: "SimulatedHost", heard: Heard, delay: int) -> None:
        """On its way to a subscriber, for so long; nothing if it is none."""
        membership = self._members.get(heard.topic, {}).get(host.address)
        if membership is None:
            return
        self._world.after(delay, self._deliver, host, heard, membership)
        duplicate, dice = self._spec.duplicate, self._world.dice("ens")
        if duplicate and dice.random() < duplicate:
            self._world.after(delay + dice.randint(0, 2 * delay), self._deliver, host, heard, membership)

    def _deliver(self, host: "SimulatedHost", heard: Heard, membership: int) -> None:
        if self._members.get(heard.topic, {}).get(host.address) == membership:
            host.receive(heard)


class PathLosses:
    """One Gilbert-Elliott chain per key, if anything is lost at all."""

    def __init__(self, world: "World", loss: Loss | None) -> None:
        self._world = world
        self._loss = loss
        self._chains: dict[tuple[Any, ...], GilbertElliott] = {}

    def lost(self, *key: Any) -> bool:
        if self._loss is None:
            return False
        if key not in self._chains:
            self._chains[key] = GilbertElliott(self._loss, self._world.dice("ens loss"))
        return self._chains[key].loses()


class DirectPaths:
    """From each publisher straight to each subscriber."""

    def __init__(self, world: "World", spec: EnsSpec) -> None:
        self._world = world
        self._spec = spec
        self._losses = PathLosses(world, spec.loss)
        self._samplers: dict[tuple[Address, Address], Sampler] = {}
        self.copies = 0
        self._last: dict[tuple[Address, Address], int] = {}

    def join(self, host: "SimulatedHost", topic: Topic) -> int:
        return 2 * self._draw(host, host)

    def leave(self, host: "SimulatedHost", topic: Topic) -> None:
        pass

    def spread(
        self, source: "SimulatedHost", topic: Topic, members: Iterable["SimulatedHost"]
    ) -> list[tuple["SimulatedHost", int]]:
        reached = []
        for host in members:
            self.copies += 1
            if self._losses.lost(host.address, topic):
                continue
            delay = self._draw(source, host)
            if self._spec.fifo:
                key = (source.address, host.address)
                arrival = self._last[key] = max(self._world.now + delay, self._last.get(key, 0))
                delay = arrival - self._world.now
            reached.append((host, delay))
        return reached

    def _draw(self, source: "SimulatedHost", host: "SimulatedHost") -> int:
        key = (source.address, host.address)
        sampler = self._samplers.get(key)
        if sampler is None:
            latency, between = self._spec.latency, 0
            if isinstance(latency, ByRegion):
                between = max(latency.within_us, self._world.network.latency_between(source, host))
            sampler = self._samplers[key] = Sampler(latency, self._world.dice("ens"), between)
        return sampler.draw()


class ReorderingPaths:
    """A speed per (subscriber, topic), from `fastest_us` to `slowest_us`, and exponential delays around it."""

    def __init__(self, world: "World", spec: EnsSpec) -> None:
        self._dice = world.dice("ens")
        self._spec = spec
        self._losses = PathLosses(world, spec.loss)
        self._means: dict[tuple[Address, Topic], float] = {}
        self.copies = 0

    def join(self, host: "SimulatedHost", topic: Topic) -> int:
        return self._draw(host, topic)

    def leave(self, host: "SimulatedHost", topic: Topic) -> None:
        pass

    def spread(
        self, source: "SimulatedHost", topic: Topic, members: Iterable["SimulatedHost"]
    ) -> list[tuple["SimulatedHost", int]]:
        reached = []
        for host in members:
            self.copies += 1
            if not self._losses.lost(host.address, topic):
                reached.append((host, self._draw(host, topic)))
        return reached

    def _draw(self, host: "SimulatedHost", topic: Topic) -> int:
        key = (host.address, topic)
        if key not in self._means:
            fastest, slowest = max(1, self._spec.fastest_us), max(1, self._spec.slowest_us)
            self._means[key] = fastest * (slowest / fastest) ** self._dice.random()
        return round(self._dice.expovariate(1 / self._means[key]))


def build_ens(world: "World", spec: EnsSpec) -> SimulatedEns:
    match spec.kind:
        case "direct":
            return SimulatedEns(world, spec, DirectPaths(world, spec))
        case "reorder":
            return SimulatedEns(world, spec, ReorderingPaths(world, spec))
        case "scribe":
            from unisono.sim.scribe import ScribePaths

            return SimulatedEns(world, spec, ScribePaths(world, spec))
