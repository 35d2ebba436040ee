"""A client process of the crash tests.

    python -m tests.runtime.crash.worker publish DEPLOYMENT JOURNAL INTERVAL_US TOPIC...
    python -m tests.runtime.crash.worker subscribe DEPLOYMENT JOURNAL STATE NAME RELIABILITY TOPIC...
    python -m tests.runtime.crash.worker churn DEPLOYMENT JOURNAL SEED TOPIC...

A publisher sends to its topics in turn until SIGTERM, and exits when everything has its outcome; for every line on
stdin it sends an event of so many bytes. A subscriber commits some positions under its NAME, resumes there when started
again, and exits on SIGTERM. A churner opens topics, joins some and leaves them, until SIGTERM. All say when they are
ready. One whose session or subscription has ended, because a node has lost what it knew, says so and exits with 3.
"""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tests.runtime.crash.prepared import prepare

prepare()

import unisono  # noqa: E402
from unisono.errors import TransportError  # noqa: E402
from unisono.model.promise import Reliability  # noqa: E402
from unisono.runtime.driver.loop import run, stop_signal  # noqa: E402

COMMIT_EVERY = 10
NAMES_MAX = 12
"""Topics that one churner opens beside those it is given."""


async def publish(deployment: str, journal: str, interval_us: int, topics: list[str]) -> None:
    stop = stop_signal()
    async with unisono.connect(deployment, journal=journal, timeout=60) as session:
        publishers = [await session.publisher(topic) for topic in topics]
        turn = 0

        def send(data: object) -> None:
            # A home that is away fills the window of its topic; the other goes on.
            nonlocal turn
            turn += 1
            try:
                publishers[turn % len(publishers)].try_send(data)
            except unisono.MisuseError as error:
                print(f"refused: {error}", file=sys.stderr)

        asyncio.get_running_loop().add_reader(sys.stdin, lambda: _send_large(send))
        print("ready", flush=True)
        while not stop.is_set():
            send(turn)
            await asyncio.sleep(interval_us / 1e6)
        async with asyncio.timeout(60):
            await session.drain()


def _send_large(send: Callable[[object], None]) -> None:
    line = sys.stdin.readline()
    if not line:
        asyncio.get_running_loop().remove_reader(sys.stdin)
    else:
        send("x" * int(line))


async def subscribe(
    deployment: str, journal: str, state: str, name: str, reliability: Reliability, topics: list[str]
) -> None:
    stop = stop_signal()
    async with (
        unisono.connect(deployment, journal=journal, state=Path(state), timeout=60) as session,
        session.subscribe(*topics, name=name, reliability=reliability) as stream,
    ):
        print("ready", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        reading, told = asyncio.ensure_future(anext(stream)), 0
        while True:
            await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                event, told = reading.result(), told + 1
                if told % COMMIT_EVERY == 0:
                    await stream.commit(event.position)
                reading = asyncio.ensure_future(anext(stream))
            elif stopped.done():
                reading.cancel()
                return


async def churn(deployment: str, journal: str, seed: int, topics: list[str]) -> None:
    stop, dice, opened = stop_signal(), random.Random(seed), list[str]()
    async with unisono.connect(deployment, journal=journal, timeout=60) as session:
        print("ready", flush=True)
        while not stop.is_set():
            if len(opened) < NAMES_MAX:
                opened.append(f"churn.{seed}.{len(opened)}")
            new = dice.choice(opened)
            await session.publish(new, "born")
            joined = dict.fromkeys([new, *dice.sample(topics, dice.randint(1, len(topics)))])
            async with session.subscribe(*joined) as stream:
                until = asyncio.get_running_loop().time() + dice.uniform(0.05, 0.5)
                publisher = await session.publisher(new)
                while not stop.is_set() and (left := until - asyncio.get_running_loop().time()) > 0:
                    publisher.try_send(0)
                    try:
                        async with asyncio.timeout(left):
                            await anext(stream)
                    except TimeoutError:
                        break


def main() -> None:
    what, where, journal, *rest = sys.argv[1:]
    match what:
        case "publish":
            run(publish(where, journal, int(rest[0]), rest[1:]))
        case "churn":
            run(churn(where, journal, int(rest[0]), rest[1:]))
        case _:
            run(subscribe(where, journal, rest[0], rest[1], cast(Reliability, rest[2]), rest[3:]))


if __name__ == "__main__":
    try:
        main()
    except TransportError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
