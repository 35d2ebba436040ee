"""The deterministic world: one heap, virtual time in integer microseconds, one seeded dice per concern.

Everything that happens is an entry (time, counter, action, arguments) of the heap; entries of the same moment happen in
the order they were scheduled. Nothing reads a clock and nothing iterates a set, so a seed decides a run to the last
byte of its journal. Hosts (`unisono.sim.host`) drive the machines; links, the simulated ENS and the faults are the
world's other inhabitants.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from unisono.errors import InvariantError, MisuseError
from unisono.model.ids import Address, Topic
from unisono.model.journal import Kind, Record
from unisono.model.region import LatencyTable
from unisono.sim.disk import DriverSpec
from unisono.sim.ens import EnsSpec, SimulatedEns, build_ens
from unisono.sim.host import Arrange, Build, SimulatedHost, as_it_is
from unisono.sim.links import LinkRule, LinkSpec, Network
from unisono.sim.service import ServiceSpec

STEPS_MAX = 50_000_000
"""A run that takes more steps than this does not come to rest; the largest experiments stay well below."""


class World:
    """Time, dice, hosts, links, the ENS, and the journal of what happened."""

    def __init__(
        self,
        seed: int,
        *,
        links: LinkSpec = LinkSpec(),
        rules: tuple[LinkRule, ...] = (),
        latencies: LatencyTable | None = None,
        ens: EnsSpec = EnsSpec(),
        driver: DriverSpec = DriverSpec(),
        deadline_us: int | None = None,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.now = 0
        self.records: list[Record] = []
        self.deadline_us = deadline_us
        """How long after a subscriber first knew of an event it must have delivered it, for the judge `deadline`."""
        self.trace = trace
        """Also journal every message that leaves or arrives; costs more than the rest of the run together."""
        self.on_end: Callable[[], None] | None = None
        """What a stage still has to say when nothing is under way any more."""
        self.life_us: int | None = None
        """With deadlines of events: that of one which has none of its own, counted from its publication."""
        self.skew_us = 0
        self.tolerance_us: int | None = None
        """How far apart clocks may be, for judges that compare moments of two hosts."""
        self.cells: dict[str, tuple[str, ...]] = {}
        """Topics that are cut by a grid, and the topics that are their cells."""
        self.hosts: dict[Address, SimulatedHost] = {}
        self.published_us: dict[str, int] = {}
        """When each event was published, in world time: hosts' clocks may be off."""
        self._driver = driver
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counter = 0
        self._dice: dict[str, Random] = {}
        self._topics: dict[str, Topic] = {}
        self._names: list[str] = []
        self.network = Network(self, links, rules, latencies)
        self.ens: SimulatedEns = build_ens(self, ens)

    def dice(self, concern: str) -> Random:
        """The dice of one concern ("links", "workload"): using one never changes what another rolls."""
        if concern not in self._dice:
            self._dice[concern] = Random(f"{self.seed}/{concern}")
        return self._dice[concern]

    def topic(self, name: str) -> Topic:
        """The number of a topic name; names are interned in the order they are first spoken of."""
        if name not in self._topics:
            self._topics[name] = Topic(len(self._names))
            self._names.append(name)
        return self._topics[name]

    def topic_name(self, topic: Topic) -> str:
        return self._names[topic] if 0 <= topic < len(self._names) else f"topic-{topic}"

    def add(
        self,
        address: str,
        build: Build,
        *,
        region: str = "local",
        service: ServiceSpec | None = None,
        snapshot_every: int = 0,
        arrange: Arrange = as_it_is,
    ) -> SimulatedHost:
        """A new host, running `build(name)`; see `SimulatedHost`."""
        if address in self.hosts:
            raise MisuseError(f"there are two hosts named {address!r}")
        host = SimulatedHost(self, Address(address), build, region, service, snapshot_every, arrange, self._driver)
        self.hosts[host.address] = host
        host.start()
        return host

    def host(self, address: str) -> SimulatedHost:
        try:
            return self.hosts[Address(address)]
        except KeyError:
            raise MisuseError(f"no host {address!r}: there are {', '.join(self.hosts) or 'none'}") from None

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Lets `action(*arguments)` happen at `time`, or now if that is past."""
        self._counter = counter = self._counter + 1
        # int(): a Span must not become the time, which is written into journals.
        heappush(self._heap, (int(time) if time > self.now else self.now, counter, action, arguments))

    def after(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        self._counter = counter = self._counter + 1  # not by `at`: this is the hottest line of a run
        heappush(self._heap, (self.now + delay, counter, action, arguments))

    def note(self, kind: Kind, who: str | None = None, **columns: Any) -> None:
        """Writes a record into the journal."""
        self.records.append(Record(kind, self.now, who, **columns))

    def run(self, until: int | None = None, steps_max: int = STEPS_MAX) -> int:
        """Lets things happen until nothing is left, or the moment `until` is over. Returns the number of steps."""
        heap = self._heap
        limit = until if until is not None else (1 << 62)
        for steps in range(steps_max):
            if not heap or heap[0][0] > limit:
                return steps
            self.now, _, action, arguments = heappop(heap)
            action(*arguments)
        raise InvariantError(f"the run does not come to rest: {steps_max} steps, and it is only {self.now} us")

    @property
    def is_idle(self) -> bool:
        return not self._heap
