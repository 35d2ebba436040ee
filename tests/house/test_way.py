"""docs/way-of-an-event.md is the way an event goes."""

import json
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.house import way

FILES_MAX = 50
"""The way may get shorter; who makes it longer says here why: what a node lets in is a machine of its own file, and so
is when an embedded broker writes to its readers; what is held back has a bound that is looked at, and where an event
comes in its group is asked for before its timestamp is made."""


@cache
def traced() -> dict[str, dict[str, list[str]]]:
    made = [sys.executable, "-m", "tests.house.way", "--print"]
    found = subprocess.run(made, cwd=way.PAGE.parents[1], check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


def test_the_page_names_the_files_that_an_event_passes() -> None:
    """When this fails and the new way is meant: python -m tests.house.way"""
    shown = {title: sorted(files) for title, files in way.listed().items()}
    assert {title: sorted(files) for title, files in traced().items()} == shown


def test_an_event_does_not_pass_more_and_more_files() -> None:
    assert len({file for files in traced().values() for file in files}) <= FILES_MAX


def test_every_hop_is_seen() -> None:
    assert [title for title, files in traced().items() if not files] == []


def test_the_functions_on_the_page_exist() -> None:
    missing = [
        f"{file}: {name}"
        for files in way.listed().values()
        for file, names in files.items()
        for name in names
        if not re.search(rf"def {name.rpartition('.')[2]}\b", (way.SOURCES / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


@pytest.mark.parametrize("number", range(1, len(way.HOPS) + 1))
def test_hops_are_numbered_in_order(number: int) -> None:
    assert f"## {number}. {way.HOPS[number - 1].title}\n" in way.PAGE.read_text(encoding="utf-8")
