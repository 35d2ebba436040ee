"""Causal order with deadlines over acknowledged broadcast: what gossip is compared with (paper 003, figure 6).

A sender gives every member a copy of its frame, and again in every round until the member has acknowledged it or its
deadline is over. At most `window` of its frames may lack an acknowledgement; what comes meanwhile waits, and its life
goes by. Receivers order like ours. It is made better than it is: bandwidth costs nothing, acknowledgements neither, and
whoever dies is known to be dead at once.
"""

from collections import deque
from typing import Any, assert_never

from msgspec import Struct

from unisono.machine import Deliver, Effect, Fired, Heard, Restarted, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalFrame, FrameFate
from unisono.protocols.causal.order import CausalOrder, SettledFrame

ROUND, DUE = "round", "due"
GROUP = 0


class AcknowledgedFrame(Struct, frozen=True, tag="AckFrame"):
    """A copy of a frame, and whom to thank for it."""

    source: Address
    frame: CausalFrame


class FrameAcknowledged(Struct, frozen=True, tag="AckThanks"):
    """`member` has the sender's frame of this stamp."""

    member: Address
    stamp: int


class MemberGone(Struct, frozen=True, tag="AckGone"):
    """From the experiment: nobody has to wait for this member any more."""

    member: Address


class AcknowledgedSpeak(Struct, frozen=True, tag="AckSpeak"):
    """From the experiment: send this, to be of use for a life from now on."""

    body: Any


class AcknowledgedMember:
    """One who is told."""

    def __init__(self, me: Address, config: CausalConfig) -> None:
        self._me, self._config = me, config
        self.order = CausalOrder(config)
        self.order.subscribe((GROUP,), 0)
        self._woken: int | None = None

    def handle(self, message: AcknowledgedFrame | Fired | Restarted, now: Micros) -> list[Effect]:
        clock = self.order.read_clock(now // self._config.tick_us)
        match message:
            case AcknowledgedFrame(source=source, frame=frame):
                effects = _told(self.order.receive(frame, clock))
                effects.append(Send(source, FrameAcknowledged(self._me, frame.stamp)))
            case Fired():
                self._woken = None
                effects = _told(self.order.pump(clock))
            case Restarted():
                effects = []
            case _:
                assert_never(message)
        at = self.order.wakes_at()
        if at is not None and at != self._woken:
            self._woken = at
            effects.append(SetTimer(DUE, Micros(at * self._config.tick_us)))
        return effects


class AcknowledgedSender:
    """One who speaks, and hears the other senders so that its frames depend on theirs."""

    def __init__(
        self, me: Address, number: int, members: tuple[Address, ...], window: int, config: CausalConfig
    ) -> None:
        self._me, self._config, self._window = me, config, window
        self.order = CausalOrder(config, number)
        self.order.subscribe((GROUP,), 0)
        self._members = dict.fromkeys(members)
        self._queue: deque[tuple[int, Any]] = deque()  # deadline, what
        self._open: dict[int, tuple[CausalFrame, dict[Address, None]]] = {}  # stamp -> who has not acknowledged it

    def handle(
        self,
        message: AcknowledgedFrame | FrameAcknowledged | MemberGone | AcknowledgedSpeak | Fired | Restarted,
        now: Micros,
    ) -> list[Effect]:
        clock = self.order.read_clock(now // self._config.tick_us)
        effects: list[Effect] = []
        match message:
            case AcknowledgedSpeak(body=body):
                self._queue.append((clock + self._config.life_ticks, body))
            case AcknowledgedFrame(source=source, frame=frame):
                self.order.receive(frame, clock)
                effects.append(Send(source, FrameAcknowledged(self._me, frame.stamp)))
            case FrameAcknowledged(member=member, stamp=stamp):
                self._settle(member, stamp)
            case MemberGone(member=member):
                self._members.pop(member, None)
                for stamp in list(self._open):
                    self._settle(member, stamp)
            case Restarted():
                return [SetTimer(ROUND, Micros(now + self._config.tick_us))]
            case Fired():
                self.order.pump(clock)
                effects += self._say_again(clock)
                effects.append(SetTimer(ROUND, Micros(now + self._config.tick_us)))
            case _:
                assert_never(message)
        return effects + self._say(clock)

    def _settle(self, member: Address, stamp: int) -> None:
        if stamp in self._open:
            self._open[stamp][1].pop(member, None)
            if not self._open[stamp][1]:
                del self._open[stamp]

    def _say_again(self, clock: int) -> list[Effect]:
        self._open = {stamp: each for stamp, each in self._open.items() if clock <= each[0].deadline}
        copies = [(frame, waiting) for frame, waiting in self._open.values() if frame.stamp < clock]
        return [Send(to, AcknowledgedFrame(self._me, frame)) for frame, waiting in copies for to in waiting]

    def _say(self, clock: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and len(self._open) < self._window and self.order.may_send(clock):
            deadline, body = self._queue.popleft()
            if deadline < self.order.earliest(clock):
                continue  # nobody could be told in time
            frame = self.order.send((GROUP,), deadline, body, clock)
            self.order.receive(frame, clock)
            self._open[frame.stamp] = frame, dict(self._members)
            effects += [Send(to, AcknowledgedFrame(self._me, frame)) for to in self._members]
        return effects


def _told(settled: list[SettledFrame]) -> list[Effect]:
    return [
        Deliver(Heard(Topic(GROUP), each.frame.body, late=each.late))
        for each in settled
        if each.fate is FrameFate.DELIVERED
    ]
