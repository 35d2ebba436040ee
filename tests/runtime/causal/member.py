"""Some sessions of a mesh in a process of their own, whose clock may be off: `python -m … FILE COUNT SKEW_MS JOURNALS`.

Each publishes now and then, and answers some of what it hears. A line per second says how much was heard; a line on
standard input ends it in good order.
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

REPLIES = 0.03
EVERY_S = 2.0


async def main(file: Path, count: int, journals: Path) -> None:
    import unisono
    from unisono.model.deployment import load_deployment

    regions = [region.name for region in load_deployment(file).regions]
    dice = random.Random(os.getpid())
    heard = 0
    stop = asyncio.Event()

    async def speak(session: "unisono.Session") -> None:
        while not stop.is_set():
            await asyncio.sleep(dice.uniform(0.5, 1.5) * EVERY_S)
            await session.publish("news", {"n": 1}, deadline=dice.choice([None, "3s", "6s"]))

    async def listen(session: "unisono.Session", stream: "unisono.Stream") -> None:
        nonlocal heard
        async for event in stream:
            if event.event is None:
                continue
            heard += 1
            if event.topic == "news" and dice.random() < REPLIES and not stop.is_set():
                await session.publish("replies", {"to": event.id})

    async def live(number: int, ready: asyncio.Semaphore) -> None:
        region = regions[number % len(regions)]
        async with (
            unisono.connect(file, region=region, journal=journals, timeout=60) as session,
            session.subscribe("news", "replies", order="causal") as stream,
        ):
            ready.release()
            listening = asyncio.create_task(listen(session, stream))
            await speak(session)
            await asyncio.sleep(6)  # until the last deadline
            listening.cancel()

    ready = asyncio.Semaphore(0)
    lives = [asyncio.create_task(live(number, ready)) for number in range(count)]
    for _ in range(count):
        await ready.acquire()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    ending = loop.run_in_executor(None, sys.stdin.readline)
    while not ending.done():
        await asyncio.wait([ending], timeout=1)
        print(json.dumps({"heard": heard}), flush=True)
    stop.set()
    await asyncio.gather(*lives)


if __name__ == "__main__":
    _, path, how_many, skew_ms, folder = sys.argv
    right, off_ns = time.time_ns, round(float(skew_ms) * 1_000_000)
    time.time_ns = lambda: right() + off_ns
    if how_many == "node":
        from unisono.cli.main import main as command

        sys.argv = ["unisono", "node", path, folder]
        command()
    else:
        asyncio.run(main(Path(path), int(how_many), Path(folder)))
