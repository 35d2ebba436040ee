"""The first half hour and the tutorials go as their pages say."""

from pathlib import Path

import pytest

from tests.runtime.hour import FIRST_HOUR, Page, play, typed
from tests.runtime.tutorials import ADOPT, AGREE, BREAK, SPARK, TUTORIALS

PLAYED = (FIRST_HOUR, *TUTORIALS)
TELLS = {
    FIRST_HOUR.path: ("pairwise-order   holds", "does not answer"),
    AGREE.path: ("pairwise-order   holds", "8 deliveries to 2 subscribers"),
    BREAK.path: ("pairwise-order   violated", "because position", "does not answer", "pairwise-order   holds"),
    ADOPT.path: ("trade 0", "of ours", "14 deliveries to 2 subscribers", "pairwise-order   holds"),
    SPARK.path: ("quotes 2", "pairwise-order   holds"),
}


def of(page: Page) -> str:
    return page.path.stem


@pytest.mark.parametrize("page", PLAYED, ids=of)
def test_a_page_has_every_command_and_every_file_that_is_played(page: Page) -> None:
    text = page.path.read_text(encoding="utf-8")
    assert typed(text) == [each.line for part in page.chapters for each in part.commands]
    assert [file for part in page.chapters for _, file in part.files if file not in text] == []
    assert [told for told in TELLS[page.path] if told not in text] == []


@pytest.mark.campaign
@pytest.mark.parametrize("page", PLAYED, ids=of)
def test_a_page_can_be_played_again(page: Page, tmp_path: Path) -> None:
    text = play(page, tmp_path)
    assert typed(text) == typed(page.path.read_text(encoding="utf-8"))
    assert [told for told in TELLS[page.path] if told not in text] == []
