"""Populations: the papers' popularity, rates, and the special cases of the thesis."""

from collections import Counter
from itertools import pairwise
from random import Random
from statistics import mean, pstdev

import pytest

from unisono.model.journal import Record
from unisono.planning.groups import plan_groups
from unisono.sim import scenario
from unisono.sim.workloads import PopularityLaw


@pytest.mark.parametrize(("shape", "published"), [(0.349, 46), (0.901, 17)])
def test_power_law_interest_gives_the_published_group_sizes(shape: float, published: int) -> None:
    """Paper 000, section 5.1: 10 000 clients with 10 of 1000 topics each."""
    popularity, dice = PopularityLaw(1_000, shape), Random(1)
    subscriptions = [popularity.draw_distinct(dice, 10) for _ in range(10_000)]
    groups = plan_groups((str(who), str(topic)) for who, own in enumerate(subscriptions) for topic in own).groups
    alone = 1_000 - len(groups)  # topics that nobody has chosen
    assert (alone + sum(group.size for group in groups)) / 1_000 == pytest.approx(published, abs=1.0)


def test_uniform_is_uniform_and_distinct_is_distinct() -> None:
    uniform, dice = PopularityLaw(50, -1.0), Random(2)
    counts = Counter(uniform.draw(dice) for _ in range(50_000))
    assert len(counts) == 50
    assert max(counts.values()) < 1.25 * min(counts.values())
    assert sorted(uniform.draw_distinct(dice, 99)) == list(range(50))


def played(**options: object) -> list[Record]:
    chosen = scenario.with_options(
        scenario.load("fifo/reorder"), {"workload." + key: value for key, value in options.items()}
    )
    return scenario.play(chosen, 1).records


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record.kind == kind]


def test_poisson_and_fixed_rates() -> None:
    fixed = [r.at_us for r in of_kind(played(arrivals="fixed", rate_per_s=200, duration="2s"), "publish")]
    assert len(fixed) == 400
    assert {later - earlier for earlier, later in pairwise(fixed)} == {5_000}
    random = [r.at_us for r in of_kind(played(rate_per_s=200, duration="5s"), "publish")]
    gaps = [later - earlier for earlier, later in pairwise(random)]
    assert mean(gaps) == pytest.approx(5_000, rel=0.1)
    assert pstdev(gaps) == pytest.approx(5_000, rel=0.15)  # exponential: deviation = mean


def test_worst_case_publishes_on_the_last_topic_only() -> None:
    published = of_kind(played(publications="last"), "publish")
    assert {record.topic for record in published} == {"t3"}


def test_subscribe_all_subscribes_everybody_to_everything() -> None:
    subscribed = of_kind(played(interest="all"), "subscribe")
    assert len({(record.subscriber, record.topic) for record in subscribed}) == 5 * 4


def test_separate_publishers_publish_and_hear_nothing() -> None:
    records = played(publishers=2)
    assert {record.who for record in of_kind(records, "publish")} == {"p0", "p1"}
    assert not {record.subscriber for record in of_kind(records, "deliver")} & {"p0", "p1"}


def test_churn_joins_and_leaves() -> None:
    records = played(churn_per_s=20.0, duration="3s")
    assert len(of_kind(records, "unsubscribe")) > 10
    assert len(of_kind(records, "subscribe")) > 20
