"""Groups from subscriptions: the pairs two subscribers share, the nodes a request visits, and files that are wrong."""

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from unisono.cli.plan import plan
from unisono.errors import FormatError
from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec, TopicSpec
from unisono.planning import counting
from unisono.planning.files import read_subscriptions
from unisono.planning.groups import plan_groups, plan_many

FIGURE_4 = [("Si", "T1"), ("Si", "T2"), ("Si", "T3"), ("Sj", "T1"), ("Sj", "T2"), ("Sk", "T2")]
LINE = Deployment(
    version=1,
    nodes=(NodeSpec("n1"), NodeSpec("n2", parent="n1"), NodeSpec("n3", parent="n2")),
    topics=(TopicSpec("T1", "n1"), TopicSpec("T2", "n2"), TopicSpec("T3", "n3")),
)


def test_the_groups_of_figure_4_are_those_of_the_paper() -> None:
    found = {group.topic: group.members for group in plan_groups(FIGURE_4).groups}
    assert found == {"T1": ("T2",), "T2": ("T1",), "T3": ()}


def test_causal_order_needs_the_pairs_of_single_subscribers_too() -> None:
    found = {group.topic: group.members for group in plan_groups(FIGURE_4, shared_min=1).groups}
    assert found == {"T1": ("T2", "T3"), "T2": ("T1", "T3"), "T3": ("T1", "T2")}


def test_a_request_climbs_only_as_far_as_its_group_demands() -> None:
    nodes = {group.topic: group.nodes for group in plan_groups(FIGURE_4, deployment=LINE).groups}
    assert nodes == {"T1": ("n1",), "T2": ("n2", "n1"), "T3": ("n3",)}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("uvwxyz")), max_size=30))
def test_a_pair_is_in_a_group_exactly_when_enough_subscribers_share_it(rows: list[tuple[str, str]]) -> None:
    interests = {s: {t for who, t in rows if who == s} for s, _ in rows}
    for group in plan_groups(rows).groups:
        for other in {t for _, t in rows} - {group.topic}:
            shared = sum(group.topic in topics and other in topics for topics in interests.values())
            assert (other in group.members) == (shared >= 2)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("uvwxyz")), max_size=60), st.sampled_from([1, 2, 3])
)
def test_many_rows_are_counted_to_the_same_plan(rows: list[tuple[str, str]], shared_min: int) -> None:
    assert plan_many(rows, shared_min) == plan_groups(rows, shared_min)


def test_sums_in_between_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(3)
    rows = [(f"s{dice.randrange(300)}", f"t{dice.randrange(40)}") for _ in range(4000)]
    expected = plan_groups(rows, 20)
    monkeypatch.setattr(counting, "PENDING_MAX", 500)
    assert plan_many(rows, 20) == expected
    assert any(group.members for group in expected.groups)
    assert not all(len(group.members) == 39 for group in expected.groups)


def test_all_file_forms_read_alike(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("topic,subscriber\n" + "".join(f"{t},{s}\n" for s, t in FIGURE_4))
    lines = [json.dumps({"subscriber": s, "topic": t, "since": 3}) for s, t in FIGURE_4]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    columns = {"subscriber": [s for s, _ in FIGURE_4], "topic": [t for _, t in FIGURE_4]}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        assert list(read_subscriptions(tmp_path / f"s.{suffix}")) == FIGURE_4


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("s.csv", "subscriber,colour\na,red\n", "no column topic"),
        ("s.csv", "subscriber,topic\na,\n", "line 2"),
        ("s.jsonl", '{"subscriber": "a", "topic": "t"}\n{"subscriber"', "line 2"),
        ("s.jsonl", '{"subscriber": "a"}', "no column topic"),
        ("s.parquet", "not parquet", r"s\.parquet"),
        ("s.txt", "", "use .csv"),
    ],
)
def test_a_wrong_file_is_told_with_the_place(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=problem):
        list(read_subscriptions(tmp_path / name))


def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("topic,subscriber\n" + "".join(f"{t},{s}\n" for s, t in FIGURE_4))
    result = CliRunner().invoke(plan, ["groups", str(tmp_path / "s.csv"), "--json"])
    found = json.loads(result.stdout)
    assert found["mean_size"] == pytest.approx(5 / 3)
    assert found["groups"][0] == {"topic": "T1", "subscribers": 2, "size": 2, "members": ["T2"], "nodes": []}
