"""Metrics are what their catalogue says: the page is made from it, the dashboard asks for nothing else."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.house.catalogue import DASHBOARD, PAGE, page, unknown_in
from unisono.errors import InvariantError
from unisono.model.metrics import CATALOGUE, OTHERS, Sample, expose, of_topics

SOURCES = PAGE.parents[2] / "src"
OPERATIONS = PAGE.with_name("operations.md")


def test_the_page_of_metrics_is_made_from_the_catalogue() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.house.catalogue"


def expressions(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        for each in part.values():
            yield from expressions(each)
    elif isinstance(part, list):
        for each in part:
            yield from expressions(each)


def test_the_dashboard_asks_only_for_what_the_catalogue_has() -> None:
    asked = list(expressions(json.loads(DASHBOARD.read_text(encoding="utf-8"))))
    assert len(asked) >= 12
    assert {expression: found for expression in asked if (found := unknown_in(expression))} == {}
    named = {name for expression in asked for name in re.findall(r"unisono_[a-z_]+", expression)}
    assert {"unisono_ready", "unisono_peer_up", "unisono_broker_server_up", "unisono_topic_climbing"} <= named


@pytest.mark.parametrize(
    "wrong",
    [
        "unisono_no_such_metric",
        'unisono_peer_up{server="a"}',
        "sum by (topic) (unisono_peer_up)",
        "rate(unisono_commits[1m])",
    ],
)
def test_an_expression_that_nothing_answers_is_found(wrong: str) -> None:
    assert unknown_in(wrong) != []


def test_what_is_exposed_is_read_back_by_prometheus_whatever_a_topic_is_called() -> None:
    name = 'a"b\\c\nd'
    text = expose([Sample("unisono_topic_numbered_total", 7, (name,)), Sample("unisono_clients", 2)])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["unisono_topic_numbered"].samples
    assert (sample.labels, sample.value) == ({"topic": name}, 7)
    assert families["unisono_clients"].samples[0].value == 2
    with pytest.raises(InvariantError, match="catalogue"):
        expose([Sample("unisono_unheard_of", 1)])
    with pytest.raises(InvariantError, match="catalogue"):
        expose([Sample("unisono_clients", 1, ("label",))])


def test_topics_beyond_the_bound_are_one_line_and_their_sum_is_kept() -> None:
    values = {f"t{number}": float(number) for number in range(10)}
    samples = of_topics(values, "unisono_topic_climbing", 3)
    assert [(sample.labels[0], sample.value) for sample in samples] == [
        ("t7", 7.0),
        ("t8", 8.0),
        ("t9", 9.0),
        (OTHERS, 21.0),
    ]


def test_no_two_metrics_have_one_name_and_every_name_is_prometheus() -> None:
    assert all(re.fullmatch(r"unisono_[a-z_]+", name) for name in CATALOGUE)
    assert all(name.endswith("_total") == (metric.kind == "counter") for name, metric in CATALOGUE.items())


def test_the_page_of_operations_has_every_event_of_the_log() -> None:
    """`say(…, event="…")` in the sources, and rows of the table."""
    said = {event for path in SOURCES.rglob("*.py") for event in re.findall(r'event="([a-z-]+)"', path.read_text())}
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", OPERATIONS.read_text(encoding="utf-8"), re.M)
    assert {"broker-lost", "few-files"} <= said
    assert said - {event for row in rows for event in re.findall(r"`([a-z-]+)`", row)} == set()
