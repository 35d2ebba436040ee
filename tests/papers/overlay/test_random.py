"""Random trees, filters, schedules, churn and failures against the guarantees of specs: content-order, section 1."""

import pytest

from tests.papers.overlay.fuzz import Fault, Play
from unisono.protocols.overlay.detection import Detection

RULES = ("G",)

CALM = [("exact", 1), ("fast", 1), ("clients", 3), ("always", 3)]
FAILING = [("exact", 1), ("fast", 1), ("clients", 3)]


def play(
    seed: int, detection: Detection, subs: int, churn: float, fault: Fault | None, covering: bool = False
) -> list[str]:
    run = Play(
        seed,
        detection,
        brokers_max=6 if seed % 2 else 4,
        attributes=1 + seed % 2,
        subs_per_client=subs,
        covering=covering,
    )
    run.run(40, churn, start_settled=seed % 3 > 0, fault=fault)
    return run.net.problems(complete=fault is None)


def broken(
    seeds: range, detection: Detection, subs: int, churn: float, fault: Fault | None = None, covering: bool = False
) -> dict[int, str]:
    """Seeds whose run broke a promise, and the first one it broke."""
    found = {seed: play(seed, detection, subs, churn, fault, covering) for seed in seeds}
    return {seed: problems[0] for seed, problems in found.items() if problems}


@pytest.mark.parametrize(("detection", "subs"), CALM)
def test_static_runs_are_ordered_complete_and_come_to_rest(detection: Detection, subs: int) -> None:
    assert broken(range(100), detection, subs, churn=0.0) == {}


@pytest.mark.parametrize(("detection", "subs"), FAILING)
def test_filters_that_come_and_go_keep_the_order_and_lose_nothing(detection: Detection, subs: int) -> None:
    assert broken(range(1000, 1040), detection, subs, churn=0.3) == {}


@pytest.mark.parametrize("fault", ["crash", "cut", "heal"])
@pytest.mark.parametrize(("detection", "subs"), FAILING)
def test_failures_never_misorder(detection: Detection, subs: int, fault: Fault) -> None:
    assert broken(range(2000, 2030), detection, subs, churn=0.2, fault=fault) == {}


@pytest.mark.parametrize("detection", ["exact", "fast"])
def test_rules_for_one_subscription_misorder_clients_with_several(detection: Detection) -> None:
    """The check can fail: section 6.5 says that these two rules are wrong here."""
    assert "disagree" in " ".join(broken(range(80), detection, 3, churn=0.0).values())


@pytest.mark.parametrize(("seed", "detection", "subs"), [(851, "exact", 1), (1355, "clients", 3), (1947, "exact", 1)])
def test_runs_that_once_did_not_come_to_rest(seed: int, detection: Detection, subs: int) -> None:
    """Healing, several new ways to one publisher, withdrawals that arrive twice: docs/decisions, 8."""
    assert play(seed, detection, subs, churn=0.2, fault="heal") == []


@pytest.mark.campaign
@pytest.mark.parametrize("fault", [None, "crash", "cut", "heal"])
@pytest.mark.parametrize(("detection", "subs"), FAILING)
def test_thousands_of_runs_keep_the_promises(detection: Detection, subs: int, fault: Fault | None) -> None:
    assert broken(range(10_000, 13_000), detection, subs, churn=0.25, fault=fault) == {}
