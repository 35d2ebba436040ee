"""Consumer groups in the simulator: members share keys or take turns while they crash, are slow and cut off, and their
coordinator with them; nobody is shown a key that another works on, and nothing is lost or out of order."""

import pytest

from unisono.audit.judges.table import judge
from unisono.sim.scenario import load, play, with_options

SCENARIOS = ("shared", "turns")


def broken(name: str, seeds: range, **options: object) -> list[str]:
    scenario = with_options(load(f"groups/{name}"), options)
    return [
        f"{verdict.judge}: {verdict.witness}\n  unisono simulate groups/{name} --seeds {seed}"
        for seed in seeds
        for verdict in judge(play(scenario, seed), scenario.promised)
        if not verdict.holds
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_key_has_one_member_at_a_time_and_is_shown_in_order_and_whole(name: str) -> None:
    assert broken(name, range(6)) == []


def test_without_faults_every_event_is_shown_once_and_by_all_members() -> None:
    scenario = with_options(load("groups/shared"), {"faults": [], "links.loss": None})
    journal = play(scenario, 1)
    assert [verdict.judge for verdict in judge(journal, scenario.promised) if verdict.holds is not True] == []
    shown = [record for record in journal.records if record.kind == "deliver" and record.subscriber != "log"]
    assert len({record.peer for record in shown}) == 4
    assert [record for record in journal.records if record.kind == "restart"] == []


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_thousand_seeds(name: str, part: int) -> None:
    assert broken(name, range(100 * part, 100 * (part + 1))) == []
