"""The cost table of specs: content-order, section 13, and what the paper's section V compares."""

from functools import cache

from unisono.experiments.overlay import covering
from unisono.experiments.overlay.costs import OverlayCostsOptions, ResultRow, run

RULES = ("W8",)

MISORDERING = ("plain FIFO", "printed, batch", "printed, progressive", "printed, sorted queue")


@cache
def rows(workload: str) -> dict[object, ResultRow]:
    return {row.setting["scheme"]: row for row in run(OverlayCostsOptions(publications=1, only=workload))}


def extra(workload: str, scheme: str) -> float:
    return rows(workload)[scheme].ours["extra_messages_per_publication"]


def test_the_cost_is_one_echo_per_climbed_link_with_a_conflict() -> None:
    assert extra("100 %", "exact") == 2.0
    assert extra("25 % local", "exact") == 1.0


def test_without_conflicts_order_is_free() -> None:
    assert extra("no conflict", "exact") == extra("no conflict", "fast") == 0.0
    assert rows("no conflict")["exact"].ours["same_broker_hops"] == 0.0
    assert extra("no conflict", "always") > 0.5


def test_the_printed_algorithm_acknowledges_nearly_every_link_twice() -> None:
    assert extra("100 %", "printed, progressive") == 45.0


def test_ordered_schemes_lose_nothing_and_plain_forwarding_misorders() -> None:
    for scheme, row in rows("100 %").items():
        if "ordering_degree" in row.ours:
            assert row.ours["missing"] == 0, scheme
            assert (row.ours["ordering_degree"] == 1.0) == (scheme not in MISORDERING), scheme


def test_lamport_keys_ask_the_whole_tree() -> None:
    """The pattern of specs: content-order, section 13, scheme A; ours asks only where rivals are."""
    assert extra("100 %", "Lamport keys") > 40
    assert extra("no conflict", "Lamport keys") == 0
    assert rows("100 %")["Lamport keys"].ours["same_broker_hops"] > 2 * rows("100 %")["exact"].ours["same_broker_hops"]


def test_sequencers_pay_for_locality_that_the_overlay_uses() -> None:
    assert extra("25 % local", "sequencer, routed through the root") == 3.0
    assert extra("100 %", "sequencer, number first") == 4.0


def test_covering_tells_and_remembers_less_and_loses_nothing() -> None:
    found = covering.run(covering.CoveringOptions(cores=2, subscriptions=60, publications=3))
    rows = {tuple(row.setting.values()): row.ours for row in found}
    for wide in (0.5, 0.1, 0.02):
        for detection in ("exact", "clients"):
            without, with_it = rows[wide, detection, False], rows[wide, detection, True]
            assert with_it["deliveries"] == without["deliveries"]
            assert with_it["known_max"] <= without["known_max"]
            assert with_it["messages_per_subscription"] < without["messages_per_subscription"]
            assert with_it["messages_per_change"] < without["messages_per_change"]
