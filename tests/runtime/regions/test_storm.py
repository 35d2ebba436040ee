"""Regions of real processes, of which brokers, primaries and publishers are killed under load."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.regions.storm import play


@pytest.mark.campaign
def test_kills_under_load_reorder_nothing_and_lose_nothing_silently(tmp_path: Path) -> None:
    wrong, story = asyncio.run(play(tmp_path, seed=1, regions=2, leaves=1, kills=3))
    assert wrong == [], "; ".join(story)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(50))
def test_five_regions_outlive_kills(tmp_path: Path, seed: int) -> None:
    wrong, story = asyncio.run(play(tmp_path, seed))
    assert wrong == [], "; ".join(story)
