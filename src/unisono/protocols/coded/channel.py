"""The Gilbert-Elliott channel: packets are received in the Good state and lost in the Bad one (specs: coded gossip, 1).

`loss_rate` is the mean share of packets lost (PLR), `burst` the mean length of a run of losses (ABL). A burst of
1 / (1 - loss_rate) is exactly independent loss.
"""

from functools import lru_cache
from random import Random

from msgspec import Struct

from unisono.errors import MisuseError


class Channel(Struct, frozen=True):
    """Loss rate and mean burst length of one link."""

    loss_rate: float
    burst: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss_rate < 1 or self.burst < 1 or self.to_bad > 1:
            raise MisuseError(f"no channel loses {self.loss_rate} of its packets in bursts of {self.burst}")

    @property
    def to_good(self) -> float:
        """Q: the chance that a loss is the last of its burst."""
        return 1 / self.burst

    @property
    def to_bad(self) -> float:
        """P: the chance that a loss follows a packet received."""
        return self.loss_rate * self.to_good / (1 - self.loss_rate)


def independent(loss_rate: float) -> Channel:
    """The channel without memory."""
    return Channel(loss_rate, 1 / (1 - loss_rate))


@lru_cache(maxsize=4096)
def losses_of(channel: Channel, n: int) -> tuple[float, ...]:
    """PL(n, d): the probability to lose d of n consecutive packets, d = 0..n, from the stationary state."""
    if n == 0:
        return (1.0,)
    good, bad = [1 - channel.loss_rate, 0.0], [0.0, channel.loss_rate]
    p, q = channel.to_bad, channel.to_good
    for _ in range(n - 1):
        size = len(good)
        good, bad = (
            [good[d] * (1 - p) + bad[d] * q for d in range(size)] + [0.0],
            [0.0] + [good[d] * p + bad[d] * (1 - q) for d in range(size)],
        )
    return tuple(g + b for g, b in zip(good, bad, strict=True))


@lru_cache(maxsize=4096)
def redundancy_for(channel: Channel, n: int, miss: float, limit: int = 255) -> int:
    """The least number of coded extras with which more than that many losses are no likelier than `miss`."""
    for extra in range(limit):
        if sum(losses_of(channel, n + extra)[extra + 1 :]) <= miss:
            return extra
    return limit


class Losses:
    """The channel at work: asks the dice once per packet whether it is lost."""

    __slots__ = ("_bad", "_dice", "_stays_bad", "_turns_bad")

    def __init__(self, channel: Channel, dice: Random) -> None:
        self._stays_bad, self._turns_bad = 1 - channel.to_good, channel.to_bad
        self._dice = dice
        self._bad = dice.random() < channel.loss_rate

    def next_is_lost(self) -> bool:
        lost = self._bad
        self._bad = self._dice.random() < (self._stays_bad if lost else self._turns_bad)
        return lost
