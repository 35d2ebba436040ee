"""Faults of the broker that keeps payloads: its limits are reached, a payload is too large, a stream is deleted."""

import asyncio
from random import Random

from tests.runtime.crash.broker import change_stream, count_messages, delete_stream
from tests.runtime.crash.harness import TOPICS, Run
from tests.runtime.crash.process_faults import span

PAYLOAD_BYTES_MAX = 1 << 20
"""nats-server's default."""


async def stream_full(run: Run, dice: Random) -> None:
    """The stream of a topic takes nothing more, and says so to whoever publishes, until its limit is raised."""
    topic, away = dice.choice(TOPICS), span(run, dice)
    async with run.hold("broker"):
        room = await count_messages(run, topic) + dice.randint(0, 40)
        run.story.append(f"the stream of {topic} is full at {room} messages for {away:.2f} s")
        await change_stream(run, topic, max_msgs=room, discard="new")
        await asyncio.sleep(away)
        await change_stream(run, topic, max_msgs=-1, discard="old")


async def large_payload(run: Run, dice: Random) -> None:
    """A publisher sends what its broker does not take, among what it does."""
    number, size = dice.choice((1, 2)), PAYLOAD_BYTES_MAX + dice.choice((-3000, 0, 1, 500_000))
    name = f"publisher-{number}"
    async with run.hold(name):
        run.story.append(f"{name} sends {size} bytes")
        pipe = run.processes[name].stdin
        assert pipe is not None
        pipe.write(f"{size}\n".encode())
        pipe.flush()
        await asyncio.sleep(span(run, dice))


async def stream_deleted(run: Run, dice: Random) -> None:
    topic = dice.choice(TOPICS)
    async with run.hold("broker"):
        run.story.append(f"the stream of {topic} is deleted")
        run.emptied[topic] = None
        await delete_stream(run, topic)
