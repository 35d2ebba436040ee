"""Faults of the network: slow ways, ways that carry nothing in one direction or both, connections that break."""

import asyncio
from random import Random

from tests.runtime.crash.harness import NODES, Run
from tests.runtime.crash.process_faults import span
from unisono.model.time import Micros
from unisono.runtime.tools.delay import DelayProxy


def _victims(run: Run, dice: Random) -> tuple[str, list[DelayProxy]]:
    """One way between two parties, or all ways of a node."""
    if dice.random() < 0.4:
        name = dice.choice(NODES)
        return name, run.network.ways_of(name)
    dialer, target = dice.choice(run.network.ways())
    return f"{dialer} to {target}", [run.network.between(dialer, target)]


async def cut_both_ways(run: Run, dice: Random) -> None:
    """Nothing passes and nobody is told: what was sent arrives when the way is back."""
    where, proxies = _victims(run, dice)
    away = span(run, dice)
    async with run.hold("network"):
        run.story.append(f"{where}: cut both ways for {away:.2f} s")
        for proxy in proxies:
            proxy.hold(requests=True, answers=True)
        await asyncio.sleep(away)
        for proxy in proxies:
            if dice.random() < 0.5:  # as if TCP had given up meanwhile
                proxy.cut()
            proxy.hold(requests=False, answers=False)


async def cut_one_way(run: Run, dice: Random) -> None:
    where, proxies = _victims(run, dice)
    away, requests = span(run, dice), dice.random() < 0.5
    async with run.hold("network"):
        run.story.append(f"{where}: cut for {'requests' if requests else 'answers'} for {away:.2f} s")
        for proxy in proxies:
            proxy.hold(requests=requests, answers=not requests)
        await asyncio.sleep(away)
        for proxy in proxies:
            if dice.random() < 0.5:
                proxy.cut()
            proxy.hold(requests=False, answers=False)


async def broken_connections(run: Run, dice: Random) -> None:
    """Connections break, again and again; new ones are taken at once."""
    where, proxies = _victims(run, dice)
    times = dice.randint(1, 4)
    async with run.hold("network"):
        run.story.append(f"{where}: broken {times} times")
        for _ in range(times):
            for proxy in proxies:
                proxy.cut()
            await asyncio.sleep(dice.uniform(0.02, 0.3))


async def delay(run: Run, dice: Random) -> None:
    where, proxies = _victims(run, dice)
    away, late_us = span(run, dice, 2), Micros(dice.randint(20_000, 300_000))
    async with run.hold("network"):
        run.story.append(f"{where}: {late_us / 1000:.0f} ms late for {away:.2f} s")
        for proxy in proxies:
            proxy.delay_us = late_us
        await asyncio.sleep(away)
        for proxy in proxies:
            proxy.delay_us = Micros(0)


async def broker_route_cut(run: Run, dice: Random) -> None:
    """The servers of the broker do not hear each other, each still serves its side."""
    assert run.cluster is not None
    away = span(run, dice)
    async with run.hold("broker"):
        run.story.append(f"the route between the broker's servers is cut for {away:.2f} s")
        for proxy in run.cluster.proxies:
            proxy.hold(requests=True, answers=True)
        await asyncio.sleep(away)
        for proxy in run.cluster.proxies:
            if dice.random() < 0.5:
                proxy.cut()
            proxy.hold(requests=False, answers=False)
