"""The cost table of specs: content-order, section 13, and what the paper's section V compares."""

import pytest

from unisono.experiments.overlay_costs import Options, Row, run


@pytest.fixture(scope="module")
def rows() -> dict[tuple[object, object], Row]:
    return {(row.setting["workload"], row.setting["scheme"]): row for row in run(Options(publications=1))}


def extra(rows: dict[tuple[object, object], Row], workload: str, scheme: str) -> float:
    return rows[workload, scheme].ours["extra_messages_per_publication"]


def test_the_cost_is_one_echo_per_climbed_link_with_a_conflict(rows: dict[tuple[object, object], Row]) -> None:
    assert extra(rows, "100 %", "exact") == 2.0
    assert extra(rows, "50 % local", "exact") == 1.5
    assert extra(rows, "25 % local", "exact") == 1.0


def test_without_conflicts_order_is_free(rows: dict[tuple[object, object], Row]) -> None:
    assert extra(rows, "no conflict", "exact") == extra(rows, "no conflict", "fast") == 0.0
    assert rows["no conflict", "exact"].ours["same_broker_hops"] == 0.0
    assert extra(rows, "no conflict", "always") > 0.5


def test_the_printed_algorithm_acknowledges_nearly_every_link_twice(rows: dict[tuple[object, object], Row]) -> None:
    assert extra(rows, "100 %", "printed, progressive") == 45.0


def test_ordered_schemes_lose_nothing_and_only_plain_forwarding_and_the_printed_text_misorder(
    rows: dict[tuple[object, object], Row],
) -> None:
    for (workload, scheme), row in rows.items():
        if "ordering_degree" in row.ours:
            assert row.ours["missing"] == 0, (workload, scheme)
            if scheme in ("exact", "fast", "clients", "always"):
                assert row.ours["ordering_degree"] == 1.0, (workload, scheme)
    assert rows["100 %", "plain FIFO"].ours["ordering_degree"] < 1.0


def test_sequencers_pay_for_locality_that_the_overlay_uses(rows: dict[tuple[object, object], Row]) -> None:
    assert extra(rows, "25 % local", "sequencer, routed through the root") == 3.0
    assert extra(rows, "100 %", "sequencer, number first") == 4.0
