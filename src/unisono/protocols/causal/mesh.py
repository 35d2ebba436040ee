"""What brokers and subscribers have in common: the order, the gossip, and their two timers."""

from random import Random

from unisono.machine import CancelTimer, Effect, Refuse, Send, SetTimer
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.causal.clocks import ClockChange, how_wrong
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.gossip import CausalDissemination
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.messages import (
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalMember,
    CausalRequest,
)
from unisono.protocols.causal.order import CausalOrder, SettledFrame

ROUND, DUE = "round", "due"


class CausalMesh:
    """A member of the mesh; not a machine, but most of two."""

    def __init__(
        self, me: Address, region: str, order: CausalOrder, seeds: tuple[CausalMember, ...], dice: Random
    ) -> None:
        self.order, self.config, self._dice = order, order.config, dice
        self.gossip = CausalDissemination(me, region, order, seeds, dice)
        self._woken: int | None = None
        self._runs = False

    def clock(self, now: Micros) -> int:
        return self.order.read_clock(now // self.config.tick_us)

    def start(self, now: Micros) -> list[Effect]:
        """Rounds begin, at a phase of our own."""
        if self._runs:
            return []
        self._runs = True
        return [SetTimer(ROUND, Micros(now + self._dice.randrange(self.config.round_ticks * self.config.tick_us) + 1))]

    def hear(
        self, message: CausalGossip | CausalRequest | CausalFrames, clock: int
    ) -> tuple[list[SettledFrame], list[Effect]]:
        match message:
            case CausalGossip(push=push):
                settled, refused = self._take_others(push, clock)
                return settled, refused + self.gossip.hear(message, clock)
            case CausalFrames(frames=frames):
                return self._take_others(frames, clock)
            case CausalRequest():
                return [], self.gossip.answer(message, clock)

    def _take_others(self, frames: tuple[CausalFrame, ...], clock: int) -> tuple[list[SettledFrame], list[Effect]]:
        """Whoever says something in our name that we have not said would have us take our own next frame for a copy."""
        me = self.order.me
        forged = [frame for frame in frames if frame.sender == me and not self.order.has_seen(frame.id)]
        if not forged:
            return self.take(frames, clock), []
        self.gossip.count("in_our_name", len(forged))
        reason = f"{len(forged)} frames of {me}, which we are and have not sent lately: is there another of that name?"
        return self.take(tuple(frame for frame in frames if frame not in forged), clock), [Refuse(reason)]

    def take(self, frames: tuple[CausalFrame, ...], clock: int) -> list[SettledFrame]:
        settled: list[SettledFrame] = []
        for frame in frames:
            is_new = not self.order.has_seen(frame.id)
            settled += self.order.receive(frame, clock)
            if is_new and self.order.has_seen(frame.id):
                self.gossip.keep(frame, clock)
        return settled

    def round(self, now: Micros) -> list[Effect]:
        clock = self.clock(now)
        effects = self.gossip.round(clock)
        effects.append(SetTimer(ROUND, Micros(now + self.config.round_ticks * self.config.tick_us)))
        return effects

    def judge_clock(self) -> ClockChange | None:
        """Once a round, after it: whether the own clock has turned out to be off, or to be right again. Then what waits
        has to be let go, for nothing that it waits for will be taken any more, and everything subscribed to anew."""
        clocks = self.gossip.clocks
        change = clocks.end_round()
        if change is not None or clocks.off_by:
            self.order.knowledge.clock_off_by = clocks.off_by
        if change == "right":
            self.gossip.count("rejoined")
        return change

    @property
    def wrong_clock(self) -> str | None:
        """How wrong the own clock is; None: as far as is known it is right."""
        off_by = self.order.knowledge.clock_off_by
        return how_wrong(off_by, self.config) if off_by else None

    def wake(self) -> list[Effect]:
        """The timer of what is held back, if it has changed."""
        at = self.order.wakes_at()
        if at == self._woken:
            return []
        self._woken = at
        return [CancelTimer(DUE)] if at is None else [SetTimer(DUE, Micros(at * self.config.tick_us))]

    def woke(self) -> None:
        self._woken = None

    def farewell(self, clock: int) -> list[Effect]:
        """Passes on what it has not yet, and tells some that we leave; they tell others."""
        self.order.knowledge.clock_off_by = 0  # whoever stays says so again
        last = self.gossip.round(clock)
        me = self.gossip.me(clock)
        goodbye = CausalGossip(me, clock, left=((me.address, clock),))
        return last + [Send(partner.address, goodbye) for partner in self.gossip.view.partners(self.config.fanout)]

    def region_of(self, address: Address) -> str | None:
        """Of a member that is known here."""
        member = self.gossip.view.get(address)
        return None if member is None else member.region

    def report(self) -> dict[str, int]:
        """Counters by name."""
        order = self.order
        counters = {fate.value.replace("-", "_"): count for fate, count in order.counts.items()}
        counters |= {"pending": len(order), "held": self.gossip.held, "members": len(self.gossip.view)}
        counters |= {"vector_entries": len(order.known), "clock_is_off": int(self.gossip.clocks.off_by != 0)}
        return counters | self.gossip.counts


def seeds_of(addresses: tuple[tuple[Address, str], ...]) -> tuple[CausalMember, ...]:
    """Members that are known from the start: address and region."""
    return tuple(CausalMember(address, region, (), 0) for address, region in addresses)


def order_of(
    config: CausalConfig,
    me: int | None = None,
    patience_us: int | None = None,
    knowledge: CausalKnowledge | None = None,
) -> CausalOrder:
    ticks = None if patience_us is None else max(1, patience_us // config.tick_us)
    return CausalOrder(config, me, ticks, knowledge)
