"""The coalition of sequencers (thesis, section 4.2): all sites end with one order; cuts say how far all have it."""

from random import Random

import pytest

from tests.papers.uec.net import CUTS, Net
from unisono.machine import Deliver, Heard, Refuse
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.uec.config import UecConfig
from unisono.protocols.uec.messages import Coalition, Cut, Ordered, SettledOrder
from unisono.protocols.uec.site import UecSite

RULES = ("UEC-KEY", "UEC-INDEX", "UEC-MERGE", "UEC-RETRY", "UEC-CUT")
SECOND = 1_000_000


def played(seed: int, config: UecConfig, parts: bool = False) -> tuple[Net, set[str]]:
    """Ten seconds of operations from six sites over links that lose and repeat; then quiet."""
    net = Net(seed, 6, config, loss=0.1, repeat=0.1)
    dice = Random(seed)
    wanted: set[str] = set()
    for at in range(0, 10 * SECOND, 100_000):
        wanted.add(net.publish(f"s{dice.randrange(6)}", at))
    if parts:
        net.parts = [{Address("s0"), Address("s1"), Address("s2")}]
        net.run(6 * SECOND)
        net.parts = []
    net.run(40 * SECOND)
    return net, wanted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sync", [True, False])
def test_all_sites_end_with_one_order(seed: int, sync: bool) -> None:
    net, wanted = played(seed, UecConfig(sync=sync), parts=seed % 2 == 1)
    first, *others = net.log.values()
    assert set(first) == wanted
    assert len(first) == len(wanted), "an operation that two sequencers have numbered is applied once"
    for other in others:
        assert other == first
    assert first == net.sites[Address("s0")].log.applied
    assert not net.told["Refuse"]


def test_what_is_held_back_is_applied_in_the_end() -> None:
    net = Net(4, 6, UecConfig(hold_us=Micros(100_000)))
    wanted = {net.publish(f"s{turn % 6}", turn * 10_000) for turn in range(50)}
    net.run(10 * SECOND)
    assert all(set(log) == wanted and log == net.log[Address("s0")] for log in net.log.values())


@pytest.mark.parametrize("seed", range(6))
def test_what_a_cut_names_is_final_at_every_site_also_with_a_split_brain(seed: int) -> None:
    net = Net(seed, 6, UecConfig(cut_us=Micros(300_000)), loss=0.1, repeat=0.1)
    dice = Random(seed)
    wanted = {net.publish(f"s{dice.randrange(6)}", at) for at in range(0, 10 * SECOND, 100_000)}
    net.parts = [{Address("s0"), Address("s1"), Address("s2")}]
    for until in range(SECOND, 40 * SECOND, SECOND):
        if until > 6 * SECOND:
            net.parts = []
        net.run(until)
        longest = max(net.settled.values(), key=len)
        for settled in net.settled.values():
            assert settled == longest[: len(settled)], f"{seed}: final is not the same everywhere"
    assert set(longest) == wanted
    assert all(settled == longest for settled in net.settled.values())
    assert not any(net.log.values())


def killed_while_merging(seed: int) -> None:
    """Two parts with a coalition each become one; sites are killed meanwhile, come back with their logs, and are killed
    again. All have one order in the end, and what was final before stays."""
    net = Net(seed, 6, UecConfig(cut_us=Micros(300_000)), loss=0.1, repeat=0.1)
    dice = Random(f"{seed}/kills")
    wanted = {net.publish(f"s{dice.randrange(6)}", at) for at in range(0, 6 * SECOND, 100_000)}
    net.parts = [{Address("s0"), Address("s1"), Address("s2")}]
    net.run(7 * SECOND)
    assert len({site._coalitions.current for site in net.sites.values()}) > 1
    net.parts = []
    for _ in range(6):
        net.run(net.now + dice.randrange(5_000, 150_000))  # a merge takes some of these
        name = dice.choice(list(net.sites))
        net.down.add(name)
        net.run(net.now + dice.randrange(1_000, 1_500_000))
        net.down.remove(name)
        net.come_back(name)
    net.run(60 * SECOND)
    longest = max(net.settled.values(), key=len)
    assert set(longest) == wanted
    assert len(longest) == len(wanted)
    assert all(settled == longest for settled in net.settled.values())
    assert len({site._coalitions.current for site in net.sites.values()}) == 1


@pytest.mark.parametrize("seed", range(4))
def test_sites_that_are_killed_while_coalitions_merge_end_with_one_order(seed: int) -> None:
    killed_while_merging(seed)


@pytest.mark.campaign
def test_so_they_do_in_fifty_runs() -> None:
    for seed in range(100, 150):
        killed_while_merging(seed)


def test_a_sequencer_that_dies_is_left_out_of_the_next_coalition() -> None:
    net = Net(3, 6, UecConfig(retry_us=Micros(300_000)))
    for at in range(0, 4 * SECOND, 100_000):
        net.publish("s4", at)
    net.run(4 * SECOND)
    coalition = net.sites[Address("s4")]._coalitions.current
    assert coalition is not None
    dead = next(member for member in coalition.members if member != "s4")
    net.down.add(dead)
    wanted = {net.publish("s4", at) for at in range(0, 6 * SECOND, 100_000)}
    net.run(30 * SECOND)
    later = net.sites[Address("s4")]._coalitions.current
    assert later is not None
    assert later.epoch > coalition.epoch
    assert dead not in later.members
    alive = [log for site, log in net.log.items() if site != dead]
    assert wanted <= set(alive[0])
    assert all(log == alive[0] for log in alive)


def test_two_coalitions_of_one_epoch_become_one_above_both() -> None:
    """R4: made apart, their numbers are the same; the creator tells them apart, and a new epoch comes after both."""
    net = Net(5, 6, UecConfig())
    net.parts = [{Address("s0"), Address("s1"), Address("s2")}]
    net.publish("s0")
    net.publish("s3")
    net.run(2 * SECOND)
    made = [net.sites[Address(name)]._coalitions.current for name in ("s0", "s3")]
    assert [each.epoch for each in made if each is not None] == [1, 1]
    net.parts = []
    net.run(10 * SECOND)
    now = {site._coalitions.current for site in net.sites.values()}
    assert len(now) == 1
    assert now.pop().epoch > 1  # type: ignore[union-attr]
    assert len({tuple(log) for log in net.log.values()}) == 1


def test_ranks_are_those_in_the_coalition_so_no_two_numbers_are_equal() -> None:
    """R2: with identifiers of nodes, n=1, p=1 and n=0, p=4 of three sequencers would both be 4."""
    net = Net(1, 6, UecConfig(sync=False))
    for at in range(0, 5 * SECOND, 20_000):
        net.publish("s5", at)
    net.run(20 * SECOND)
    keys = net.keys[Address("s0")]
    assert {key[3] for key in keys} == {1, 2, 3}
    assert len({key[2] for key in keys}) == len(keys)


def test_a_new_epoch_comes_after_whatever_size_the_coalition_has() -> None:
    """R3: n = 10 is 31 of three members and 21 of two: the bare number would go back."""
    sites = (Address("a"), Address("b"), Address("c"))
    site = UecSite(sites[0], sites, CUTS, Random(1), UecConfig(fanout=1))
    many, few = Coalition(1, sites[0], sites), Coalition(2, sites[0], sites[:2], ((1, sites[0]),))
    events = [Event("x", number, "t") for number in range(1, 13)]
    site.handle(Ordered((1, sites[0], 1), 1, 31, events[0]), Micros(0))
    for coalition in (many, few):
        site._coalitions.hear(coalition)
    site.handle(Ordered((2, sites[0], 1), 1, 21, events[1]), Micros(0))
    assert site.log.applied == [events[0].id, events[1].id]


def test_an_operation_that_was_numbered_twice_is_final_once() -> None:
    sites = (Address("a"), Address("b"))
    site = UecSite(sites[0], sites, CUTS, Random(1))
    event, streams = Event("x", 1, "t"), ((1, sites[1], 1), (1, sites[1], 2))
    site.handle(Ordered(streams[1], 1, 4, event), Micros(0))
    told = site.handle(Heard(CUTS, Cut(((streams[1], 1),))), Micros(1))
    assert told == [Deliver(SettledOrder((event,)))]
    site.handle(Ordered(streams[0], 1, 3, event), Micros(2))
    assert site.handle(Heard(CUTS, Cut(((streams[0], 1),))), Micros(3)) == []
    assert site.log.applied == []


def test_two_operations_of_one_place_are_refused() -> None:
    sites = (Address("a"), Address("b"))
    site = UecSite(sites[0], sites, CUTS, Random(1))
    stream = (1, sites[1], 1)
    site.handle(Ordered(stream, 1, 4, Event("x", 1, "t")), Micros(0))
    assert isinstance(site.handle(Ordered(stream, 1, 4, Event("x", 2, "t")), Micros(0))[0], Refuse)
    assert isinstance(site.handle("what is this", Micros(0))[0], Refuse)
