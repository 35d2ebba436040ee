"""The success model against the numbers of the spec (2, 5.6), real elimination, and the slips of the thesis."""

from math import sqrt
from random import Random

import pytest

from unisono.errors import MisuseError
from unisono.protocols.coded.channel import Channel, Losses, independent, losses_of, redundancy_for
from unisono.protocols.coded.success import (
    _after_coded,
    _after_plain,
    _meetings,
    rank_of_random,
    success,
    sum_of_subspaces,
    union_of_subsets,
)
from unisono.structures.decoder import Decoder, encode, split, unit

RULES = ("CHANNEL", "RANK-GF", "SUCCESS", "REDUNDANCY")

BURSTY = Channel(0.2, 2)
DIGITS = 6e-5  # the spec prints four digits


def test_losses_of_consecutive_packets() -> None:  # section 1, PL check
    assert losses_of(BURSTY, 10)[:4] == pytest.approx([0.24053, 0.22580, 0.19565, 0.14435], abs=1e-5)
    assert losses_of(Channel(0.05, 2), 24)[:4] == pytest.approx([0.51445, 0.18489, 0.12056, 0.07533], abs=1e-5)
    assert losses_of(BURSTY, 0) == (1.0,)


def test_independent_loss_is_binomial() -> None:
    assert losses_of(independent(0.3), 3) == pytest.approx([0.343, 0.441, 0.189, 0.027])


@pytest.mark.parametrize(("rate", "burst"), [(0.05, 2), (0.2, 2), (0.3, 4), (0.01, 1.2)])
def test_the_channel_loses_what_it_says_in_bursts_as_long_as_it_says(rate: float, burst: float) -> None:
    losses = Losses(Channel(rate, burst), Random(f"{rate} {burst}"))
    lost = [losses.next_is_lost() for _ in range(200_000)]
    runs = sum(b and not a for a, b in zip([False, *lost], lost, strict=False))
    assert sum(lost) / len(lost) == pytest.approx(rate, rel=0.06)
    assert sum(lost) / runs == pytest.approx(burst, rel=0.06)


@pytest.mark.parametrize("bad", [(1.0, 2), (-0.1, 2), (0.2, 0.5), (0.9, 1)])
def test_an_impossible_channel_is_misuse(bad: tuple[float, float]) -> None:
    with pytest.raises(MisuseError):
        Channel(*bad)


PLAIN = [0.2405, 0.2495, 0.2636, 0.2830, 0.3084, 0.3406, 0.3807, 0.4301, 0.4907, 0.5647, 0.6550]
CODED = [0.2405, 0.4252, 0.5811, 0.7036, 0.7954, 0.8616, 0.9080, 0.9397, 0.9611, 0.9751, 0.9843]
CODED_256 = [0.2405, 0.4245, 0.5803, 0.7030, 0.7949, 0.8612, 0.9077, 0.9395, 0.9609, 0.9750, 0.9842]


@pytest.mark.parametrize("a", range(11))
def test_success_after_dissemination(a: int) -> None:  # section 2, first table; T3
    assert success(10, a, BURSTY, 1, 0, "plain") == [pytest.approx(PLAIN[a], abs=DIGITS)]
    assert success(10, a, BURSTY, 1, 0, "common") == [pytest.approx(CODED[a], abs=1e-4)]
    assert success(10, a, BURSTY, 1, 0, "fresh") == [pytest.approx(CODED_256[a], abs=DIGITS)]


ROUNDS = {
    ("plain", 0): [0.2405, 0.5642, 0.8527, 0.9643, 0.9923, 0.9984],
    ("fresh", 0): [0.2405, 0.7336, 0.9323, 0.9849, 0.9968, 0.9993],
    ("common", 0): [0.2405, 0.5642, 0.8527, 0.9643, 0.9923],
    ("plain", 2): [0.2636, 0.6188, 0.8826, 0.9726, 0.9942, 0.9988],
    ("fresh", 2): [0.5803, 0.8661, 0.9672, 0.9928, 0.9985, 0.9997],
    ("common", 2): [0.5811, 0.8497, 0.9621, 0.9916, 0.9982],
}


@pytest.mark.parametrize(("packets", "a"), ROUNDS)
def test_success_versus_rounds(packets, a: int) -> None:  # section 2, second table; T4: fresh .7336, common .5642
    expected = ROUNDS[packets, a]
    assert success(10, a, BURSTY, 1, len(expected) - 1, packets) == pytest.approx(expected, abs=DIGITS)


FANOUTS = {
    ("plain", 0): [0.5642, 0.7996, 0.9181, 0.9686, 0.9883, 0.9957, 0.9984, 0.9994],
    ("fresh", 0): [0.7336, 0.9319, 0.9847, 0.9968, 0.9993, 0.9999, 1.0, 1.0],
    ("plain", 2): [0.6188, 0.8414, 0.9408, 0.9790, 0.9928, 0.9975, 0.9992, 0.9997],
    ("fresh", 2): [0.8662, 0.9672, 0.9928, 0.9985, 0.9997, 0.9999, 1.0, 1.0],
    ("common", 2): [0.8497, 0.9588, 0.9900, 0.9977, 0.9995, 0.9999, 1.0, 1.0],
}


@pytest.mark.parametrize(("packets", "a"), FANOUTS)
def test_success_after_one_round_versus_fanout(packets, a: int) -> None:  # section 2, third table
    ours = [success(10, a, BURSTY, fanout, 1, packets)[1] for fanout in range(1, 9)]
    assert ours == pytest.approx(FANOUTS[packets, a], abs=1.5e-4)


REDUNDANCY = {
    None: [(2, 3), (3, 4), (5, 6), (8, 9), (13, 15), (19, 22)],
    2.0: [(7, 11), (9, 12), (11, 15), (14, 19), (20, 25), (25, 30)],
    4.0: [(14, 22), (17, 25), (22, 31), (27, 36), (35, 45), (42, 53)],
}


@pytest.mark.parametrize("burst", REDUNDANCY)
def test_redundancy_for_a_channel(burst: float | None) -> None:  # section 5.6
    rates = (0.01, 0.02, 0.05, 0.10, 0.20, 0.30)
    channels = [independent(rate) if burst is None else Channel(rate, burst) for rate in rates]
    assert [tuple(redundancy_for(c, 16, miss) for miss in (1e-3, 1e-4)) for c in channels] == REDUNDANCY[burst]


@pytest.mark.parametrize("packets", ["plain", "fresh", "common"])
@pytest.mark.parametrize("a", [0, 3, 13])
def test_every_row_of_the_chain_is_a_distribution(packets, a: int) -> None:  # T1, T3
    for lines in _meetings(10, a, BURSTY, packets):
        for line in lines:
            assert sum(line) == pytest.approx(1)
    start = _after_plain(10, a, BURSTY) if packets == "plain" else _after_coded(10, a, BURSTY, packets)
    assert sum(start) == pytest.approx(1)


def test_two_subspaces_that_exceed_the_space_fill_it() -> None:  # T2: the printed formula has mass zero here
    assert sum_of_subspaces(10, 6, 7)[10] == pytest.approx(1, abs=1e-3)
    for i in range(11):
        for r in range(11):
            assert sum(sum_of_subspaces(10, i, r).values()) == pytest.approx(1)
            assert sum(union_of_subsets(10, i, r).values()) == pytest.approx(1)


def test_full_rank_of_random_matrices() -> None:  # section 5.2
    assert rank_of_random(16, 16)[16] == pytest.approx(0.9961, abs=DIGITS)
    assert rank_of_random(17, 16)[16] == pytest.approx(0.999985, abs=1e-6)


def test_one_random_packet_a_contact_is_a_coupon_collector_over_all_n() -> None:  # T11
    n, missing, dice, total = 20, 5, Random(1), 0
    for _ in range(4000):
        lacking = set(range(missing))
        while lacking:
            lacking.discard(dice.randrange(n))
            total += 1
    harmonic = sum(1 / k for k in range(1, missing + 1))
    assert total / 4000 == pytest.approx(n * harmonic, rel=0.03)


def start_of(n: int, a: int, channel: Channel, coded: bool, fresh: bool, common, dice: Random) -> Decoder[int]:
    """One receiver after dissemination, packets in an order of its own."""
    rows = [bytes([0])] * n
    sent = [unit(n, i) for i in range(n)]
    if not coded:
        sent += [unit(n, i) for i in dice.sample(range(n), a)]
    elif fresh:
        sent += [line for line, _ in encode(rows, a, dice)]
    else:
        sent += common
    dice.shuffle(sent)
    losses, decoder = Losses(channel, dice), Decoder[int](n, 1)
    for line in sent:
        if not losses.next_is_lost():
            decoder.put(line, b"\0", 0)
    return decoder


GRID = [
    (n, a, Channel(rate, burst), coded)
    for n, a in ((6, 0), (10, 3), (16, 2))
    for rate, burst in ((0.05, 2), (0.2, 2), (0.3, 4))
    for coded in (False, True)
]


@pytest.mark.parametrize(("n", "a", "channel", "coded"), GRID)
def test_dissemination_agrees_with_real_elimination(n: int, a: int, channel: Channel, coded: bool) -> None:
    dice, trials = Random(f"{n} {a} {channel} {coded}"), 1500
    common = [line for line, _ in encode(split(b"", n, 1), a, dice)]
    done = sum(start_of(n, a, channel, coded, True, common, dice).is_complete for _ in range(trials))
    model = success(n, a, channel, 1, 0, "fresh" if coded else "plain")[0]
    assert abs(done / trials - model) < 4 * sqrt(model * (1 - model) / trials) + 1e-3


@pytest.mark.parametrize(("packets", "a"), [("plain", 0), ("plain", 2), ("fresh", 2), ("common", 2)])
def test_gossip_agrees_with_real_elimination(packets, a: int) -> None:  # J6 with a = 0
    """Receivers meet random others of the same population; what the partner can add is sent over the lossy channel."""
    n, dice, size = 10, Random(f"{packets} {a}"), 1500
    common = [line for line, _ in encode(split(b"", n, 1), a, dice)]
    nodes = [start_of(n, a, BURSTY, packets != "plain", packets == "fresh", common, dice) for _ in range(size)]
    shares = [sum(node.is_complete for node in nodes) / size]
    for _ in range(2):
        before = [[*node._coefficients.values()] for node in nodes]
        for node in nodes:
            lines = before[dice.randrange(size)]
            union = node.keep([0])
            for line in lines:
                union.put(line, b"\0", 0)
            if packets == "plain":
                useful = [line for line in lines if line not in node._coefficients.values()]
                dice.shuffle(useful)
            else:
                useful = [line for line, _ in union.recode(union.rank - node.rank, dice)]
            losses = Losses(BURSTY, dice)
            for line in useful:
                if not losses.next_is_lost():
                    node.put(line, b"\0", 0)
        shares.append(sum(node.is_complete for node in nodes) / size)
    model = success(n, a, BURSTY, 1, 2, packets)
    for share, expected in zip(shares, model, strict=True):
        assert abs(share - expected) < 4 * sqrt(expected * (1 - expected) / size) + 2e-3
