"""The experiments of chapter 5: they run, small, and say what the spec says where a small run can tell."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from unisono.cli.measuring.experiment import experiment as app
from unisono.experiments import find

ALL_WAYS = ("coded", "coded, tree", "coded, tree, recoding")


def test_the_model_prints_its_chances_as_one_object(tmp_path: Path) -> None:
    options = {"n": 10, "redundancy": 2, "plr": 0.2, "abl": 2, "fanout": 1, "rounds": 3, "packets": "fresh"}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, ["run", "coded/success-model", *flags, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert list(answer) == ["success"]
    assert answer["success"] == pytest.approx([0.5803, 0.8661, 0.9672, 0.9928], abs=6e-5)


def test_coded_extras_beat_copies_on_the_star() -> None:
    chosen = find("coded/redundancy")
    rows = chosen.run(replace(chosen.options(), events=12))
    success = {(row.setting["content"], row.setting["redundancy"]): row.ours["success"] for row in rows}
    assert success["coded", 8] > 0.97
    assert success["coded", 4] > success["plain", 8] + 0.05
    assert abs(success["coded", 0] - success["plain", 0]) < 0.15
    assert success["plain", 60] == success["coded", 20] == 1


@pytest.mark.parametrize("over", ["star", "tree", "recoding tree"])
def test_who_asks_gets_everything_over_a_star_and_over_a_tree(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find("coded/air-traffic")
    settings = ((over, "need", True, 2, 1), (over, "none", True, 2, 1))
    monkeypatch.setattr("unisono.experiments.coded.air_traffic.SETTINGS", settings)
    need, none = chosen.run(replace(chosen.options(), events=4))
    assert need.ours["success"] == 1
    assert none.ours["success"] < 0.95
    assert none.ours["overhead"] < need.ours["overhead"] < 1.25


def test_a_tree_that_recodes_is_as_good_as_a_star(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find("coded/redundancy")
    monkeypatch.setattr("unisono.experiments.coded.redundancy.WAYS", tuple((way, (4,)) for way in ALL_WAYS))
    success = {row.setting["content"]: row.ours["success"] for row in chosen.run(replace(chosen.options(), events=60))}
    assert success["coded, tree"] + 0.01 < success["coded, tree, recoding"] < success["coded"]
