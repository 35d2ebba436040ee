"""A grid loses nothing: what a filter matches lies in a cell it meets, whatever the values."""

import random

import pytest

from tests.matching.worlds import NUMBERS, STRINGS, expression, random_event
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.grid import Axis, Grid, cell_name
from unisono.model.predicate import parse
from unisono.model.settings import TopicSpec


def random_grid(dice: random.Random) -> Grid:
    axes = []
    for name in "ab":
        pool = sorted({float(n) for n in NUMBERS}) if dice.random() < 0.5 else sorted(STRINGS)
        some = [pool[i] for i in sorted(dice.sample(range(len(pool)), dice.randint(1, 4)))]
        axes.append(Axis(name, cuts=tuple(some)) if dice.random() < 0.5 else Axis(name, values=tuple(some)))
    return Grid(axes)


@pytest.mark.parametrize("seed", range(5))
def test_an_event_that_matches_lies_in_a_cell_the_filter_meets(seed: int) -> None:
    dice = random.Random(seed)
    matched = 0
    for _ in range(60):
        grid = random_grid(dice)
        try:
            where = parse(expression(dice, "abc", 2)[0])
        except FormatError:
            continue
        met = grid.cells_met(where)
        assert met == sorted(met)
        for _ in range(20):
            event = random_event(dice, "abc")
            cell = grid.cell_of(event)
            assert cell in grid.cells
            if where.matches(event):
                matched += 1
                assert cell in met, (where, event)
    assert matched > 100


def test_the_cells_of_an_axis_are_disjoint_and_hold_everything() -> None:
    dice = random.Random(1)
    for _ in range(40):
        for axis in random_grid(dice).axes:
            parts = axis.parts()
            for i, part in enumerate(parts):
                assert not any(part.overlaps(other) for other in parts[i + 1 :])


def test_a_narrow_filter_meets_few_cells() -> None:
    grid = Grid([Axis("sym", values=("IBM", "SAP")), Axis("px", cuts=(50, 100))])
    assert grid.count == 12
    assert grid.cell_of({"sym": "IBM", "px": 100}) == (1, 3)
    assert grid.cell_of({"px": True}) == (0, 0)
    assert grid.cells_met(parse("sym = 'IBM' and px >= 100")) == [(1, 3)]
    assert grid.cells_met(parse("sym = 'IBM' and px > 60 and px < 80 or sym = 'XYZ' and not exists px")) == [
        (0, 0),
        (1, 2),
    ]
    assert len(grid.cells_met(parse("volume > 3"))) == 12
    assert cell_name("trades", (1, 3)) == "trades.cell-1-3"


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ((Axis("a"),), "either cuts or values"),
        ((Axis("a", cuts=(1,), values=(2,)),), "either cuts or values"),
        ((Axis("a", cuts=(2, 1)),), "must increase"),
        ((Axis("a", values=(1, "x")),), "not both"),
        ((Axis("a", values=("x", "x")),), "named twice"),
        ((Axis("a", cuts=(1,)), Axis("a", cuts=(2,))), "one for each attribute"),
        ((), "at least one axis"),
        (tuple(Axis(name, cuts=tuple(range(9))) for name in "abc"), "1331 cells, 256 is the most"),
    ],
)
def test_a_grid_that_is_none_is_refused(axes: tuple[Axis, ...], word: str) -> None:
    with pytest.raises(MisuseError, match=word):
        Grid(axes)


def test_a_deployment_file_tells_its_grids_and_refuses_broken_ones() -> None:
    axes = (Axis("sym", values=("IBM", 'a "b"')), Axis("px", cuts=(50, 100.5)))
    deployment = Deployment(1, topics=(TopicSpec("trades", grid=axes), TopicSpec("quotes")))
    assert parse_deployment(dump_deployment(deployment)) == deployment
    with pytest.raises(FormatError, match=r"topics\.t\.grid.*must increase"):
        parse_deployment('version = 1\n[[topics]]\nname = "t"\ngrid = [{ attribute = "x", cuts = [2, 1] }]\n')
