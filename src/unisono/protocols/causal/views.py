"""Whom a member knows, and whom it gossips with.

A view is bounded and mixed by every message. Whoever is alive is told of with the tick of its last sign of life; who
was not heard of for long fades out, nobody has to be told that it is gone. Partners are drawn from the own region, but
for a share: that is what bytes across regions are spent on.
"""

from collections.abc import Sequence
from random import Random

from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalLeft, CausalMember


class CausalView:
    """Some members, never ourselves."""

    def __init__(self, me: Address, region: str, config: CausalConfig, dice: Random) -> None:
        self._me, self._region, self._config, self._dice = me, region, config, dice
        self._members: dict[Address, CausalMember] = {}
        self._seeds: dict[Address, CausalMember] = {}
        self._left: dict[Address, int] = {}  # when it said so

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, address: Address) -> bool:
        return address in self._members

    def seed(self, members: Sequence[CausalMember]) -> None:
        """Whom to ask when nobody else is known: brokers."""
        self._seeds = {member.address: member for member in members if member.address != self._me}

    def is_broker(self, address: Address) -> bool:
        return address in self._seeds

    def get(self, address: Address) -> CausalMember | None:
        return self._members.get(address) or self._seeds.get(address)

    def add(self, member: CausalMember, clock: int) -> None:
        if member.address == self._me or member.address in self._left:
            return
        seen = min(member.seen, clock)  # nobody is alive in the future
        if seen < clock - self._config.fade_ticks:
            return
        known = self._members.get(member.address)
        if known is not None and known.seen >= seen:
            return
        if known is None and len(self._members) >= self._config.view_max:
            del self._members[self._dice.choice(list(self._members))]
        self._members[member.address] = CausalMember(member.address, member.region, member.groups, seen)

    def remove(self, address: Address, said: int, clock: int) -> None:
        """It said then that it leaves: whoever still tells of it is not believed for a while.

        That while ends everywhere at the same tick. Were it counted from when each heard of it, those who have
        forgotten would learn it again from those who have not, and whoever comes back would be gone for ever."""
        if address != self._me and clock - self._config.spread_ticks <= said <= clock + self._config.eps_ticks:
            self._members.pop(address, None)
            self._left[address] = max(said, self._left.get(address, said))

    def fade(self, clock: int) -> None:
        oldest = clock - self._config.fade_ticks
        self._members = {a: member for a, member in self._members.items() if member.seen >= oldest}
        recent = clock - self._config.spread_ticks
        self._left = {address: said for address, said in self._left.items() if said >= recent}

    def left(self) -> tuple[CausalLeft, ...]:
        return tuple(self._left.items())[: self._config.view_max]

    def sample(self, count: int) -> tuple[CausalMember, ...]:
        members = list(self._members.values())
        return tuple(self._dice.sample(members, min(count, len(members))))

    def partners(self, count: int) -> list[CausalMember]:
        """Up to `count` different ones, most of the own region."""
        pool = dict(self._members)
        if len(pool) < count:
            pool |= {address: member for address, member in self._seeds.items() if address not in pool}
        near = [member for member in pool.values() if member.region == self._region]
        far = [member for member in pool.values() if member.region != self._region]
        chosen: list[CausalMember] = []
        while (near or far) and len(chosen) < count:
            goes_far = bool(far) and (not near or self._dice.random() < self._config.far)
            some = far if goes_far else near
            chosen.append(some.pop(self._dice.randrange(len(some))))
        return chosen
