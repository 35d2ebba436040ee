"""CausalDissemination by gossip (specs, section 4): push once, digests of possession, requests.

A member passes on whatever it gets, also what it is not subscribed to. What is new is pushed once, to some partners;
afterwards digests name what is held, and whoever lacks something asks for it while it is on time. A digest states what
is held and not what is known: what was passed by would look present, and gaps beneath the newest would be invisible.
"""

from collections.abc import Iterable
from random import Random

from unisono.machine import Effect, Send
from unisono.model.ids import Address
from unisono.protocols.causal.clocks import ClockComparison
from unisono.protocols.causal.messages import (
    CausalDigest,
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalMember,
    CausalRequest,
    FrameId,
)
from unisono.protocols.causal.order import CausalOrder
from unisono.protocols.causal.views import CausalView

DIGEST_SENDERS_MAX = 1024
DIGEST_BITS_MAX = 256


class CausalDissemination:
    """What one member holds, and what it says about it."""

    def __init__(
        self, me: Address, region: str, order: CausalOrder, seeds: tuple[CausalMember, ...], dice: Random
    ) -> None:
        self._me, self._region, self._order, self._config = me, region, order, order.config
        self.view = CausalView(me, region, order.config, dice)
        self.view.seed(seeds)
        self.clocks = ClockComparison(order.config, order.me is not None)
        self._have: dict[FrameId, CausalFrame] = {}
        self._fresh: dict[FrameId, CausalFrame] = {}
        self._asked: dict[FrameId, int] = {}
        self._answered: dict[Address, int] = {}
        self._quiet = 0  # rounds in which there was nothing to say
        self.counts: dict[str, int] = {}

    @property
    def held(self) -> int:
        return len(self._have)

    def count(self, what: str, many: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + many

    def me(self, clock: int) -> CausalMember:
        return CausalMember(self._me, self._region, tuple(self._order.floors), clock)

    def keep(self, frame: CausalFrame, clock: int) -> None:
        """Something new: it is held while it is on time, and pushed once."""
        if len(self._have) >= self._config.held_max and frame.sender != self._order.me:
            self.count("not_held")
        elif clock <= frame.deadline and frame.id not in self._have:
            self._have[frame.id] = self._fresh[frame.id] = frame

    def round(self, clock: int) -> list[Effect]:
        """Once a round: partners get what is new, and learn what is held."""
        self._have = {name: frame for name, frame in self._have.items() if clock <= frame.deadline}
        self._asked = {name: at for name, at in self._asked.items() if name in self._asked and at >= clock - 4}
        self._answered.clear()
        self.view.fade(clock)
        self._quiet = self._quiet + 1 if not self._have and not self._fresh else 0
        if self._quiet % self._config.idle_rounds and len(self.view):
            return []
        names = [name for name, frame in self._fresh.items() if clock <= frame.deadline][: self._config.push_max]
        push = tuple(self._fresh[name] for name in names)
        kept = dict(self._fresh) if len(self._fresh) > len(names) else {}
        self._fresh = {name: frame for name, frame in kept.items() if name not in names and clock <= frame.deadline}
        digests: dict[tuple[int, ...], tuple[CausalDigest, ...]] = {}
        effects: list[Effect] = []
        for partner in self.view.partners(self._config.fanout):
            if partner.groups not in digests:
                digests[partner.groups] = self.digest(partner.groups)
            effects.append(Send(partner.address, self._gossip(clock, push, digests[partner.groups])))
        self.count("pushed", len(push) * len(effects))
        return effects

    def digest(self, groups: Iterable[int] = ()) -> tuple[CausalDigest, ...]:
        """What is held of use to somebody with these groups; no groups: of use to anybody."""
        wanted = dict.fromkeys(groups)
        stamps: dict[int, list[int]] = {}
        for frame in self._have.values():
            if not wanted or any(group in wanted for group in frame.groups):
                stamps.setdefault(frame.sender, []).append(frame.stamp)
        rows = []
        for sender in sorted(stamps)[:DIGEST_SENDERS_MAX]:
            first = max(min(stamps[sender]), max(stamps[sender]) - DIGEST_BITS_MAX + 1)
            bits = sum(1 << (stamp - first) for stamp in stamps[sender] if stamp >= first)
            rows.append(CausalDigest(sender, first, bits.to_bytes((bits.bit_length() + 7) // 8, "little")))
        return tuple(rows)

    def hear(self, gossip: CausalGossip, clock: int) -> list[Effect]:
        """Members and digests; the frames are the order's first."""
        source = gossip.member.address
        self.clocks.hear(source, gossip.tick - clock, self.view.is_broker(source))
        is_new = not gossip.members and not gossip.left and source not in self.view
        self.view.add(CausalMember(source, gossip.member.region, gossip.member.groups, clock), clock)
        for member in gossip.members[: self._config.view_max]:
            self.view.add(member, clock)
        for address, said in gossip.left[: self._config.view_max]:
            self.view.remove(address, said, clock)
        effects: list[Effect] = []
        if is_new:  # it knows nobody, and we may have nothing to say for some rounds
            effects.append(Send(source, self._gossip(clock, (), self.digest(gossip.member.groups))))
        wanted = self._wanted(gossip.digest, clock)
        if wanted:
            self._asked.update(dict.fromkeys(wanted, clock))
            self.count("requested", len(wanted))
            effects.append(Send(source, CausalRequest(self._me, tuple(wanted))))
        return effects

    def _gossip(self, clock: int, push: tuple[CausalFrame, ...], digest: tuple[CausalDigest, ...]) -> CausalGossip:
        members = self.view.sample(self._config.sample)
        return CausalGossip(self.me(clock), clock, push, digest, members, self.view.left())

    def _wanted(self, digest: tuple[CausalDigest, ...], clock: int) -> list[FrameId]:
        """What somebody holds that we lack, the oldest first: it has the least time left."""
        newest = clock + self._config.eps_ticks
        floor = min(self._order.floors.values(), default=0)
        names = []
        for row in digest[:DIGEST_SENDERS_MAX]:
            bits = bin(int.from_bytes(row.bits[: DIGEST_BITS_MAX // 8], "little"))[:1:-1]  # the lowest first
            for stamp, bit in enumerate(bits, row.first):
                if bit == "1" and floor <= stamp <= newest and self._lacks((row.sender, stamp), clock):
                    names.append((row.sender, stamp))
        return sorted(names, key=lambda name: (name[1], name[0]))[: self._config.request_max]

    def _lacks(self, name: FrameId, clock: int) -> bool:
        if name in self._have or self._order.has_seen(name):
            return False
        return self._asked.get(name, -self._config.round_ticks) <= clock - self._config.round_ticks

    def answer(self, request: CausalRequest, clock: int) -> list[Effect]:
        """Frames that are held and on time; so many members ask so often, and no more."""
        asked = self._answered.get(request.source, 0)
        if asked >= self._config.requests_per_round:
            self.count("requests_refused")
            return []
        self._answered[request.source] = asked + 1
        found = [self._have[name] for name in request.ids[: self._config.request_max] if name in self._have]
        frames = tuple(frame for frame in found if clock <= frame.deadline)
        self.count("answered", len(frames))
        return [Send(request.source, CausalFrames(self._me, frames))] if frames else []
