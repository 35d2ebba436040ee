"""The two worked examples of the paper, as dialogues a reader can follow."""

from pathlib import Path

import pytest

from tests.papers.sequencer.dialogue import play

RULES = ("C3", "C1")

SCRIPTS = sorted((Path(__file__).parents[2] / "scripts" / "sequencer").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_dialogue_goes_as_written(script: Path) -> None:
    text = script.read_text()
    assert play(text) == text


def test_there_are_dialogues() -> None:
    assert {path.stem for path in SCRIPTS} >= {"figure-4-stamp", "figure-5"}
