"""The page of experiments shows every experiment, and no number that is not in a result file."""

import re
from pathlib import Path

import msgspec

from unisono.experiments import EXPERIMENTS, Outcome, Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "experiments.md"


def rows_of(name: str) -> list[Row]:
    return msgspec.json.decode((ROOT / "experiments" / f"{name}.json").read_bytes(), type=Outcome).rows


def short(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def stuck(row: Row) -> str:
    return f" ({row.ours['stuck']:.0%} stuck)" if row.ours["stuck"] else ""


def line(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def sizes() -> list[str]:
    found = []
    for row in rows_of("sequencer/timestamp-size"):
        o = row.ours
        paper = f"{row.paper['mean_size']:g}" if row.paper else ""
        full, delta = (f"{o[f'{e}_entries']} / {o[f'{e}_bytes']}" for e in ("full", "delta"))
        found.append(
            line(row.setting["shape"], o["mean_size"], paper, o["std_size"], f"{o['max_size']:g}", full, delta)
        )
    return found


def table() -> list[str]:
    """A line per scheme, a column per sites and interest; a last line with the bounds."""
    cells: dict[str, list[str]] = {}
    for row in rows_of("sequencer/wan-latency"):
        if row.setting["interest"] not in ("geo", "spray"):
            continue
        cells.setdefault(str(row.setting["scheme"]), []).append(short(row.ours["ratio"]) + stuck(row))
        if row.setting["scheme"] == "direct, unordered":
            cells.setdefault("lower bound", []).append(short(row.ours["bound"]))
    bounds = cells.pop("lower bound")
    return [line(scheme, *found) for scheme, found in cells.items()] + [line("lower bound", *bounds)]


def one_site() -> list[str]:
    found: dict[str, list[str]] = {}
    for row in rows_of("sequencer/wan-latency"):
        if row.setting["interest"] == "geo" and "early" in str(row.setting["scheme"]):
            found.setdefault(str(row.setting["scheme"]), []).append(short(row.ours["one_site_ratio"]))
    return [line(scheme, *cells) for scheme, cells in found.items()]


def sweep() -> list[str]:
    cells: dict[str, list[str]] = {}
    shares: dict[str, None] = {}
    for row in rows_of("sequencer/wan-latency"):
        if "remote" in row.setting:
            shares[f"{row.setting['remote']:.0%}"] = None
            cells.setdefault(str(row.setting["scheme"]), []).append(short(row.ours["ratio"]))
            if row.setting["scheme"] == "star, early, placed":
                cells.setdefault("lower bound", []).append(short(row.ours["bound"]))
    return [line("remote", *shares)] + [line(scheme, *found) for scheme, found in cells.items()]


def change() -> list[str]:
    cells: dict[str, list[str]] = {}
    for row in rows_of("sequencer/popularity-change"):
        cells.setdefault(str(row.setting["ranking"]), []).append(short(row.ours["ratio"]))
    return [line(ranking, *found) for ranking, found in cells.items()]


def overlay() -> list[str]:
    """A line per scheme, a column per workload: extra messages / extra hops, per publication and delivery."""
    cells: dict[str, list[str]] = {}
    for row in rows_of("overlay/costs"):
        o = row.ours
        degree = f" ({o['ordering_degree']:.3f})" if o.get("ordering_degree", 1.0) < 1 else ""
        both = f"{o['extra_messages_per_publication']:.2f} / {abs(o['extra_hops_mean']):.2f}"
        cells.setdefault(str(row.setting["scheme"]), []).append(both + degree)
    return [line(scheme, *found) for scheme, found in cells.items()]


def covering() -> list[str]:
    found = []
    for row in rows_of("overlay/covering"):
        o, is_on = row.ours, "on" if row.setting["covering"] else "off"
        told, known = o["messages_per_subscription"], o["known_max"]
        found.append(
            line(
                row.setting["widest"],
                row.setting["detection"],
                is_on,
                told,
                known,
                o["messages_per_publication"],
                o["hops_mean"],
            )
        )
    return found


def grid() -> list[str]:
    found = []
    for row in rows_of("content/grid"):
        o, narrow = row.ours, row.setting["filter_width"]
        if narrow in (0.05, 1.0):
            heard, late = o["messages_per_subscriber"], o["latency_ms_mean"]
            entries = o["entries_per_timestamp"]
            found.append(line(narrow, row.setting["cells"], heard, o["events_heard_per_delivered"], entries, late))
    return found


def test_every_experiment_is_on_the_page() -> None:
    listed = re.findall(r"^\| `([a-z]+/[a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(EXPERIMENTS)


def test_tables_are_the_result_files() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    wanted = [*sizes(), *table(), *one_site(), *sweep(), *change(), *overlay(), *covering(), *grid()]
    assert [found for found in wanted if found not in page] == []
