"""Real processes in trouble under load: nothing reordered, nothing twice, every loss told, nobody hangs."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.crash.harness import Run
from tests.runtime.crash.menu import MENU, Broker, drawn_plan, plan_of, play, with_moves

SHORT = (0.2, 0.5)


def check(run: Run) -> None:
    problems = asyncio.run(play(run))
    assert problems == [], f"seed {run.plan.seed}: {'; '.join(run.story)}"


@pytest.mark.parametrize(
    ("broker", "faults"),
    [
        pytest.param(
            *("nats", ["kill-node", "kill-publisher", "pause-node", "cut-one-way", "move-homes"]),
            marks=pytest.mark.campaign,
        ),
        ("jetstream", ["kill-broker", "kill-subscriber", "clock-step"]),
        pytest.param(
            *("jetstream", ["full-disk", "failing-sync", "stream-full", "large-payload"]), marks=pytest.mark.campaign
        ),
        pytest.param(
            *("cluster", ["broker-route-cut", "delay", "churn", "broken-connections"]), marks=pytest.mark.campaign
        ),
    ],
)
def test_several_faults_at_once_reorder_nothing_and_lose_nothing_silently(
    tmp_path: Path, broker: Broker, faults: list[str]
) -> None:
    check(Run(tmp_path, plan_of(1, faults, broker, SHORT)))


@pytest.mark.campaign
@pytest.mark.parametrize(("fault", "broker"), [(name, broker) for name in MENU for broker in MENU[name].brokers])
def test_a_fault_alone_reorders_nothing_and_loses_nothing_silently(tmp_path: Path, fault: str, broker: Broker) -> None:
    check(Run(tmp_path, plan_of(1, [fault], broker)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(200))
def test_faults_drawn_from_the_menu_reorder_nothing_and_lose_nothing_silently(tmp_path: Path, seed: int) -> None:
    check(Run(tmp_path, drawn_plan(seed)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(50))
def test_homes_that_move_all_the_time_reorder_nothing_and_lose_nothing_silently(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, with_moves(drawn_plan(seed)))
    check(run)
    assert run.moves > 0
