"""Regions in the simulator: scenarios keep their promises, and publishers do connect to whom they find."""

from typing import Any

import pytest

from unisono.audit.judges.table import judge
from unisono.protocols.regions.broker import RegionBroker
from unisono.sim.scenario import load, play, stage, with_options

SCENARIOS = ("discovery", "handover", "churn", "failover")


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_of_regions_keep_their_promises(name: str, seed: int) -> None:
    scenario = load(f"regions/{name}")
    journal = play(scenario, seed)
    assert [verdict for verdict in judge(journal, scenario.promised) if verdict.holds is not True] == []


def counts(name: str, seed: int, **options: Any) -> dict[str, int]:
    """What the nodes of a run have counted together."""
    world = stage(with_options(load(f"regions/{name}"), options), seed)
    world.run(until=8_000_000)
    found = {"handovers": 0, "recoveries": 0, "copies": 0}
    for host in world.hosts.values():
        machine: Any = host.machine
        inside = machine.inside.inside
        ports = inside.counters if isinstance(inside, RegionBroker) else inside.subscriber.ports.counters
        found["handovers"] += ports.handovers
        found["recoveries"] += ports.recoveries
        found["copies"] += 0 if isinstance(inside, RegionBroker) else inside.publisher.copies
    return found


def test_publishers_connect_to_whom_they_find() -> None:
    found = counts("discovery", 1)
    assert found["handovers"] > 3
    assert found["copies"] > 100


def test_without_discovery_nobody_connects() -> None:
    assert counts("discovery", 1, **{"options.config.discovery_us": 0})["copies"] == 0


def test_without_connections_to_spend_nobody_connects() -> None:
    assert counts("discovery", 1, **{"options.config.connections_max": 0})["handovers"] == 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCENARIOS)
def test_hundreds_of_runs_of_regions_keep_their_promises(name: str) -> None:
    scenario = load(f"regions/{name}")
    broken = {}
    for seed in range(100, 400):
        verdicts = judge(play(scenario, seed), scenario.promised)
        if any(verdict.holds is not True for verdict in verdicts):
            broken[seed] = str(verdicts)
    assert broken == {}
