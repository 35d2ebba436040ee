"""Faults of processes: killed, paused, started twice, with a wrong clock; nodes are added, topics come and go."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from random import Random

from tests.runtime.crash import wrong_clock
from tests.runtime.crash.harness import NODE, NODES, Run

CLIENTS = ("publisher-1", "publisher-2", "subscriber-1", "subscriber-2")
HOUR_S = 3600
SPAN_S_MAX = 12.0
"""Shorter than payloads are waited for (`prepared`)."""


def span(run: Run, dice: Random, times: float = 1.0) -> float:
    """How long a fault lasts: short spans are as frequent as long ones."""
    low, high = run.plan.away_s
    return min(times * low * (high / low) ** dice.random(), SPAN_S_MAX)


async def kill_node(run: Run, dice: Random) -> None:
    name, away = dice.choice(NODES), span(run, dice)
    async with run.hold(name):
        run.story.append(f"{name} is killed for {away:.2f} s")
        run.kill(name)
        await asyncio.sleep(away)
        run.start_node(name)
        await run.until_up(name)


async def kill_broker(run: Run, dice: Random) -> None:
    server, away = dice.choice(run.servers), span(run, dice)
    async with run.hold("broker"):
        run.story.append(f"broker {server.config.name} is killed for {away:.2f} s")
        server.kill()
        await asyncio.sleep(away)
        await server.start()


async def kill_publisher(run: Run, dice: Random) -> None:
    number, away = dice.choice((1, 2)), span(run, dice)
    async with run.hold(f"publisher-{number}"):
        run.story.append(f"publisher-{number} is killed for {away:.2f} s")
        run.kill(f"publisher-{number}")
        await asyncio.sleep(away)
        await run.start_publisher(number)


async def kill_subscriber(run: Run, dice: Random) -> None:
    number, away = dice.choice((1, 2)), span(run, dice)
    async with run.hold(f"subscriber-{number}"):
        run.story.append(f"subscriber-{number} is killed for {away:.2f} s")
        run.kill(f"subscriber-{number}")
        await asyncio.sleep(away)
        await run.start_subscriber(number)


async def pause_node(run: Run, dice: Random) -> None:
    await _pause(run, dice.choice(NODES), span(run, dice, 2))


async def pause_client(run: Run, dice: Random) -> None:
    await _pause(run, dice.choice(CLIENTS), span(run, dice, 2))


async def pause_past_lease(run: Run, dice: Random) -> None:
    """A client stands still for so long that its nodes have forgotten it."""
    assert run.plan.lease_s is not None
    await _pause(run, dice.choice(CLIENTS), run.plan.lease_s * dice.uniform(1.2, 1.6))


async def pause_broker(run: Run, dice: Random) -> None:
    server, away = dice.choice(run.servers), span(run, dice, 2)
    async with run.hold("broker"):
        run.story.append(f"broker {server.config.name} stands still for {away:.2f} s")
        server.pause()
        await asyncio.sleep(away)
        server.resume()


async def _pause(run: Run, name: str, away: float) -> None:
    async with run.hold(name):
        run.story.append(f"{name} stands still for {away:.2f} s")
        pid = run.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(away)
        os.kill(pid, signal.SIGCONT)


async def double_start(run: Run, dice: Random) -> None:
    """Somebody starts a node that runs, perhaps by a file with another port: the second has to say no and go."""
    name, other_port = dice.choice(NODES), dice.random() < 0.5
    async with run.hold(name):
        run.story.append(f"{name} is started twice{' at another port' if other_port else ''}")
        await run.until_up(name)
        file, again = run.path(name), f"{name}-again"
        if other_port:
            file = run.path(again)
            file.write_text(_with_any_port(run.path(name), run.port(name)))
        run.start(again, *NODE, str(file), name)
        await run.refuses(again, "is in use by process")
        if run.processes[name].poll() is not None:
            run.problems.append(f"{name} has ended because it was started a second time")
            run.start_node(name)


def _with_any_port(file: Path, port: int) -> str:
    return file.read_text().replace(f'"127.0.0.1:{port}"', '"127.0.0.1:0"')


async def clock_step(run: Run, dice: Random) -> None:
    """The clock of a process jumps while it runs; then the process is started again with that clock."""
    if wrong_clock.compiler() is None:
        run.story.append("clock-step is left out: there is no C compiler")
        return
    name = dice.choice((*NODES, *CLIENTS))
    wrong_s = dice.choice((-1, 1)) * dice.choice((2, 30, HOUR_S, 24 * HOUR_S))
    away = span(run, dice)
    async with run.hold(name):
        run.story.append(f"the clock of {name} is set {wrong_s:+d} s, and it is killed {away:.2f} s later")
        run.set_clock(name, wrong_s)
        await asyncio.sleep(away)
        await _restart(run, name)
        await asyncio.sleep(away)
        run.set_clock(name, 0)
        if dice.random() < 0.5:
            run.story.append(f"{name} is killed again when its clock is right")
            await _restart(run, name)


async def _restart(run: Run, name: str) -> None:
    run.kill(name)
    kind, _, number = name.partition("-")
    if kind == "publisher":
        await run.start_publisher(int(number))
    elif kind == "subscriber":
        await run.start_subscriber(int(number))
    else:
        run.start_node(name)
        await run.until_up(name)


async def node_added(run: Run, dice: Random) -> None:
    """A fourth node: everybody's file names it, the nodes are started again one after the other, clients are not."""
    async with run.hold(*NODES):
        run.story.append("node north is added")
        await run.add_node("north")
        for name in dice.sample(NODES, len(NODES)):
            await run.end(name)
            run.start_node(name)
            await run.until_up(name)
        run.start_node("north")
        await run.until_up("north")


async def churn(run: Run, dice: Random) -> None:
    """Topics are born, subscriptions come and go, until the end."""
    async with run.hold("churner"):
        run.story.append("topics and subscriptions come and go")
        if "churner" not in run.processes:
            await run.start_churner()


def has(tool: str) -> bool:
    return shutil.which(tool) is not None
