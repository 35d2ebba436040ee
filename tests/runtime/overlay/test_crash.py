"""kill -9 of a broker in the middle of an overlay under load: no inversion, one notice each, every loss covered."""

import asyncio
import signal
from pathlib import Path

import pytest

import unisono
from tests.runtime.overlay.harness import PATIENCE_S, TOKEN, Plan, Run, start_broker, whole
from tests.runtime.overlay.test_overlay import chain
from unisono.audit import Trace, judge_trace
from unisono.model.deployment import dump_deployment


def check(directory: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(TOKEN, "only for this test")
    run = Run(directory, plan)
    for verdict in asyncio.run(run.play()):
        assert verdict.holds, f"seed {plan.seed}: {verdict.judge}: {verdict.witness}"
    return run


@pytest.mark.campaign  # real processes: seconds on a quiet machine, minutes on a loaded one
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


def test_an_event_held_beyond_the_deadline_is_a_gap_and_is_never_slipped_in(tmp_path: Path) -> None:
    """The upper broker stands still, so no echo comes; what waits for one below is given up and told."""

    async def run() -> None:
        deployment = chain(2, held_ms=300)
        file = tmp_path / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        processes = [start_broker(file, name) for name in ("b0", "b1")]
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                unisono.connect(file, region="r0", timeout=PATIENCE_S) as top,
                unisono.connect(file, region="r1", timeout=PATIENCE_S) as low,
                top.subscribe("t") as above,
                low.subscribe("t", deadline="500ms") as below,
            ):
                number = await whole(top, low, above, below)
                processes[0].send_signal(signal.SIGSTOP)
                assert isinstance(await low.publish("t", "held"), unisono.Accepted)
                told = await anext(below)
                while told.gap is None or told.gap.first != number + 1:
                    assert told.data != "held"
                    told = await anext(below)
                assert "held longer than 300000 us" in told.gap.reason
                processes[0].send_signal(signal.SIGCONT)
                while told.data != "later":  # a slow machine may hold this one too long as well
                    await low.publish("t", "later")
                    told = await anext(below)
                    assert told.data != "held"
                while (await anext(above)).data != "held":
                    pass  # it had climbed before it was given up below
        finally:
            for process in processes:
                process.kill()
                process.wait()

    asyncio.run(run())


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 13))
def test_brokers_killed_again_and_again_cost_no_order_and_hide_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    brokers = 4 + seed % 2
    check(tmp_path, Plan(seed, brokers=brokers, victim=1 + seed % (brokers - 2), crashes=3, away=200), monkeypatch)
