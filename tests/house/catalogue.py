"""The page of metrics: docs/reference/metrics.md is made from the catalogue by `python -m tests.house.catalogue`.

What the dashboard asks for is checked against the same catalogue (`test_catalogue.py`).
"""

import re
from collections.abc import Iterable
from pathlib import Path

from unisono.model.metrics import CATALOGUE, OF_NODES, OF_SESSIONS, Metric

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "unisono.json"
_USED = re.compile(r"\b(unisono_[a-z_]+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
FROM_PROMETHEUS = frozenset(("instance", "job"))

HEAD = """# Metrics

Made from the catalogue in `unisono.model.metrics` by `python -m tests.house.catalogue`; a test holds it up to date, and
the [dashboard](../../deploy/grafana/unisono.json) to it.

Every node serves them at `/metrics`, on loopback, 1000 above the port it listens on (`nodes.observe`, see
[operations](operations.md)). A topic has lines of its own while it is among the 100 with the highest value at its node;
all others are one line, `topic="(others)"`. A node with more than 10 000 topics at home shows only how many there are.
Nothing is counted for the sake of a metric but bytes.
"""


def rows(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


def page() -> str:
    return (
        f"{HEAD}\n## Of a node\n\n{rows(OF_NODES)}\n\n## Of a session\n\n"
        "A program that uses unisono has these with `session.metrics()`, as text for Prometheus; it serves them\n"
        f"itself.\n\n{rows(OF_SESSIONS)}\n"
    )


def unknown_in(expression: str) -> list[str]:
    """What an expression of the dashboard names that the catalogue does not have."""
    found = []
    allowed = set(FROM_PROMETHEUS)
    for name, selection in _USED.findall(expression):
        metric = CATALOGUE.get(name)
        if metric is None:
            found.append(name)
            continue
        allowed |= set(metric.labels)
        chosen = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selection)
        found += [f"{name}{{{label}}}" for label in chosen if label not in {*metric.labels, *FROM_PROMETHEUS}]
    for group in _BY.findall(expression):
        found += [label for label in map(str.strip, group.split(",")) if label not in allowed]
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
