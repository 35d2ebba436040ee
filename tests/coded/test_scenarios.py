"""Coded nodes in the simulator: every event despite loss, once despite crashes, in every style."""

import pytest

from unisono.audit import judge
from unisono.machine import Broadcast
from unisono.model.journal import Journal
from unisono.protocols.coded.messages import PacketPiece
from unisono.sim.scenario import Scenario, load, play, stage, with_options
from unisono.sim.world import World
from unisono.structures import field


@pytest.fixture(autouse=True, scope="module")
def kernel() -> None:
    """Here the compiled kernel does the work where numba is installed; on the bench the tables do."""
    field.warm_up().join()


def holds(scenario: Scenario, seed: int) -> Journal:
    journal = play(scenario, seed)
    for verdict in judge(journal, scenario.promises):
        assert verdict.holds, f"{verdict.witness}\n  unisono simulate {scenario.name} --seeds {seed}"
    return journal


@pytest.mark.parametrize("seed", range(6))
def test_every_event_is_delivered_although_a_fifth_of_all_packets_is_lost(seed: int) -> None:
    journal = holds(load("coded/lossy"), seed)
    assert sum(record.kind == "deliver" for record in journal.records) > 200
    assert not any(record.kind == "gap" for record in journal.records)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_delivered_twice_across_crashes(seed: int) -> None:
    journal = holds(load("coded/crash"), seed)
    assert sum(record.kind == "crash" for record in journal.records) > 4


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1000, 1300))
@pytest.mark.parametrize("name", ["lossy", "crash"])
def test_many_seeds(name: str, seed: int) -> None:
    holds(load(f"coded/{name}"), seed)


def test_the_air_traffic_setting_delivers_everything_at_an_overhead_below_one_fifth() -> None:
    scenario = with_options(load("coded/air-traffic"), {"workload.duration": 8_000_000})
    world = stage(scenario, 1)
    pieces = 0

    def count(effect: object) -> None:
        nonlocal pieces
        pieces += "Piece" in type(getattr(effect, "message", None)).__name__ and hasattr(effect, "to")

    for host in world.hosts.values():
        host.on_effect = count
    world.run(until=60_000_000)
    delivered = sum(record.kind == "deliver" for record in world.records)
    assert delivered == 39 * 8
    assert (8 * 18 * 39 + pieces) / (8 * 16 * 39) < 1.2


STYLES = {
    "none, coded extras": ({"style": "none", "redundancy": 8}, 0.95),
    "push, coded": ({"style": "push", "fanout": 4, "redundancy": 2}, 0.93),
    "push, plain": ({"style": "push", "fanout": 4, "coded": False, "redundancy": 0}, 0.93),
    "push-pull, coded": ({"style": "push-pull", "fanout": 4, "redundancy": 2}, 0.95),
    "push-pull, plain": ({"style": "push-pull", "fanout": 4, "coded": False, "redundancy": 0}, 0.9),
    "pull, coded": ({"style": "pull", "fanout": 2, "fan_in": 2, "redundancy": 2}, 0.95),
    "pull, plain": ({"style": "pull", "fanout": 2, "fan_in": 2, "coded": False, "redundancy": 0}, 0.9),
    "need, plain": ({"style": "need", "coded": False, "redundancy": 0}, 0.9999),
    "need, two partners": ({"style": "need", "fanout": 2}, 0.9999),
}


@pytest.mark.parametrize("name", STYLES)
def test_each_style_recovers_what_it_should(name: str) -> None:
    options, least = STYLES[name]
    scenario = with_options(
        load("coded/air-traffic"),
        {"workload.duration": 4_000_000, **{f"options.{key}": value for key, value in options.items()}},
    )
    journal = play(scenario, 3)
    assert sum(record.kind == "deliver" for record in journal.records) / (39 * 4) >= least
    assert all(verdict.holds for verdict in judge(journal, ["exactly-once"]))


def test_the_publisher_learns_how_much_redundancy_its_receivers_need() -> None:
    options = {"workload.duration": 15_000_000, "options.adaptive": True}
    extras = {}
    for rate in (0.01, 0.1):
        world = stage(with_options(load("coded/air-traffic"), {**options, "ens.loss.rate": rate}), 2)
        sent: dict[int, int] = {}

        def count(effect: object, world: World = world, sent: dict[int, int] = sent) -> None:
            if isinstance(effect, Broadcast) and isinstance(effect.message, PacketPiece):
                sent[world.now] = sent.get(world.now, 0) + 1

        world.host("p0").on_effect = count
        world.run(until=60_000_000)
        extras[rate] = [packets - 16 for packets in sent.values()]
        assert sum(record.kind == "deliver" for record in world.records) == 39 * 15
    assert extras[0.01][0] == extras[0.1][0] == 2
    assert extras[0.1][-1] >= 8
    assert sum(extras[0.01]) < sum(extras[0.1]) * 0.7
