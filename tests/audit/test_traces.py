"""The traces that engines are measured on: what makes each of them hard is there, and tiles fit at their seams."""

import sys
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
columnar = pytest.importorskip("unisono.audit.columnar")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
wide: Any = pytest.importorskip("tracing.wide")

COUNT = 6000


def written(path: Path, shape: str, tiles: int = 1) -> Any:
    wide.write(str(path), wide.SHAPES[shape], COUNT, tiles=tiles)
    return pq.read_table(path)


def violations(path: Path) -> dict[str, int]:
    return {v.judge: v.violations for v in columnar.examine(columnar.load(path)).verdicts}


@pytest.mark.parametrize("shape", wide.SHAPES)
def test_one_order_explains_every_trace(tmp_path: Path, shape: str) -> None:
    found = written(tmp_path / "log", shape)
    judged = violations(tmp_path / "log")
    assert not any(judged.values())
    assert len(judged) == (4 if shape == "three" else 9)
    assert 0.7 * COUNT < found.num_rows < 1.3 * COUNT
    assert len(found.column_names) == wide.SHAPES[shape].columns


def test_by_least_time_of_delivery_nothing_can_be_cut_off(tmp_path: Path) -> None:
    """Downlinks are unequal: the spans over which streams go down in the least time of delivery cover nearly all."""
    found = written(tmp_path / "log", "wide")
    rows = found.sort_by([("subscriber", "ascending"), ("position", "ascending")])
    who = rows["subscriber"].to_numpy(zero_copy_only=False)
    first: dict[str, int] = {}
    for event, moment in zip(rows["event"].to_pylist(), rows["delivered_us"].to_pylist()):
        first[event] = min(moment, first.get(event, moment))
    place = np.array([first[event] for event in rows["event"].to_pylist()])
    down = (who[1:] == who[:-1]) & (place[1:] < place[:-1])
    lows, highs = place[1:][down], place[:-1][down]
    covered = np.zeros(len(place), bool)
    for low, high in zip(lows.tolist(), highs.tolist()):
        covered |= (place >= low) & (place <= high)
    assert covered.mean() > 0.9


def test_subscribers_pass_bridge_groups_or_have_everything(tmp_path: Path) -> None:
    counts = {
        shape: written(tmp_path / shape, shape)["subscriber"].value_counts().field("counts").to_numpy()
        for shape in ("wide", "dominant")
    }
    assert counts["dominant"].max() > 10 * np.median(counts["dominant"])
    assert counts["wide"].max() < 3 * np.median(counts["wide"])
    passing = written(tmp_path / "passing", "passing")
    spans = passing.group_by("subscriber").aggregate([("published_us", "min"), ("published_us", "max")])
    there = spans["published_us_max"].to_numpy() - spans["published_us_min"].to_numpy()
    assert there.max() < 0.35 * passing["published_us"].to_numpy().max()
    bridged = written(tmp_path / "bridged", "bridged")
    topics = bridged.group_by("subscriber").aggregate([("topic", "distinct")])
    groups = [{int(topic[1:]) // 10 for topic in some} for some in topics["topic_distinct"].to_pylist()]
    assert {len(some) for some in groups} == {1, 2}
    assert sum(len(some) == 2 for some in groups) < len(groups) / 10


def test_tiles_fit_at_their_seams(tmp_path: Path) -> None:
    """Three tiles are three times the rows, with events of their own; no stream goes back where one ends."""
    one, three = written(tmp_path / "one", "wide"), written(tmp_path / "three", "wide", tiles=3)
    assert three.num_rows == 3 * one.num_rows
    assert len(three["event"].unique()) == 3 * len(one["event"].unique())
    assert len(three["subscriber"].unique()) == len(one["subscriber"].unique())
    assert not any(violations(tmp_path / "three").values())
    tile = np.repeat(np.arange(3), one.num_rows)
    ordered = three.append_column("tile", pa.array(tile)).sort_by(
        [("subscriber", "ascending"), ("position", "ascending")]
    )
    who, tiles = ordered["subscriber"].to_numpy(zero_copy_only=False), ordered["tile"].to_numpy()
    assert (np.diff(tiles)[who[1:] == who[:-1]] >= 0).all()


def test_an_error_across_a_seam_is_found(tmp_path: Path) -> None:
    """Two subscribers have the last events of a tile and the first of the next; one of them the other way round."""
    found = written(tmp_path / "log", "dominant", tiles=2).sort_by(
        [("subscriber", "ascending"), ("position", "ascending")]
    )
    who = found["subscriber"].to_numpy(zero_copy_only=False)
    later = np.char.startswith(found["event"].to_numpy(zero_copy_only=False).astype(str), "1.")
    mine = np.flatnonzero(who != "s0")
    seam = next(i for i in mine if who[i] == who[i + 1] and not later[i] and later[i + 1])
    order = np.arange(len(who))
    order[[seam, seam + 1]] = order[[seam + 1, seam]]
    events = found["event"].take(pa.array(order))
    swapped = found.select(["subscriber", "position"]).append_column("event", events)
    pq.write_table(swapped, tmp_path / "swapped")
    judged = violations(tmp_path / "swapped")
    assert (judged["pairwise-order"], judged["acyclic"]) == (1, 1)
