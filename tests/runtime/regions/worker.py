"""A client process of the runs of regions (`storm`).

    python -m tests.runtime.regions.worker publish DEPLOYMENT JOURNALS REGION INTERVAL_US
    python -m tests.runtime.regions.worker subscribe DEPLOYMENT JOURNALS REGION...

A publisher says what it will publish, sends to two topics in turn until SIGTERM, and exits when everything has its
outcome. Subscribers are one session per region, each with a filter of its own, and exit on SIGTERM. Both say when they
are ready.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import unisono
from unisono.runtime.driver.loop import run, stop_signal

TOPICS = ("trades", "quotes")
FILTERS = ("px >= 20", "px < 90", "px between 10 and 95", "px != 50", "px < 1000")


async def publish(deployment: str, journal: str, region: str, interval_us: int) -> None:
    stop = stop_signal()
    async with unisono.connect(deployment, journal=journal, region=region, timeout=60) as session:
        publishers = [await session.publisher(topic, advertise="px between 0 and 99") for topic in TOPICS]
        print("ready", flush=True)
        turn = 0
        while not stop.is_set():
            await publishers[turn % 2].send({"px": turn * 7 % 100})
            turn += 1
            await asyncio.sleep(interval_us / 1e6)
        async with asyncio.timeout(60):
            await session.drain()


async def subscribe(deployment: str, journal: str, regions: list[str]) -> None:
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        reading: list[asyncio.Task[None]] = []
        for number, region in enumerate(regions):
            where = Path(journal) / f"subscriber-{region}"
            session = await stack.enter_async_context(
                unisono.connect(deployment, journal=where, region=region, timeout=60)
            )
            stream = await stack.enter_async_context(
                session.subscribe(*TOPICS, order="fifo", where=FILTERS[number % len(FILTERS)])
            )
            reading.append(asyncio.create_task(read(stream)))
        print("ready", flush=True)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((*reading, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        stopped.cancel()


async def read(stream: unisono.Stream) -> None:
    async for _ in stream:
        pass


if __name__ == "__main__":
    what, where, journal, *rest = sys.argv[1:]
    if what == "publish":
        run(publish(where, journal, rest[0], int(rest[1])))
    else:
        run(subscribe(where, journal, rest))
