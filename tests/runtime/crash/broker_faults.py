"""Faults of the broker that keeps payloads: its limits are reached, a payload is too large, a stream is deleted."""

import asyncio
from random import Random

from tests.runtime.crash.broker import change_stream, delete_stream, measure_stream
from tests.runtime.crash.harness import TOPICS, Run
from tests.runtime.crash.process_faults import span

PAYLOAD_BYTES_MAX = 1 << 20
"""nats-server's default."""


async def stream_full(run: Run, dice: Random) -> None:
    """The stream of a topic takes nothing more, and says so to whoever publishes, until its limit is raised."""
    topic, away, url = dice.choice(TOPICS), span(run, dice), run.servers[0].url
    async with run.hold("broker"):
        messages, size = await measure_stream(url, topic)
        if dice.random() < 0.5:
            limit = {"max_msgs": messages + dice.randint(0, 40)}
        else:
            limit = {"max_bytes": size + dice.randint(0, 4000)}
        whose = "the user's" if run.plan.own_streams else "our"
        run.story.append(f"{whose} stream of {topic} is full for {away:.2f} s: {limit}")
        await change_stream(url, topic, **limit, discard="new")
        await asyncio.sleep(away)
        await change_stream(url, topic, max_msgs=-1, max_bytes=-1, discard="old")


async def large_payload(run: Run, dice: Random) -> None:
    """A publisher sends what its broker does not take, among what it does, and is told so at once."""
    number, size = dice.choice((1, 2)), PAYLOAD_BYTES_MAX + dice.choice((-9000, 1, 500_000))
    name = f"publisher-{number}"
    async with run.hold(name):
        run.story.append(f"{name} sends {size} bytes")
        pipe = run.processes[name].stdin
        assert pipe is not None
        pipe.write(f"{size}\n".encode())
        pipe.flush()
        while size > PAYLOAD_BYTES_MAX and "this broker takes up to" not in run.said(name):
            await asyncio.sleep(0.02)


async def stream_deleted(run: Run, dice: Random) -> None:
    topic = dice.choice(TOPICS)
    async with run.hold("broker"):
        run.story.append(f"the stream of {topic} is deleted")
        run.emptied[topic] = None
        await delete_stream(run.servers[0].url, topic)
