"""kill -9 of a broker in the middle of an overlay under load: no inversion, one notice each, every loss covered."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.overlay.harness import TOKEN, Plan, Run
from unisono.audit import Trace, judge_trace


def check(directory: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(TOKEN, "only for this test")
    run = Run(directory, plan)
    for verdict in asyncio.run(run.play()):
        assert verdict.holds, f"seed {plan.seed}: {verdict.judge}: {verdict.witness}"
    return run


def test_a_broker_killed_under_load_costs_no_order_and_everybody_behind_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = check(tmp_path, Plan(), monkeypatch)
    journal = run.journal()
    journal.records = [record for record in journal.records if record.kind != "cut"]
    (without,) = judge_trace(Trace(journal), ("complete",))
    assert without.violations > 0, "nothing was lost, so nothing was tried"
    for listener in run.listeners:
        if listener.broker == run.plan.victim:
            assert "the link to broker b1 was lost" in str(listener.ended)
            continue
        (cut,) = listener.cuts
        last = dict(cut.publishers)
        assert sorted(last) == sorted(run.far_of(listener))
        for publisher, number in last.items():
            assert listener.before_cut[publisher] <= number < max(listener.heard[publisher])


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 13))
def test_brokers_killed_again_and_again_cost_no_order_and_hide_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    brokers = 4 + seed % 2
    check(tmp_path, Plan(seed, brokers=brokers, victim=1 + seed % (brokers - 2), crashes=3, away=200), monkeypatch)
