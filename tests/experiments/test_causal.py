"""Experiments of causal order: small ones, and what the baseline is."""

from pathlib import Path

import pytest

from unisono.experiments.baselines.acknowledged import (
    AcknowledgedFrame,
    AcknowledgedMember,
    AcknowledgedSender,
    AcknowledgedSpeak,
    FrameAcknowledged,
    MemberGone,
)
from unisono.experiments.causal.delivery import DeliveryOptions, run
from unisono.experiments.causal.groups import MESH, measured
from unisono.machine import Deliver, Effect, Fired, Restarted, Send
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.causal.config import CausalConfig
from unisono.sim.scenario import parse, with_options

T = 1000
CONFIG = CausalConfig(
    tick_us=Micros(T), eps_ticks=1, life_ticks=8, spread_ticks=8, deadline_ticks_max=10, delay_ticks=2
)  # fmt: skip
ONE, TWO = Address("s1"), Address("s2")


def copies(effects: list[Effect]) -> list[tuple[Address, int]]:
    return [
        (effect.to, effect.message.frame.stamp)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, AcknowledgedFrame)
    ]


def sender(window: int) -> AcknowledgedSender:
    made = AcknowledgedSender(Address("b"), 1, (ONE, TWO), window, CONFIG)
    made.handle(Restarted(), Micros(9 * T))
    return made


def test_a_window_that_is_full_waits_for_its_acknowledgements() -> None:
    b = sender(1)
    assert copies(b.handle(AcknowledgedSpeak("x"), Micros(10 * T))) == [(ONE, 10), (TWO, 10)]
    assert copies(b.handle(AcknowledgedSpeak("y"), Micros(11 * T))) == []
    assert copies(b.handle(FrameAcknowledged(ONE, 10), Micros(12 * T))) == []
    assert copies(b.handle(Fired("round"), Micros(12 * T))) == [(TWO, 10)]
    assert copies(b.handle(FrameAcknowledged(TWO, 10), Micros(13 * T))) == [(ONE, 13), (TWO, 13)]
    assert copies(b.handle(MemberGone(TWO), Micros(14 * T))) == []
    assert copies(b.handle(Fired("round"), Micros(14 * T))) == [(ONE, 13)]


def test_what_waits_for_longer_than_its_life_is_never_sent() -> None:
    b = sender(1)
    b.handle(AcknowledgedSpeak("x"), Micros(10 * T))
    b.handle(AcknowledgedSpeak("y"), Micros(11 * T))
    assert copies(b.handle(Fired("round"), Micros(21 * T))) == []


def test_a_member_of_the_baseline_is_told_in_causal_order() -> None:
    b, member = sender(8), AcknowledgedMember(ONE, CONFIG)
    frames = [
        effect.message
        for at, word in ((10, "x"), (11, "y"))
        for effect in b.handle(AcknowledgedSpeak(word), Micros(at * T))
        if isinstance(effect, Send) and effect.to == ONE
    ]
    told = [
        effect.item.message
        for frame in reversed(frames)
        for effect in member.handle(frame, Micros(12 * T))
        if isinstance(effect, Deliver)
    ]
    assert told == ["x", "y"]


def test_gossip_and_windows_are_measured_alike() -> None:
    rows = {row.setting["scheme"]: row.ours for row in run(DeliveryOptions(subscribers=10, sleep=0.4, rounds=8))}
    assert rows["gossip"]["ratio"] > 0.9
    assert rows["acknowledged, window 4"]["ratio"] <= rows["acknowledged, window 8"]["ratio"] <= 1.0
    assert rows["gossip"]["packed_bytes"] == 4
    assert all(row["metadata_bytes"] > 0 for row in rows.values())


@pytest.mark.parametrize("count", [1, 3])
def test_groups_make_vectors_longer(count: int) -> None:
    scenario = with_options(
        parse(MESH, "groups", Path()),
        {"workload.clients": 4, "workload.duration": "400ms", "options.groups": [f"t{i}" for i in range(count - 1)]},
    )
    found = measured(scenario, 1)
    assert found["delivered"] > 0
    assert found["vector_bytes"] > 2
