"""Large groups: CPU and memory per message, by how many topics the same two subscribers hear.

A node with the embedded broker, a publisher and the two subscribers, each of the three a process of its own. The
publisher hands over turns of 64 events on topics drawn at random, and waits for their outcomes after 16 turns. The node
has had turns enough to use its compiled kernel. `slope`
is what one more topic of the group adds to a message, in nanoseconds, between this case and the first.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

from joins import started_node
from ordering.spent import cpu_s

import unisono
from unisono.runtime.driver.loop import run as run_loop

SIZES = (2, 50, 200, 500)
MESSAGES, TURN, TURNS_AT_ONCE = 20_480, 64, 16
WARM_TURNS, WARM_S = 220, 5.0
PAYLOAD = bytes(100)
ROLES = ("publisher", "node", "subscribers")


def names(size: int) -> list[str]:
    return [f"t{number}" for number in range(size)]


async def _publish(file: str, size: int, messages: int) -> None:
    dice = Random(size)
    async with unisono.connect(file, timeout=60) as session:
        publishers = [await session.publisher(name) for name in names(size)]

        async def publish(turns: int, at_once: int) -> None:
            for number in range(1, turns + 1):
                for _ in range(TURN):
                    await publishers[dice.randrange(size)].send(PAYLOAD)
                await asyncio.sleep(0)
                if number % at_once == 0:
                    await session.drain()
            await session.drain()

        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            turns, at_once = map(int, line.split())
            await publish(turns, at_once)
            print("published", flush=True)


async def _subscribe(file: str, size: int, messages: int) -> None:
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(unisono.connect(file, timeout=60)) for _ in range(2)]
        streams = [await stack.enter_async_context(session.subscribe(*names(size))) for session in sessions]
        print("ready", flush=True)

        async def read(stream: Any, count: int) -> None:
            heard = 0
            async for batch in stream.batches():
                heard += len(batch)
                if heard >= count:
                    return

        while line := await asyncio.to_thread(sys.stdin.readline):
            await asyncio.gather(*(read(stream, int(line)) for stream in streams))
            print("heard", flush=True)


def _say(process: "Popen[str]", what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def _hear(process: "Popen[str]") -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError("a process of the benchmark has ended")
    return line


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(size: int, messages: int) -> dict[str, Any]:
    Path("out").mkdir(exist_ok=True)
    with ExitStack() as stack:
        name = Path(stack.enter_context(TemporaryDirectory(dir="out", prefix="bench-groups-"))).absolute()
        _, node = stack.enter_context(started_node(name))
        people: list[Popen[str]] = []
        for role in ("subscribe", "publish"):
            command = [sys.executable, __file__, "--role", role, str(name / "deployment.toml"), str(size)]
            people.append(stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True)))
            stack.callback(people[-1].terminate)
            _hear(people[-1])
        subscribers, publisher = people

        def run_all(turns: int, at_once: int = TURNS_AT_ONCE) -> None:
            _say(subscribers, str(turns * TURN))
            _say(publisher, f"{turns} {at_once}")
            _hear(publisher)
            _hear(subscribers)

        run_all(WARM_TURNS, 1)
        time.sleep(WARM_S)  # the kernel is compiled beside the loop
        run_all(TURNS_AT_ONCE)
        pids = (publisher.pid, node.pid, subscribers.pid)
        before = [cpu_s(pid) for pid in pids]
        run_all(messages // TURN)
        spent = [(cpu_s(pid) - was) / messages * 1e6 for pid, was in zip(pids, before)]
        memory = [round(_memory_mb(pid), 1) for pid in pids]
    spent[2] /= 2  # for each of the two
    row: dict[str, Any] = {"case": f"group of {size}", "messages": messages}
    row |= {f"{role}_us": round(us, 2) for role, us in zip(ROLES, spent)}
    row |= {f"{role}_mb": mb for role, mb in zip(ROLES, memory)}
    return row | {"load": round(os.getloadavg()[0], 1)}


def run(sizes: tuple[int, ...] = SIZES, messages: int = MESSAGES) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in sizes:
        row = measure(size, messages)
        for role in ROLES if rows else ():
            more = (row[f"{role}_us"] - rows[0][f"{role}_us"]) / (size - sizes[0]) * 1000
            row[f"{role}_slope_ns"] = round(more, 1)
        rows.append(row)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("size", nargs="?", type=int)
    parser.add_argument("--role", choices=["publish", "subscribe"])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--messages", type=int, default=MESSAGES)
    asked = parser.parse_args()
    if asked.role is not None:
        role = _publish if asked.role == "publish" else _subscribe
        run_loop(role(asked.file, asked.size, asked.messages))
    else:
        for one in run(tuple(asked.sizes), asked.messages):
            sys.stdout.write(json.dumps(one) + "\n")
