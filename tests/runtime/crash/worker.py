"""A client process of the crash tests.

    python -m tests.runtime.crash.worker publish DEPLOYMENT JOURNAL COUNT PAUSE_US TOPIC...
    python -m tests.runtime.crash.worker subscribe DEPLOYMENT JOURNAL NAME TOPIC...

A publisher sends COUNT events to its topics in turn and exits when all have their outcome; a subscriber commits every
position under its NAME, resumes there when started again, and exits on SIGTERM.
"""

import asyncio
import sys
from pathlib import Path

import unisono
from unisono.runtime.loop import run, stop_signal


async def publish(deployment: str, journal: str, count: int, pause_us: int, topics: list[str]) -> None:
    async with unisono.connect(deployment, journal=journal, timeout=30) as session:
        publishers = [await session.publisher(topic) for topic in topics]
        for number in range(count):
            await publishers[number % len(publishers)].send(number)
            await asyncio.sleep(pause_us / 1e6)
        async with asyncio.timeout(60):
            await session.drain()


async def subscribe(deployment: str, journal: str, name: str, topics: list[str]) -> None:
    stop = stop_signal()
    state = Path(journal) / "positions"
    async with (
        unisono.connect(deployment, journal=journal, state=state, timeout=30) as session,
        session.subscribe(*topics, name=name) as stream,
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
        run(publish(where, journal, int(rest[0]), int(rest[1]), rest[2:]))
    else:
        run(subscribe(where, journal, rest[0], rest[1:]))
