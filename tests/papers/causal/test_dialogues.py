"""Figures 1 to 3 of the paper, as dialogues a reader can follow."""

from pathlib import Path

import pytest

from tests.papers.causal.dialogue import play

RULES = ("P1", "P6", "P8", "LOGICAL")
SCRIPTS = sorted((Path(__file__).parents[2] / "scripts" / "causal").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_dialogue_goes_as_written(script: Path) -> None:
    text = script.read_text()
    assert play(text) == text


def test_there_are_dialogues() -> None:
    assert [path.stem for path in SCRIPTS] == ["figure-1", "figure-2", "figure-3"]
