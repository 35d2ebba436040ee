"""Which sequencers there are: looked for, made after a timeout, and merged by a new epoch above both.

No agreement is needed: operations of two coalitions have keys of their own, and all sites order them alike once they
have heard of them. So any site may make a coalition, and one that finds two makes one of them.
"""

from random import Random

from unisono.machine import Effect, Send
from unisono.model.ids import Address
from unisono.protocols.uec.messages import Coalition, CoalitionId, Formed


class Coalitions:
    """What one site knows of them."""

    def __init__(self, me: Address, sites: tuple[Address, ...], size: int, dice: Random) -> None:
        self._me, self._sites, self._size, self._dice = me, sites, size, dice
        self._replaced: dict[CoalitionId, None] = {}
        self._strikes: dict[Address, int] = {}
        self.current: Coalition | None = None

    @property
    def rank(self) -> int:
        """Ours, from 1; 0: we are no sequencer now."""
        members = self.current.members if self.current is not None else ()
        return members.index(self._me) + 1 if self._me in members else 0

    def choose(self, but: Address | None = None) -> Address | None:
        """A sequencer to give an operation to."""
        if self.current is None:
            return None
        others = [member for member in self.current.members if member != but] or [*self.current.members]
        return self._dice.choice(others)

    def make(self, without: Address | None = None) -> list[Effect]:
        """A coalition of us and others, above all that we know of; everybody is told."""
        epoch = max((known[0] for known in self._replaced), default=0)
        if self.current is not None:
            epoch = max(epoch, self.current.epoch)
        at = self._sites.index(self._me)
        ring = [site for site in (*self._sites[at:], *self._sites[:at]) if site != without]
        return self._install(Coalition(epoch + 1, self._me, tuple(ring[: self._size]), self._all_before()))

    def hear(self, other: Coalition) -> list[Effect]:
        """A later one is taken over, who lags is told, and two that know nothing of each other become one."""
        mine = self.current
        if mine is None or mine.id in other.before:
            return self._adopt(other)
        if other.id == mine.id or other.id in self._replaced or other.id in mine.before:
            return []
        if self._me != max(mine.id, other.id)[1]:
            return self._adopt(other) if other.id > mine.id else []  # its creator makes one of both
        members = tuple(dict.fromkeys((*mine.members, *other.members)))[: self._size]
        before = dict.fromkeys((*self._all_before(), other.id, *other.before))
        return self._install(Coalition(max(mine.epoch, other.epoch) + 1, self._me, members, tuple(before)))

    def is_outdated(self, other: Coalition | None) -> bool:
        """Whoever says that has not heard of ours."""
        mine = self.current
        return mine is not None and (other is None or other.id != mine.id)

    def strike(self, member: Address) -> int:
        """It has let an operation wait once more; how often that was in a row."""
        self._strikes[member] = self._strikes.get(member, 0) + 1
        return self._strikes[member]

    def heard_of(self, member: Address) -> None:
        self._strikes.pop(member, None)

    def _all_before(self) -> tuple[CoalitionId, ...]:
        mine = (self.current.id,) if self.current is not None else ()
        return tuple(dict.fromkeys((*self._replaced, *mine)))

    def _adopt(self, other: Coalition) -> list[Effect]:
        self._replaced |= dict.fromkeys((*self._all_before(), *other.before))
        self.current = other
        self._strikes.clear()
        return []

    def _install(self, coalition: Coalition) -> list[Effect]:
        self._adopt(coalition)
        return [Send(site, Formed(coalition)) for site in self._sites if site != self._me]
