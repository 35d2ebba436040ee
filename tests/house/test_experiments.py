"""Experiments: options become flags, rows keep the paper beside ours, results are files."""

import inspect
import json
import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, Struct

from tests.house.test_command_line import unisono
from unisono.cli.measuring.experiment import checked, keep, parameters_of, perform
from unisono.errors import MisuseError
from unisono.experiments import EXPERIMENTS, Experiment, Figure, Outcome, ResultRow, find


class Options(Struct, frozen=True):
    """Two options, one with a description."""

    clients: Annotated[int, Meta(description="how many")] = 3
    shape: float = 0.5


class NoDefault(Struct, frozen=True):
    """An option nobody can leave out."""

    clients: int


def run(options: Options) -> list[ResultRow]:
    return [ResultRow({"n": n}, ours={"size": n * options.shape}, paper={"size": 1.0}) for n in range(options.clients)]


TOY = Experiment("A toy", "nowhere", Options, run, Figure("n", "size"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_options_out_of_bounds_are_refused_by_their_flags(name: str) -> None:
    options = find(name).options
    numbers = [key for key, value in msgspec.structs.asdict(options()).items() if type(value) in (int, float)]
    for key in [key for key in numbers if key != "seed"]:
        with pytest.raises(MisuseError, match=f"^--{key.replace('_', '-')}: Expected"):
            checked(options, {key: -1})


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("sequencer/wan-latency", {"per_client": 900}, "--per-client 900 with --topics 10: "),
        ("sequencer/wan-latency", {"workload": "sweep", "sites": "A"}, "--workload sweep with --sites A: "),
        ("sequencer/timestamp-size", {"topics": 9}, "--per-client 10 with --topics 9: "),
        (
            "sequencer/timestamp-size",
            {"shared_subscriptions_min": 3},
            "--shared-subscriptions-min 3 with --events 10000: ",
        ),
        ("sequencer/popularity-change", {"seconds": 4}, "--change 4 with --seconds 4: "),
        ("sequencer/popularity-change", {"period_ms": 12_001}, "--period-ms 12001 with --seconds 12: "),
        ("coded/success-model", {"plr": 0.9}, "--plr 0.9 with --abl 2.0: "),
        ("coded/redundancy", {"plr": 0.9}, "--plr 0.9 with --abl 2.0: "),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_their_flags(
    name: str, values: dict[str, object], problem: str
) -> None:
    with pytest.raises(MisuseError, match=f"^{re.escape(problem)}"):
        checked(find(name).options, values)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("sequencer/popularity-change", {"rate": 1e-9}, "--rate 1e-09 with --seconds 12: nothing is published"),
        ("overlay/costs", {"only": "99 %"}, "--only: no workload '99 %'; there are: 100 %, 50 %, "),
    ],
)
def test_what_is_drawn_shows_that_options_make_no_sense(name: str, values: dict[str, object], problem: str) -> None:
    with pytest.raises(MisuseError, match=f"^{re.escape(problem)}"):
        find(name).run(checked(find(name).options, values))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_in_the_table_is_one(name: str) -> None:
    found = find(name)
    assert isinstance(found, Experiment)
    assert len(parameters_of(found.options)) == len(found.options.__struct_fields__)


def test_an_unknown_experiment_is_refused_with_the_list() -> None:
    with pytest.raises(MisuseError, match="no experiment 'x'; there are: sequencer/timestamp-size"):
        find("x")


def test_options_become_parameters_with_types_and_defaults() -> None:
    clients, shape = parameters_of(Options)
    assert (clients.name, clients.default, clients.annotation.__origin__) == ("clients", 3, int)
    assert clients.annotation.__metadata__[0].help == "how many"
    assert (shape.default, shape.kind) == (0.5, inspect.Parameter.KEYWORD_ONLY)


def test_an_option_without_default_is_refused() -> None:
    with pytest.raises(MisuseError, match="clients of NoDefault needs a default"):
        parameters_of(NoDefault)


def test_an_outcome_is_kept_as_json_and_picture(tmp_path: Path) -> None:
    outcome = perform("toys/toy", TOY, Options(clients=4))
    keep(outcome, TOY, tmp_path)
    again = msgspec.json.decode((tmp_path / "toys" / "toy.json").read_bytes(), type=Outcome)
    assert again == outcome
    assert again.rows[3] == ResultRow({"n": 3}, ours={"size": 1.5}, paper={"size": 1.0})
    assert (tmp_path / "toys" / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_flags_reach_the_run(tmp_path: Path) -> None:
    arguments = ["--clients", "50", "--events", "0", "--seed", "7", "--out", str(tmp_path), "--json"]
    done = unisono("experiment", "run", "sequencer/timestamp-size", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["shapes"]) == 6
    outcome = msgspec.json.decode((tmp_path / "sequencer" / "timestamp-size.json").read_bytes(), type=Outcome)
    assert (outcome.options["clients"], outcome.options["seed"]) == (50, 7)
    assert [row.paper for row in outcome.rows] == [{}] * 6, "the paper says nothing about 50 clients"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--per-client", "900"), "unisono: --per-client 900 with --topics 10: "),
        (("--jobs", "2", "--seeds", "0..3"), "unisono: --jobs 2 with --seeds: "),
        (("--seed", "5", "--seeds", "0..3"), "unisono: --seed 5 with --seeds 0..3: "),
    ],
)
def test_flags_that_contradict_each_other_are_one_line_and_exit_2(
    arguments: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    done = unisono("experiment", "run", "sequencer/wan-latency", *arguments, "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(problem)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_flag_that_no_option_has_is_exit_2(tmp_path: Path) -> None:
    done = unisono("experiment", "run", "sequencer/timestamp-size", "--colour", "red", "--out", str(tmp_path))
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())
