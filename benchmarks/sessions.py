"""Many readers: what a node pays per message, and what readers ask it for, with 10 sessions and with 200.

A node runs in a process of its own, the readers share another, on the last core: what they take is not missing where
messages come from. With the embedded broker the node writes every event to
every reader, so what it pays per delivery is what may not grow; in the cases `on nats` a NATS server does that, and the
node pays for order alone. `letters` is what the readers say to the node while they read; nothing is lost, so they need
not say anything. In the cases `far` the publisher's requests travel for 300 ms while its payloads are there at once,
and nobody was told of the distance.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

from joins import started_node
from msgspec.structs import replace
from ordering.spent import cpu_s

import unisono
from unisono.model.time import Micros
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer

READERS = (10, 50, 200)
TOPICS = ("trades", "quotes", "news", "orders")
MESSAGES, FAR_MESSAGES = 400, 12
DELAY_US = Micros(300_000)


async def _read(file: str, count: int, messages: int) -> None:
    """The readers: says how many letters they sent when each has everything."""
    async with AsyncExitStack() as stack:
        sessions: list[Any] = [await stack.enter_async_context(unisono.connect(file, timeout=60)) for _ in range(count)]
        streams = [await stack.enter_async_context(session.subscribe(*TOPICS)) for session in sessions]
        before = sum(session.links.counters.sent for session in sessions)
        print("ready", flush=True)

        async def read(stream: Any) -> None:
            for _ in range(messages):
                await stream.__anext__()

        await asyncio.gather(*map(read, streams))
        print(sum(session.links.counters.sent for session in sessions) - before, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _measure(count: int, far: bool = False, on_nats: bool = False) -> dict[str, Any]:
    Path("out").mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        name = Path(stack.enter_context(TemporaryDirectory(dir="out", prefix="bench-sessions-"))).absolute()
        url: str | None = None
        if on_nats:
            server = NatsServer(name / "nats")
            await server.start()
            stack.push_async_callback(server.stop)
            url = server.url
        deployment, node = stack.enter_context(started_node(name, url))
        messages = FAR_MESSAGES if far else MESSAGES
        proxy = DelayProxy(DELAY_US)
        if far:
            host, _, port = deployment.nodes[0].listen.rpartition(":")
            by_proxy = replace(deployment.nodes[0], listen=f"127.0.0.1:{await proxy.start((host, int(port)))}")
            deployment = replace(deployment, nodes=(by_proxy,))
        async with unisono.connect(deployment, timeout=60) as session:
            await session.publish(TOPICS[0], b"warm")
            command = [sys.executable, __file__, str(name / "deployment.toml"), str(count)]
            readers = Popen([*command, str(messages)], stdin=PIPE, stdout=PIPE, text=True)
            os.sched_setaffinity(readers.pid, {(os.cpu_count() or 1) - 1})
            assert readers.stdout is not None
            await asyncio.to_thread(readers.stdout.readline)
            node_s, readers_s = cpu_s(node.pid), cpu_s(readers.pid)
            for i in range(messages):
                await session.publish(TOPICS[i % len(TOPICS)], {"n": i})
            letters = int(await asyncio.to_thread(readers.stdout.readline))
            node_s, readers_s = cpu_s(node.pid) - node_s, cpu_s(readers.pid) - readers_s
            readers.communicate()
        await proxy.stop()
    return {
        "case": f"{count} readers" + (", far" if far else "") + (", on nats" if on_nats else ""),
        "node_cpu_us_per_message": round(node_s / messages * 1e6, 1),
        "node_cpu_us_per_delivery": round(node_s / messages / count * 1e6, 1),
        "reader_cpu_us_per_delivery": round(readers_s / messages / count * 1e6, 1),
        "letters": letters,
        "load": round(os.getloadavg()[0], 1),
    }


def run() -> list[dict[str, Any]]:
    kinds = ((False, False), (True, False), (False, True))
    return [run_loop(_measure(count, far, on_nats)) for count in READERS for far, on_nats in kinds]


if __name__ == "__main__":
    run_loop(_read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
