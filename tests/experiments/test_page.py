"""The page of experiments shows every experiment, and no number that is not in a result file."""

import re
from pathlib import Path

import msgspec

from unisono.experiments import EXPERIMENTS, Outcome, ResultRow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "experiments.md"


def rows_of(name: str) -> list[ResultRow]:
    return msgspec.json.decode((ROOT / "experiments" / f"{name}.json").read_bytes(), type=Outcome).rows


def short(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def stuck(row: ResultRow) -> str:
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


EARLY = ("star, early", "star, early, placed")


def one_site() -> list[str]:
    found: dict[str, list[str]] = {}
    for row in rows_of("sequencer/wan-latency"):
        if row.setting["interest"] == "geo" and row.setting["scheme"] in (*EARLY, "clock, leans"):
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


def entourages() -> list[str]:
    points: dict[tuple[object, object], list[ResultRow]] = {}
    for row in rows_of("regions/latency"):
        points.setdefault((row.setting["rate"], row.setting["subscribers"]), []).append(row)
    found = []
    for (rate, count), rows in points.items():
        cells = [f"{row.ours['latency_ms']:.1f} ± {row.ours['deviation_ms']:.1f}" for row in rows]
        paper = f"{rows[-1].paper['less']:.0%}" if "less" in rows[-1].paper else ""
        found.append(line(rate, count, *cells, f"{rows[-1].ours['less']:.0%}", paper))
    for row in rows_of("regions/resources"):
        o, name = row.ours, row.setting
        late = f"{o['latency_ms']:.1f} ± {o['deviation_ms']:.1f}"
        found.append(
            line(name["publisher"], name["subscribers"], late, f"{o['messages_per_s']:.0f}", f"{o['kb_per_s']:.0f}")
        )
    psis = [(row.setting["psi"], row.ours) for row in rows_of("regions/psi")]
    return found + [line(psi, f"{o['connections']:g}", f"{o['latency_ms']:.1f}") for psi, o in psis]


def causal() -> list[str]:
    """Of causal order: delivery and its costs, groups, moving."""
    points: dict[tuple[object, object], list[ResultRow]] = {}
    for row in rows_of("causal/delivery"):
        points.setdefault((row.setting["p"], row.setting["subscribers"]), []).append(row)
    found, costs = [], []
    for (p, count), rows in points.items():
        cells = [f"{row.ours['ratio']:.4f} ({row.ours['rounds']:.1f})" for row in rows]
        found.append(line(p, count, *cells))
        if p == 0.3:
            bytes_each = [f"{row.ours['metadata_bytes']:.0f}" for row in rows]
            kept = [f"{row.ours['state_bytes']:.0f}" for row in rows]
            costs.append(line(count, *bytes_each, *kept, f"{rows[0].ours['frames_per_s']:.0f}"))
    for name, key in (("causal/groups", "groups"), ("causal/mobility", "moves")):
        for row in rows_of(name):
            o = row.ours
            last = f"{o['gaps']:.0f}" if key == "groups" else f"{o['not_accepted']:.1%}"
            times = [f"{o['mean_ms']:.0f}", f"{o['p99_ms']:.0f}"]
            costs.append(line(f"{row.setting[key]:g}", *times, f"{o['vector_bytes']:.0f}", last))
    return found + costs


def replicas() -> list[str]:
    """Rollbacks as shares of arrivals and of operations, a column per rate, the work at the highest; then the rest."""
    cells: dict[str, list[str]] = {}
    for row in rows_of("replicas/rollbacks"):
        cells.setdefault(str(row.setting["scheme"]), []).append(f"{row.ours['rb_ops']:.3f} / {row.ours['rb_txn']:.3f}")
    undos = {row.setting["scheme"]: f"{row.ours['rb_undo']:.2f}" for row in rows_of("replicas/rollbacks")}
    found = [line(scheme, *shares, undos[scheme]) for scheme, shares in cells.items()]
    late: dict[str, list[str]] = {}
    for row in rows_of("replicas/latency"):
        late.setdefault(str(row.setting["scheme"]), []).append(f"{row.ours['latency_ms']:.0f}")
    found += [line(scheme, *values) for scheme, values in late.items()]
    held: dict[str, list[str]] = {}
    for row in rows_of("replicas/buffer"):
        cell = f"{row.ours['rb_ops']:.3f}, {row.ours['latency_ms']:.0f} ms"
        held.setdefault(str(row.setting["scheme"]), []).append(cell)
    return found + [line(scheme, *values) for scheme, values in held.items()]


def test_every_replica_ends_equal() -> None:
    assert all(row.ours["equal"] == 1.0 for row in rows_of("replicas/rollbacks"))


def test_every_experiment_is_on_the_page() -> None:
    listed = re.findall(r"^\| `([a-z]+/[a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(EXPERIMENTS)


def test_tables_are_the_result_files() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    wanted = [
        *sizes(),
        *table(),
        *one_site(),
        *sweep(),
        *change(),
        *overlay(),
        *covering(),
        *grid(),
        *entourages(),
        *causal(),
        *replicas(),
    ]
    assert [found for found in wanted if found not in page] == []
