"""How likely is an event complete, after dissemination and after each round of gossip? (specs: coded gossip, 1 and 2)

A chain whose state is the number of useful packets a node holds, n absorbing. In a round a node meets `fanout`
partners, drawn from the population as it was at the end of the round before; a partner sends exactly what is useful,
over the same lossy channel. Three kinds of packets:

- plain: the extras are copies of the n packets (whole copies first, then part of one);
- fresh: every receiver gets its own combinations over GF(256), the assumption under the thesis' curves;
- common: one set of n + a packets goes to everybody, as in a real multicast. A lower bound: it credits recoding by
  incomplete nodes with nothing but the labels they hold.

Assumed throughout: packet order random per receiver, infinite population, no memory of the channel between contacts.
"""

from collections.abc import Callable
from functools import lru_cache
from math import exp, lgamma, log, log1p
from typing import Literal

from unisono.errors import MisuseError
from unisono.protocols.coded.channel import Channel, losses_of

Packets = Literal["plain", "fresh", "common"]
Spread = dict[int, float]
"""A distribution over the number of useful packets."""

FIELD = 256
_NEGLIGIBLE = 1e-18


def success(n: int, redundancy: int, channel: Channel, fanout: int, rounds: int, packets: Packets) -> list[float]:
    """The probability of being complete after dissemination, then after each round."""
    if n < 1 or redundancy < 0 or fanout < 1 or rounds < 0:
        raise MisuseError("the model needs n >= 1, redundancy >= 0, fanout >= 1 and rounds >= 0")
    start = (
        _after_plain(n, redundancy, channel) if packets == "plain" else _after_coded(n, redundancy, channel, packets)
    )
    if not rounds:
        return [start[n]]
    meeting = _meetings(n, redundancy, channel, packets)
    state, answers = start, [start[n]]
    for _ in range(rounds):
        partners = state
        for _ in range(fanout):
            state = [
                sum(state[i] * partners[r] * meeting[i][r][j] for i in range(n + 1) for r in range(n + 1) if state[i])
                for j in range(n + 1)
            ]
        answers.append(state[n])
    return answers


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _choose_ratio(tops: list[tuple[int, int]], bottom: tuple[int, int]) -> float:
    if any(not 0 <= k <= n for n, k in tops):
        return 0.0
    return exp(sum(_log_choose(n, k) for n, k in tops) - _log_choose(*bottom))


def union_of_subsets(universe: int, i: int, r: int) -> Spread:
    """The size of the union of two independent uniform subsets: hypergeometric."""
    return {
        i + new: _choose_ratio([(universe - i, new), (i, r - new)], (universe, r))
        for new in range(max(0, r - i), min(r, universe - i) + 1)
    }


@lru_cache(maxsize=1024)
def _log_q_factorial(n: int) -> float:
    """Of the Gaussian binomial's factors 1 - q^-1 .. 1 - q^-n."""
    return sum(log1p(-(float(FIELD) ** -i)) for i in range(1, n + 1))


def _log_q_choose(n: int, k: int) -> float:
    """The number of k-dimensional subspaces of an n-dimensional space over GF(q), as a logarithm."""
    return k * (n - k) * log(FIELD) + _log_q_factorial(n) - _log_q_factorial(k) - _log_q_factorial(n - k)


def sum_of_subspaces(n: int, i: int, r: int) -> Spread:
    """The dimension of the sum of two independent uniform subspaces: q-hypergeometric."""
    spread = {}
    for j in range(max(i, r), min(n, i + r) + 1):
        common = i + r - j
        weight = (i - common) * (r - common) * log(FIELD) + _log_q_choose(i, common)
        spread[j] = exp(weight + _log_q_choose(n - i, r - common) - _log_q_choose(n, r))
    return spread


def rank_of_random(height: int, width: int) -> Spread:
    """The rank of a uniform matrix over GF(q)."""
    spread = {}
    for rank in range(min(height, width) + 1):
        missing = -(height - rank) * (width - rank) * log(FIELD)
        missing += _log_q_factorial(height) - _log_q_factorial(height - rank)
        missing += _log_q_factorial(width) - _log_q_factorial(width - rank) - _log_q_factorial(rank)
        spread[rank] = exp(missing)
    return spread


def _after_plain(n: int, extra: int, channel: Channel) -> list[float]:
    """n packets, whole further copies of them and part of one more; survivors of all copies merge one by one."""
    total = n + extra
    copies = [n] * (1 + extra // n) + ([extra % n] if extra % n else [])
    laws = {(0, 0): 1.0}  # (survivors so far, different ones among them): probability of the second given the first
    before = 0
    for size in copies:
        step: dict[tuple[int, int], float] = {}
        for (alive, held), law in laws.items():
            for more in range(size + 1):
                split = law * _choose_ratio([(before, alive), (size, more)], (before + size, alive + more))
                for union, chance in union_of_subsets(n, held, more).items():
                    step[alive + more, union] = step.get((alive + more, union), 0.0) + split * chance
        laws, before = step, before + size
    losses = losses_of(channel, total)
    start = [0.0] * (n + 1)
    for (alive, held), law in laws.items():
        start[held] += losses[total - alive] * law
    return start


def _after_coded(n: int, extra: int, channel: Channel, packets: Packets) -> list[float]:
    losses = losses_of(channel, n + extra)
    start = [0.0] * (n + 1)
    for lost, chance in enumerate(losses):
        alive = n + extra - lost
        if packets == "common":
            start[min(n, alive)] += chance
            continue
        for plain in range(max(0, alive - extra), min(n, alive) + 1):
            split = _choose_ratio([(n, plain), (extra, alive - plain)], (n + extra, alive))
            for rank, share in rank_of_random(alive - plain, n - plain).items():
                start[plain + rank] += chance * split * share
    return start


def _meetings(n: int, extra: int, channel: Channel, packets: Packets) -> list[list[list[float]]]:
    """[i][r][j]: a node with i useful packets meets one with r, and has j afterwards."""

    def labels(i: int, r: int) -> Spread:
        if n in (i, r):
            return {n: 1.0}
        spread: Spread = {}
        for union, chance in union_of_subsets(n + extra, i, r).items():
            spread[min(n, union)] = spread.get(min(n, union), 0.0) + chance
        return spread

    joins: dict[Packets, Callable[[int, int], Spread]] = {
        "plain": lambda i, r: union_of_subsets(n, i, r),
        "fresh": lambda i, r: sum_of_subspaces(n, i, r),
        "common": labels,
    }
    join = joins[packets]
    table = [[[0.0] * (n + 1) for _ in range(n + 1)] for _ in range(n + 1)]
    for i in range(n + 1):
        for r in range(n + 1):
            line = table[i][r]
            for union, chance in join(i, r).items():
                if chance < _NEGLIGIBLE:
                    continue
                for lost, share in enumerate(losses_of(channel, union - i)):
                    line[union - lost] += chance * share
    return table
