"""A node's memory does not grow with the events it has ordered."""

from pathlib import Path

import pytest

from unisono.cli.measuring.bench import load

BENCH = Path(__file__).parents[2] / "benchmarks" / "node_memory.py"


@pytest.mark.campaign
def test_memory_after_ten_million_events_is_what_it_was_after_one() -> None:
    first, last = load(BENCH).run((1_000_000, 10_000_000))
    assert last["snapshots"] > first["snapshots"]
    assert last["resident_mb"] <= 1.1 * first["resident_mb"]
