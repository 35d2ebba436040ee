"""A client process of the crash tests.

    python -m tests.runtime.crash.worker publish DEPLOYMENT JOURNAL INTERVAL_US TOPIC...
    python -m tests.runtime.crash.worker subscribe DEPLOYMENT JOURNAL NAME RELIABILITY TOPIC...

A publisher sends to its topics in turn until SIGTERM, and exits when everything has its outcome; a subscriber commits
every position under its NAME, resumes there when started again, and exits on SIGTERM. Both say when they are ready.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import unisono
from unisono.model.promise import Reliability
from unisono.runtime.loop import run, stop_signal


async def publish(deployment: str, journal: str, interval_us: int, topics: list[str]) -> None:
    stop = stop_signal()
    async with unisono.connect(deployment, journal=journal, timeout=60) as session:
        publishers = [await session.publisher(topic) for topic in topics]
        print("ready", flush=True)
        turn = 0
        while not stop.is_set():
            # A home that is away fills the window of its topic; the other goes on.
            publishers[turn % len(publishers)].try_send(turn)
            turn += 1
            await asyncio.sleep(interval_us / 1e6)
        async with asyncio.timeout(60):
            await session.drain()


async def subscribe(deployment: str, journal: str, name: str, reliability: Reliability, topics: list[str]) -> None:
    stop = stop_signal()
    state = Path(journal) / "positions"
    async with (
        unisono.connect(deployment, journal=journal, state=state, timeout=60) as session,
        session.subscribe(*topics, name=name, reliability=reliability) as stream,
    ):
        print("ready", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        reading = asyncio.ensure_future(anext(stream))
        while True:
            await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await stream.commit(reading.result().position)
                reading = asyncio.ensure_future(anext(stream))
            elif stopped.done():
                reading.cancel()
                return


if __name__ == "__main__":
    what, where, journal, *rest = sys.argv[1:]
    if what == "publish":
        run(publish(where, journal, int(rest[0]), rest[1:]))
    else:
        run(subscribe(where, journal, rest[0], cast(Reliability, rest[1]), rest[2:]))
