"""The page "What happens when …" and the menu of the crash campaign are about the same faults, and its tests exist."""

import re
from pathlib import Path

from tests.runtime.crash.menu import MENU, drawn_plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "what-happens-when.md"


def lines() -> list[tuple[str, list[str]]]:
    """Per line of the page the fault and its cells."""
    rows = re.findall(r"^\| `([a-z-]+)`: (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    return [(fault, rest.split(" | ")) for fault, rest in rows]


def test_every_fault_of_the_menu_has_its_line_and_no_other() -> None:
    assert [fault for fault, _ in lines()] == list(MENU)


def test_every_line_says_what_is_seen_and_done_and_names_tests_that_exist() -> None:
    for fault, cells in lines():
        assert len(cells) == 4, fault
        assert all(cells), fault
        named = re.findall(r"`(tests/[^`]+\.py)`", cells[-1])
        assert named, fault
        assert [path for path in named if not (ROOT / path).is_file()] == [], fault


def test_two_hundred_drawn_runs_play_every_fault_several_times() -> None:
    plans = [drawn_plan(seed) for seed in range(200)]
    played = [fault for plan in plans for fault in plan.faults]
    assert min(played.count(fault) for fault in MENU if MENU[fault].is_drawn) >= 7
    assert all(plan.broker in MENU[fault].brokers for plan in plans for fault in plan.faults)
    assert all(sum(MENU[fault].forgets for fault in plan.faults) <= 1 for plan in plans)
    assert drawn_plan(7) == plans[7]
