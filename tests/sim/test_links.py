"""Links: latency, order, loss, repetition, bandwidth, partitions and clogs."""

from itertools import pairwise
from random import Random
from statistics import mean, stdev
from typing import Any

import pytest

from unisono.machine import Effect, Publish, Send
from unisono.model.ids import Address, Topic
from unisono.model.region import LatencyTable
from unisono.model.time import Micros
from unisono.sim.faults import Clog, Fault, Partition, SwizzleClog, schedule_faults
from unisono.sim.links import (
    ByRegion,
    Fixed,
    Gaussian,
    GilbertElliott,
    LinkRule,
    LinkSpec,
    Loss,
    Sampler,
    TwoClass,
    Uniform,
)
from unisono.sim.spec import Span
from unisono.sim.world import World


class Talker:
    """Sends what it is asked to publish to a peer; keeps what arrives, and when."""

    def __init__(self, peer: str) -> None:
        self.peer = Address(peer)
        self.arrived: list[tuple[Any, int]] = []

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if isinstance(message, Publish):
            return [Send(self.peer, message.message)]
        self.arrived.append((message, now))
        return []


def talk(link: LinkSpec, messages: int, every_us: int = 1_000, faults: tuple[Fault, ...] = ()) -> list[tuple[int, int]]:
    """What b hears of a's messages 0, 1, 2, …: (message, time)."""
    world = World(11, links=link)
    world.add("a", lambda name: Talker("b"))
    world.add("b", lambda name: Talker("a"))
    schedule_faults(world, faults)
    for i in range(messages):
        world.at(i * every_us, world.host("a").tell, Publish(Topic(0), i))
    world.run()
    machine = world.host("b").machine
    assert isinstance(machine, Talker)
    return machine.arrived


def test_fifo_links_keep_the_order_and_others_do_not() -> None:
    wild = Uniform(Span(0), Span(50_000))
    in_order = [message for message, _ in talk(LinkSpec(wild, fifo=True), 200)]
    assert in_order == list(range(200))
    anyhow = [message for message, _ in talk(LinkSpec(wild, fifo=False), 200)]
    assert sorted(anyhow) == in_order
    assert anyhow != in_order


def test_gaussian_latencies_have_their_mean_and_deviation() -> None:
    sampler = Sampler(Gaussian(Span(21_000), Span(4_000)), Random(1), 0)
    drawn = [sampler.draw() for _ in range(4_000)]
    assert mean(drawn) == pytest.approx(21_000, rel=0.02)
    assert stdev(drawn) == pytest.approx(4_000, rel=0.05)


def test_a_fifth_of_all_links_is_slow_for_good() -> None:
    means = [
        mean(sampler.draw() for _ in range(30)) for sampler in (Sampler(TwoClass(), Random(i), 0) for i in range(400))
    ]
    slow = [value for value in means if value > 100_000]
    assert len(slow) / len(means) == pytest.approx(0.2, abs=0.06)
    assert max(value for value in means if value <= 100_000) < 40_000


@pytest.mark.parametrize(("rate", "burst"), [(0.05, 2.0), (0.2, 5.0), (0.5, 1.0)])
def test_losses_have_their_rate_and_come_in_bursts_of_their_length(rate: float, burst: float) -> None:
    chain = GilbertElliott(Loss(rate, burst), Random(3))
    lost = [chain.loses() for _ in range(60_000)]
    bursts = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    if rate < 0.5:  # at 0.5 and burst 1 the chain alternates: every burst has length 1 and the rate is exact
        assert sum(lost) / bursts == pytest.approx(burst, rel=0.1)
    assert sum(lost) / len(lost) == pytest.approx(rate, rel=0.1)


def test_lossy_links_lose_and_repeating_links_repeat() -> None:
    assert 400 < len(talk(LinkSpec(loss=Loss(0.2, 2.0)), 600)) < 560
    repeated = talk(LinkSpec(duplicate=0.3), 600)
    assert 700 < len(repeated) < 860
    assert len({message for message, _ in repeated}) == 600


def test_a_narrow_link_makes_messages_queue() -> None:
    arrived = talk(LinkSpec(Fixed(Span(0)), bytes_per_s=1_000), 50, every_us=0)
    gaps = {later - earlier for (_, earlier), (_, later) in pairwise(arrived)}
    assert gaps == {1_000}  # a small number is one byte of msgpack, a millisecond at a kilobyte per second


def test_latency_by_region_and_rules_per_pair() -> None:
    table = LatencyTable(("eu", "us"), ((0, 40_000), (40_000, 0)))
    rule = LinkRule("a", "c", LinkSpec(Fixed(Span(5))))
    world = World(0, links=LinkSpec(ByRegion(within_us=Span(300))), rules=(rule,), latencies=table)
    for name, peer, region in [("a", "b", "eu"), ("b", "c", "us"), ("c", "a", "us")]:
        world.add(name, lambda name, peer=peer: Talker(peer), region=region)
    for name in "abc":
        world.host(name).tell(Publish(Topic(0), "x"))
    world.run()
    times = {}
    for name in "abc":
        machine = world.host(name).machine
        assert isinstance(machine, Talker)
        times[name] = machine.arrived[0][1]
    assert times == {"b": 40_000, "c": 300, "a": 5}


def test_a_partition_loses_and_heals() -> None:
    fault = Partition(at=Span(10_500), who="a", lasts=Span(20_000))
    heard = [message for message, _ in talk(LinkSpec(Fixed(Span(1))), 50, faults=(fault,))]
    assert heard == [*range(11), *range(31, 50)]


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    fault = Partition(at=Span(10_500), who="b", lasts=Span(20_000), one_way=True)
    assert len(talk(LinkSpec(), 50, faults=(fault,))) == 50


@pytest.mark.parametrize("fault", [Clog, SwizzleClog])
def test_a_clog_delays_and_loses_nothing(fault: Any) -> None:
    clog = fault(at=Span(10_500), who="*", lasts=Span(20_000))
    arrived = talk(LinkSpec(Fixed(Span(1))), 50, faults=(clog,))
    assert [message for message, _ in arrived] == list(range(50))
    assert max(time - message * 1_000 for message, time in arrived) > 1_000
