"""The menu of faults for real processes, each as a user would cause or suffer it, and how it is healed.

A run plays several at once, each at a moment and on a victim that its own dice choose (seed and place in the plan), so
a run can be played again however busy the machine is. docs/reference/what-happens-when.md has a line for each.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Literal, get_args

from msgspec import Struct, structs

from tests.runtime.crash import broker_faults, data_faults, moving_faults, network_faults, process_faults
from tests.runtime.crash.harness import AWAY_S, BOUND_S, Plan, Run
from tests.runtime.crash.verdicts import judge, judge_stopped, silent_errors
from unisono.errors import UnisonoError

Broker = Literal["nats", "jetstream", "cluster"]
EVERYWHERE: tuple[Broker, ...] = get_args(Broker)
LEASE_S = 4.0
LONG_S = (8.0, 12.0)
"""What is away for so long is told as stalled, and publications that wait for it as unknown (after 10 s)."""


class Fault(Struct, frozen=True):
    """One line of the menu."""

    play: Callable[[Run, Random], Awaitable[None]]
    brokers: tuple[Broker, ...] = EVERYWHERE
    """Where there is such a thing."""
    is_drawn: bool = True
    """Else it comes only to runs that are asked to have it (`campaign --moves`): drawn plans stay as they were."""
    forgets: bool = False
    """Something that was kept is gone: one such per run, since nobody promises anything for two at once."""


MENU: dict[str, Fault] = {
    "kill-node": Fault(process_faults.kill_node),
    "kill-broker": Fault(process_faults.kill_broker),
    "kill-publisher": Fault(process_faults.kill_publisher),
    "kill-subscriber": Fault(process_faults.kill_subscriber),
    "pause-node": Fault(process_faults.pause_node),
    "pause-broker": Fault(process_faults.pause_broker),
    "pause-client": Fault(process_faults.pause_client),
    "pause-past-lease": Fault(process_faults.pause_past_lease),
    "double-start": Fault(process_faults.double_start),
    "clock-step": Fault(process_faults.clock_step),
    "node-added": Fault(process_faults.node_added),
    "churn": Fault(process_faults.churn),
    "move-homes": Fault(moving_faults.move_homes, is_drawn=False),
    "cut-both-ways": Fault(network_faults.cut_both_ways),
    "cut-one-way": Fault(network_faults.cut_one_way),
    "broken-connections": Fault(network_faults.broken_connections),
    "delay": Fault(network_faults.delay),
    "broker-route-cut": Fault(network_faults.broker_route_cut, ("cluster",)),
    "full-disk": Fault(data_faults.full_disk),
    "failing-sync": Fault(data_faults.failing_sync),
    "rolled-back-data": Fault(data_faults.rolled_back_data, forgets=True),
    "truncated-data": Fault(data_faults.truncated_data, forgets=True),
    "deleted-data": Fault(data_faults.deleted_data, forgets=True),
    "foreign-data": Fault(data_faults.foreign_data),
    "stream-full": Fault(broker_faults.stream_full, ("jetstream",)),
    "large-payload": Fault(broker_faults.large_payload),
    "stream-deleted": Fault(broker_faults.stream_deleted, ("jetstream",), forgets=True),
}


def drawn_plan(seed: int) -> Plan:
    """One run of the campaign: the menu in turn for the first fault, anything that goes with it for the others. In one
    of ten everything takes longer than callers wait, in three of ten there is five times as much to do."""
    dice, names = Random(seed), [name for name, fault in MENU.items() if fault.is_drawn]
    chosen = [names[seed % len(names)]]
    broker = dice.choice(MENU[chosen[0]].brokers)
    is_long, is_busy = seed % 10 == 9, seed % 10 in (2, 4, 7)
    count = 2 if is_long else dice.randint(2, 5)
    for name in dice.sample(names, len(names)):
        if len(chosen) == count:
            break
        forgets = any(MENU[each].forgets for each in chosen)
        if name not in chosen and broker in MENU[name].brokers and not (forgets and MENU[name].forgets):
            chosen.append(name)
    plan = plan_of(seed, chosen, broker, LONG_S if is_long else AWAY_S)
    return structs.replace(plan, interval_us=2_000) if is_busy else plan


def with_moves(plan: Plan) -> Plan:
    """The same, while homes move all the time."""
    return structs.replace(plan, faults=(*plan.faults, "move-homes"))


def plan_of(seed: int, faults: list[str], broker: Broker, away_s: tuple[float, float] = AWAY_S) -> Plan:
    lease_s = LEASE_S if "pause-past-lease" in faults else None
    own_streams = "stream-full" in faults and seed % 2 == 0
    return Plan(seed, tuple(faults), broker, own_streams=own_streams, away_s=away_s, lease_s=lease_s)


async def play(run: Run) -> list[str]:
    """The whole run; returns what is wrong."""
    try:
        async with asyncio.timeout(BOUND_S):
            await run.begin()
            run.enter("faults")
            await asyncio.gather(*(_play_one(run, place) for place in range(len(run.plan.faults))))
            await run.finish()
            run.enter("what is kept is read")
            kept = await run.read_back()
            run.problems += judge(run, kept)
            await run.end_all()
    except TimeoutError:
        run.problems += [f"hang: {run.phase}, after {BOUND_S:.0f} s; stacks are in the logs", *judge_stopped(run)]
        run.show_stacks()
        await asyncio.sleep(1)
    except (AssertionError, UnisonoError, OSError) as error:
        run.problems.append(f"{run.phase}: {error!r}")
    finally:
        await run.stop()
    return run.problems + silent_errors(run)


async def _play_one(run: Run, place: int) -> None:
    dice = Random(f"{run.plan.seed} {place}")
    await asyncio.sleep(dice.uniform(0.05, 0.4) + place * dice.uniform(0.0, 1.0))
    await MENU[run.plan.faults[place]].play(run, dice)
