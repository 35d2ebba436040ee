"""The suite's budget names every room once, its table adds up, and the classifiers name what the suite ran on."""

import tomllib
from pathlib import Path

from tests.budget import budget, told

ROOT = Path(__file__).parents[2]


def test_every_room_of_the_suite_is_in_one_group() -> None:
    rooms = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")} | {"audit"}
    listed = [room for group in budget().group for room in group.rooms]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == rooms


def test_what_is_over_is_told_and_all_is_summed() -> None:
    assert list(told({"runtime": 171.4, "audit": 3.0, "model": 1.5})) == [
        "   171.4 of  170  runtime, 1 over",
        "     4.5 of   60  rest (audit 3.0, model 1.5)",
        "   175.9 of  230  together",
    ]


def test_classifiers_name_the_pythons_that_the_suite_ran_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" :: ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert tuple(named) == budget().pythons
