"""Seeds that find again, by the judges of their scenario alone, what was repaired where nodes lost data.

Each takes out its repair as a mutant (`sim/found-again-…` in tests/mutants/sim.toml).
"""

import pytest

from unisono.audit import judge
from unisono.sim.scenario import load, play


@pytest.mark.parametrize(
    ("name", "seed"), [("sequencer/listening", 103), ("sequencer/listening", 105), ("sequencer/listening", 149)]
)
def test_seeds_that_find_what_was_repaired_find_nothing(name: str, seed: int) -> None:
    scenario = load(name)
    assert [verdict for verdict in judge(play(scenario, seed), scenario.promised) if not verdict.holds] == []
