"""Every attack is refused with its reason code, counted under it, and an honest client does not notice."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.hostile.attacks import CASES, Case
from tests.runtime.hostile.world import ME, attacker, target
from unisono.model.limits import REASONS
from unisono.runtime.links import control
from unisono.runtime.links.links import OFFENCES_MAX


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_attack_is_refused_with_its_code_and_the_node_serves(tmp_path: Path, case: Case) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node:
            before = await node.refused(case.code)
            await case.attack(node)
            assert await node.refused(case.code) > before
            await node.serves()

    asyncio.run(run())


def test_who_goes_on_after_many_refusals_is_cut_off(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            await one.say(*[control.Watch(ME, f"x{i}.*") for i in range(5_000)])
            codes = [code async for code in one.codes()]
            assert set(codes) == {"watches"}
            assert len(codes) <= OFFENCES_MAX + 1
            assert await node.refused("watches") <= OFFENCES_MAX + 1
            await node.serves()

    asyncio.run(run())


def test_who_asks_the_same_many_times_in_one_go_is_answered_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            await one.say(*[control.AskReport(ME)] * 1_000)
            await one.say({"type": "the last"})
            reports = 0
            while (body := await one.body()) is not None:
                reports += body.count(b"Report")
            assert 1 <= reports <= 80

    asyncio.run(run())


def test_the_attacks_are_many_and_different() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
    assert {case.code for case in CASES} <= REASONS.keys()
