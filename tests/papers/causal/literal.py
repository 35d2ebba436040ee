"""The procedures as the paper prints them (figures 4 and 5), and readings of the two-layer text that the model broke.

`PrintedBroker` is layer B with its matrix, `PrintedSubscriber` layer S with its colours. The subclasses of
`CausalOrder` each take one rule of the corrected machine back.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from unisono.protocols.causal.messages import CausalFrame, FrameFate, Key, Past
from unisono.protocols.causal.order import CausalOrder, SettledFrame

Matrix = dict[tuple[str, str], int]


class Printed(Struct, frozen=True):
    """A message of layer B with MCP_m, taken after its own entries were set (MB2 before MB3)."""

    name: str
    sender: str
    deadline: int
    past: Matrix


class PrintedBroker:
    """Figures 4 and 5, brokers to brokers. HeldFrame messages are looked at in the order they came."""

    def __init__(
        self, me: str, names: str, drop: Callable[[bool, bool], bool] = lambda late, wrong: late or wrong
    ) -> None:
        """`drop` reads RMB1: the figure says too_late or Del_viol_CO, the prose says and."""
        self.me, self.names, self._drop = me, names, drop
        self.past: Matrix = {(x, y): 0 for x in names for y in names}
        self.waiting: list[Printed] = []
        self.delivered: list[str] = []
        self.discarded: list[str] = []

    def multicast(self, name: str, to: str, deadline: int, now: int) -> Printed:
        for y in to:
            self.past[self.me, y] = now
        return Printed(name, self.me, deadline, dict(self.past))

    def receive(self, message: Printed, now: int) -> None:
        wrong = message.past[message.sender, self.me] <= self.past[message.sender, self.me]
        if self._drop(message.deadline < now, wrong):
            self.discarded.append(message.name)
            return
        self.waiting.append(message)
        self.look(now)

    def look(self, now: int) -> None:
        for message in list(self.waiting):
            if self._is_ok(message) or now == self._logical(message):
                self.waiting.remove(message)
                for key, time in message.past.items():
                    self.past[key] = max(self.past[key], time)
                self.delivered.append(message.name)

    def wants(self, theirs: Matrix) -> list[tuple[str, str]]:
        """What Request(m) asks for, from the other's matrix alone."""
        return [key for key, time in sorted(theirs.items()) if time > self.past[key]]

    def _is_ok(self, message: Printed) -> bool:
        j, i = message.sender, self.me
        others = (x for x in self.names if x != j)
        return self.past[j, i] < message.past[j, i] and all(message.past[x, i] <= self.past[x, i] for x in others)

    def _logical(self, message: Printed) -> int:
        return min(m.deadline for m in self.waiting if all(message.past[k] <= m.past[k] for k in message.past))


class Coloured(Struct, frozen=True):
    """A message of layer S with VLC_m."""

    name: str
    sender: str
    colours: Mapping[str, int]


class PrintedSubscriber:
    """Figure 5, brokers to subscribers: colours are compared as they stand."""

    def __init__(self, names: str) -> None:
        self.colours: dict[str, int] = dict.fromkeys(names, -1)
        self.delivered: list[str] = []
        self.discarded: list[str] = []

    def receive(self, message: Coloured) -> None:
        j = message.sender
        if message.colours[j] <= self.colours[j]:
            self.discarded.append(message.name)
            return
        for x, colour in message.colours.items():
            self.colours[x] = max(self.colours[x], colour)
        self.delivered.append(message.name)


class PrintedVector:
    """Layer S at a broker with rounds for colours: VLC_i changes by own sends only (MS2; RMS3 is for subscribers)."""

    def __init__(self, me: int) -> None:
        self.me, self.vector = me, dict[int, int]()

    def frame(self, stamp: int, group: int, life: int) -> CausalFrame:
        past = {(x, group): (t, t + life) for x, t in self.vector.items()}
        self.vector[self.me] = stamp
        return CausalFrame(self.me, stamp, (group,), stamp + life, past)

    def deliver(self, frame: CausalFrame) -> None:
        """Nothing: that is the hole."""


class KnowledgeInTheTest(CausalOrder):
    """The bridge rule: what others know is merged into the receive test (H2)."""

    def learn(self, past: Mapping[Key, tuple[int, int]], high: int) -> None:
        super().learn(past, high)
        for key, (stamp, _) in past.items():
            self.passed[key] = max(self.passed.get(key, -1), stamp)


class NoContext(CausalOrder):
    """A broker that does not hear what its clients know (H1)."""

    def learn(self, past: Mapping[Key, tuple[int, int]], high: int) -> None:
        pass


class LastDeadline(CausalOrder):
    """Early release by the deadline of the newest frame instead of the largest (section 2, DX)."""

    def send(self, groups: tuple[int, ...], deadline: int, body: object, clock: int) -> CausalFrame:
        frame = super().send(groups, deadline, body, clock)
        for group in groups:
            self.known[frame.sender, group] = (frame.stamp, deadline)
        return frame


class PrunedBySender(CausalOrder):
    """Identities are forgotten up to the newest that was, per sender (section 6, layer B) (H7)."""

    pruned: dict[int, int]

    def _judge(self, frame: CausalFrame, clock: int) -> FrameFate | None:
        self.pruned = getattr(self, "pruned", {})
        if frame.stamp <= self.pruned.get(frame.sender, -1):
            return FrameFate.DUP
        fate = super()._judge(frame, clock)
        if fate is FrameFate.LATE:
            self.pruned[frame.sender] = max(frame.stamp, self.pruned.get(frame.sender, -1))
        return fate


class NewestOverflows(CausalOrder):
    """When the buffer is full, the newest arrival goes (section 5) (H8)."""

    def receive(self, frame: CausalFrame, clock: int) -> list[SettledFrame]:
        if len(self) >= self.config.pending_max:
            return [self._end(frame, FrameFate.OVERFLOW)]
        return super().receive(frame, clock)


class FloorNow(CausalOrder):
    """A subscription begins with the stamp of the moment (section 5: floor := R0) (H9)."""

    def subscribe(self, groups: Iterable[int], clock: int) -> None:
        for group in groups:
            self.floors.setdefault(group, self.read_clock(clock))


class NoBump(CausalOrder):
    """Stamps are the own clock's, whatever the past has (H5)."""

    def earliest(self, clock: int) -> int:
        return self.read_clock(clock)


class ElidedAndLate(CausalOrder):
    """Entries that nobody has to wait for any more are left out although late frames are delivered (H12)."""

    def past_at(self, stamp: int) -> Past:
        return {key: entry for key, entry in self.known.items() if entry[1] + self.config.eps_ticks >= stamp}


class FinalFuture(CausalOrder):
    """A frame from the future is marked as seen (H14)."""

    def _judge(self, frame: CausalFrame, clock: int) -> FrameFate | None:
        fate = super()._judge(frame, clock)
        if fate is FrameFate.FUTURE:
            self._seen[frame.id] = None
        return fate


class StrangersUnseen(CausalOrder):
    """A frame for others leaves no trace (section 3) (H13)."""

    def _judge(self, frame: CausalFrame, clock: int) -> FrameFate | None:
        fate = super()._judge(frame, clock)
        if fate is FrameFate.NOT_MINE:
            del self._seen[frame.id]
        return fate
