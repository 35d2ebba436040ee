"""Whom to gossip with: a bounded view of a topic's members, mixed by every message, and polarized draws from it.

Members are learnt from `Hello`, from the samples that travel on answers and adverts, and from whoever speaks to us. A
full view forgets a random member for a new one, so views stay different from each other. A draw takes three
candidates at random and the best of them (specs: coded gossip, 5.7): near the publisher, answering, losing little.
"""

from collections.abc import Container
from random import Random

from unisono.model.ids import Address
from unisono.protocols.coded.messages import Seen

CANDIDATES = 3
GAIN = 0.1  # weight of the newest answer in a member's record


class Member:
    """What is known of one member."""

    __slots__ = ("depth", "loss", "serves")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.serves = 0.5  # share of our questions it answered with packets
        self.loss = 0.0  # share of the packets it should have sent that did not come

    @property
    def weight(self) -> float:
        return self.serves * (1 - self.loss) / (1 + self.depth)


class PartialView:
    """Some members of one topic, never ourselves."""

    def __init__(self, me: Address, size_max: int, dice: Random) -> None:
        self._me = me
        self._size_max = size_max
        self._dice = dice
        self._members: dict[Address, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, address: Address) -> bool:
        return address in self._members

    def add(self, address: Address, depth: int) -> None:
        if address == self._me:
            return
        known = self._members.get(address)
        if known is not None:
            known.depth = depth
            return
        if len(self._members) >= self._size_max:
            self.forget(self._dice.choice(list(self._members)))
        self._members[address] = Member(depth)

    def forget(self, address: Address) -> None:
        self._members.pop(address, None)

    def sample(self, count: int) -> tuple[Seen, ...]:
        """Members to tell others about."""
        chosen = self._dice.sample(list(self._members), min(count, len(self._members)))
        return tuple(Seen(address, self._members[address].depth) for address in chosen)

    def draw(self, count: int, polarized: bool, avoid: Container[Address] = ()) -> list[Address]:
        """Up to `count` different partners."""
        pool = [address for address in self._members if address not in avoid]
        partners = []
        for _ in range(min(count, len(pool))):
            candidates = self._dice.sample(pool, min(CANDIDATES if polarized else 1, len(pool)))
            best = max(candidates, key=lambda address: self._members[address].weight)
            pool.remove(best)
            partners.append(best)
        return partners

    def learn(self, address: Address, expected: int, arrived: int) -> None:
        """A question for `expected` packets brought `arrived`."""
        member = self._members.get(address)
        if member is None:
            return
        member.serves += GAIN * ((arrived > 0) - member.serves)
        if arrived and expected:
            member.loss += GAIN * (max(0.0, 1 - arrived / expected) - member.loss)
