"""Deadline-constrained causal order of one member: what it holds back, delivers and turns away (specs, section 0).

One machine for both layers. A frame goes to groups; a broker is a group of its own, topics are groups of topics. What
was delivered or passed by (`passed`, C of the spec) decides what may still come and changes by own deliveries alone;
what is known (`known`, K) is only for sending. A frame waits for what its past names until that is delivered, or its
deadline is over, or the *logical deadline* of the frame comes: the least deadline of it and of all that wait for it.

Order is kept whatever clocks, losses and delays do: clocks decide what is waited for, never what comes first.
"""

from bisect import insort
from collections.abc import Iterable, Mapping

from msgspec import Struct

from unisono.errors import InvariantError
from unisono.protocols.causal.config import ENTRIES_MAX, CausalConfig
from unisono.protocols.causal.knowledge import CausalKnowledge, merge_past
from unisono.protocols.causal.messages import CausalFrame, FrameFate, FrameId, Key, Past


class SettledFrame(Struct, frozen=True):
    """What has become of a frame; with a delivery, the ids it depends on that did not come."""

    frame: CausalFrame
    fate: FrameFate
    bypassed: tuple[tuple[FrameId, int], ...] = ()
    """Each with its group; the id is the newest that is known of its sender there."""
    late: bool = False


class HeldFrame:
    """A frame that is held back. `due` is when it waits no longer, `block` the first entry it was seen to wait for."""

    __slots__ = ("block", "due", "frame")

    def __init__(self, frame: CausalFrame, due: int) -> None:
        self.frame, self.due = frame, due
        self.block: tuple[Key, int, int] | None = None

    def __lt__(self, other: "HeldFrame") -> bool:
        return (self.frame.stamp, self.frame.sender) < (other.frame.stamp, other.frame.sender)


class CausalOrder:
    """The state of section 0. Times are ticks of the own clock, which never goes back."""

    def __init__(
        self,
        config: CausalConfig,
        me: int | None = None,
        patience_ticks: int | None = None,
        knowledge: CausalKnowledge | None = None,
    ) -> None:
        """`me` is the incarnation of a sender. `patience_ticks`: nothing that has come is held back for longer."""
        self.config, self.me = config, me
        self.knowledge = knowledge or CausalKnowledge()
        self.patience_ticks = patience_ticks
        self.floors: dict[int, int] = {}  # groups subscribed to, and the first stamp that is owed there
        self.passed: dict[Key, int] = {}
        self.clock = 0
        self.counts: dict[FrameFate, int] = {}
        self._waiting: list[HeldFrame] = []  # by stamp and sender
        self._stamps: dict[Key, list[int]] = {}  # of those that wait
        self._seen: dict[FrameId, None] = {}
        self._swept = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def known(self) -> Past:
        return self.knowledge.past

    @property
    def high(self) -> int:
        """The largest stamp known."""
        return self.knowledge.high

    def read_clock(self, clock: int) -> int:
        """Ticks that go back are not believed."""
        self.clock = max(self.clock, clock)
        return self.clock

    def has_seen(self, frame: FrameId) -> bool:
        return frame in self._seen

    def owes(self, group: int, stamp: int) -> bool:
        """Whether what was said to this group at this stamp is for us: a frame may be for another of its groups."""
        return stamp >= self.floors.get(group, stamp + 1)

    # subscribing

    def subscribe(self, groups: Iterable[int], clock: int) -> None:
        """From now on; what may have been stamped before is neither owed nor delivered."""
        floor = self.read_clock(clock) + self.config.eps_ticks + 1
        for group in groups:
            self.floors.setdefault(group, floor)

    def unsubscribe(self, groups: Iterable[int], clock: int) -> list[SettledFrame]:
        for group in groups:
            self.floors.pop(group, None)
        strange = [waiting for waiting in self._waiting if not self._is_mine(waiting.frame)]
        for waiting in strange:
            self._remove(waiting)
        return [self._end(waiting.frame, FrameFate.NOT_MINE) for waiting in strange] + self.pump(clock)

    def rejoin(self, clock: int) -> None:
        """As if everything had been subscribed to now: after a step of the clock. `release` first."""
        groups = list(self.floors)
        self.floors.clear()
        self.subscribe(groups, clock)

    def release(self, clock: int) -> list[SettledFrame]:
        """Lets go of all that waits, in its order."""
        clock = self.read_clock(clock)
        return [self._deliver(waiting, clock) for waiting in list(self._waiting)]

    # sending

    def earliest(self, clock: int) -> int:
        """The stamp that a frame sent now would have."""
        return max(self.read_clock(clock), self.high + 1)

    def may_send(self, clock: int) -> bool:
        """Stamps run ahead of the own clock by no more than two clocks may be apart."""
        return self.earliest(clock) <= self.clock + self.config.eps_ticks

    def send(self, groups: tuple[int, ...], deadline: int, body: object, clock: int) -> CausalFrame:
        """A frame of our own; it is to be given to `receive` like any other."""
        if self.me is None or not self.may_send(clock):
            raise InvariantError("a frame of our own needs a name, and a clock that may send now")
        stamp = self.earliest(clock)
        frame = CausalFrame(self.me, stamp, groups, deadline, self.past_at(stamp), body)
        self.knowledge.high = stamp
        merge_past(self.known, {(self.me, group): (stamp, deadline) for group in groups})
        return frame

    def past_at(self, stamp: int) -> Past:
        """What is known and still matters; the rest is forgotten."""
        eps, horizon = self.config.eps_ticks, self.config.horizon_ticks
        if self.config.late == "drop":
            kept = {key: entry for key, entry in self.known.items() if entry[1] + eps >= stamp}
        else:
            kept = {key: entry for key, entry in self.known.items() if entry[0] + horizon + eps >= stamp}
        if len(kept) < len(self.known):
            self.knowledge.past = dict(kept)
        return kept

    def learn(self, past: Mapping[Key, tuple[int, int]], high: int) -> None:
        """What a client knows, or what became of its publication: for sending only, never for the receive test."""
        merge_past(self.known, past)
        self.knowledge.high = max(self.high, high)

    # receiving

    def receive(self, frame: CausalFrame, clock: int) -> list[SettledFrame]:
        """A frame has come; what has become of it, and of others by it."""
        clock = self.read_clock(clock)
        fate = self._judge(frame, clock)
        if fate is not None:
            return [self._end(frame, fate)]
        patience = self.patience_ticks
        due = frame.deadline if patience is None else min(frame.deadline, clock + patience)
        insort(self._waiting, HeldFrame(frame, due))
        for group in frame.groups:
            insort(self._stamps.setdefault((frame.sender, group), []), frame.stamp)
        settled = self.pump(clock)
        while len(self._waiting) > self.config.pending_max:
            settled.append(self._overflow())
        return settled

    def _judge(self, frame: CausalFrame, clock: int) -> FrameFate | None:
        """The end of a frame that is not accepted. Whatever it is, but for FUTURE and FULL, it is final: a later
        subscription begins above every stamp that was heard before it."""
        if frame.id in self._seen:
            return FrameFate.DUP
        if frame.stamp > clock + self.config.eps_ticks:
            return FrameFate.FUTURE
        self._sweep(clock)
        if len(self._seen) >= self.config.seen_max:
            return FrameFate.FULL
        self._seen[frame.id] = None
        mine = [group for group in frame.groups if group in self.floors]
        if not mine:
            return FrameFate.NOT_MINE
        if all(frame.stamp < self.floors[group] for group in mine):
            return FrameFate.PRE_JOIN
        if any(self.passed.get((frame.sender, group), -1) >= frame.stamp for group in mine):
            return FrameFate.SUCC_DELIVERED
        if clock > frame.deadline:
            if self.config.late == "drop" or self.is_forgotten(frame.stamp):
                return FrameFate.LATE
            if self._blocking(frame, clock) is not None:
                return FrameFate.LATE_BLOCKED
        return None

    def _sweep(self, clock: int) -> None:
        """Forgets what cannot come again: older stamps are late by their age alone. By age only: a deadline of its own
        may keep an older frame of a sender alive longer than a newer one."""
        if clock == self._swept:
            return
        self._swept = clock
        self.past_at(self.high + 1)  # whoever never sends forgets here
        oldest = clock - self.config.horizon_ticks
        self._seen = {frame: None for frame in self._seen if frame[1] >= oldest}
        self.passed = {key: stamp for key, stamp in self.passed.items() if stamp >= oldest}

    def is_forgotten(self, stamp: int) -> bool:
        """Whether so old that nobody remembers what became of it: it may have been delivered long ago."""
        return stamp < self.clock - self.config.horizon_ticks

    def _is_mine(self, frame: CausalFrame) -> bool:
        return any(group in self.floors for group in frame.groups)

    def _blocking(self, frame: CausalFrame, clock: int) -> tuple[Key, int, int] | None:
        """Something in the past of the frame that may still come, and was not delivered or passed by."""
        for key, (stamp, deadline) in frame.past.items():
            if clock <= deadline and stamp > self.passed.get(key, -1) and self.owes(key[1], stamp):
                return key, stamp, deadline
        return None

    def _is_ready(self, waiting: HeldFrame, clock: int) -> bool:
        if waiting.block is not None:
            key, stamp, deadline = waiting.block
            if self.owes(key[1], stamp) and stamp > self.passed.get(key, -1) and clock <= deadline:
                return False
        waiting.block = self._blocking(waiting.frame, clock)
        return waiting.block is None

    def _has_pending_cause(self, frame: CausalFrame) -> bool:
        for key, (stamp, _) in frame.past.items():
            stamps = self._stamps.get(key)
            if stamps and stamps[0] <= stamp:
                return True
        return False

    def pump(self, clock: int) -> list[SettledFrame]:
        """Delivers all that waits for nothing, or can wait no longer; the smallest stamp first."""
        clock = self.read_clock(clock)
        settled: list[SettledFrame] = []
        due = self._due(clock)
        while (found := self._next(clock, due)) is not None:
            settled.append(self._deliver(found, clock))
        return settled

    def _next(self, clock: int, due: dict[FrameId, None]) -> HeldFrame | None:
        for waiting in self._waiting:
            frame = waiting.frame
            if (frame.id in due or self._is_ready(waiting, clock)) and not self._has_pending_cause(frame):
                return waiting
        return None

    def _due(self, clock: int) -> dict[FrameId, None]:
        """Those whose logical deadline has come: something that waits for them, directly or not, can wait no longer."""
        if all(waiting.due > clock for waiting in self._waiting):
            return {}
        due: dict[FrameId, None] = {}
        for at in range(len(self._waiting) - 1, -1, -1):  # causes have smaller stamps than what depends on them
            frame = self._waiting[at].frame
            if self._waiting[at].due <= clock or frame.id in due:
                due[frame.id] = None
                for cause in self._waiting[:at]:
                    if precedes(cause.frame, frame):
                        due[cause.frame.id] = None
        return due

    def _deliver(self, waiting: HeldFrame, clock: int) -> SettledFrame:
        frame = waiting.frame
        self._remove(waiting)
        bypassed: dict[FrameId, int] = {}
        for key, (stamp, _) in frame.past.items():
            if stamp > self.passed.get(key, -1):
                if self.owes(key[1], stamp):
                    bypassed.setdefault((key[0], stamp), key[1])
                self.passed[key] = stamp
        for group in frame.groups:
            key = (frame.sender, group)
            self.passed[key] = max(self.passed.get(key, -1), frame.stamp)
        merge_past(self.known, frame.past)
        merge_past(self.known, {(frame.sender, group): (frame.stamp, frame.deadline) for group in frame.groups})
        self.knowledge.high = max(self.high, frame.stamp)
        self._count(FrameFate.DELIVERED)
        return SettledFrame(frame, FrameFate.DELIVERED, tuple(bypassed.items()), clock > frame.deadline)

    def _overflow(self) -> SettledFrame:
        """Drops what nothing waits for and what has the most time left."""
        tops = [
            waiting
            for at, waiting in enumerate(self._waiting)
            if not any(precedes(waiting.frame, later.frame) for later in self._waiting[at + 1 :])
        ]
        last = max(tops, key=lambda waiting: (waiting.frame.deadline, waiting.frame.stamp, waiting.frame.sender))
        self._remove(last)
        return self._end(last.frame, FrameFate.OVERFLOW)

    def _remove(self, waiting: HeldFrame) -> None:
        frame = waiting.frame
        self._waiting.remove(waiting)
        for group in frame.groups:
            stamps = self._stamps[frame.sender, group]
            stamps.remove(frame.stamp)
            if not stamps:
                del self._stamps[frame.sender, group]

    def _end(self, frame: CausalFrame, fate: FrameFate) -> SettledFrame:
        self._count(fate)
        return SettledFrame(frame, fate)

    def _count(self, fate: FrameFate) -> None:
        self.counts[fate] = self.counts.get(fate, 0) + 1

    # time

    def wakes_at(self) -> int | None:
        """The next tick at which something is delivered although nothing comes."""
        if not self._waiting:
            return None
        return min(min(w.due, w.block[2] + 1) if w.block is not None else w.due for w in self._waiting)


def precedes(cause: CausalFrame, effect: CausalFrame) -> bool:
    """`cause` is in the past of `effect`."""
    for group in cause.groups:
        entry = effect.past.get((cause.sender, group))
        if entry is not None and entry[0] >= cause.stamp:
            return True
    return False


def why_malformed(frame: CausalFrame, config: CausalConfig) -> str | None:
    """What no conforming sender says; None for a sound frame."""
    longest = config.deadline_ticks_max
    if len(frame.past) > ENTRIES_MAX:
        return f"its vector has {len(frame.past)} entries"
    if not frame.groups or any(a >= b for a, b in zip(frame.groups, frame.groups[1:])):
        return "its groups are none, or not sorted"
    if not 0 <= frame.deadline - frame.stamp <= longest:
        return f"its deadline is {frame.deadline - frame.stamp} ticks after its stamp"
    for (sender, group), (stamp, deadline) in frame.past.items():
        if stamp >= frame.stamp:
            return f"it depends on something of its own tick or later: {sender} in group {group}"
        if deadline - stamp > longest or frame.stamp - stamp > config.horizon_ticks + config.eps_ticks:
            return f"it depends on something too old, or too long: {sender} in group {group}"
    return None
