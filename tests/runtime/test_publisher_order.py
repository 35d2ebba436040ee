"""Whatever the order that was asked for: one publisher's events on one topic are heard as it published them."""

import asyncio
from pathlib import Path
from typing import Literal

import pytest

import unisono.testing
from tests.runtime.test_session import take
from unisono.audit import Verdict, judge, read
from unisono.model.journal import Header, Journal

EACH = 100


def verdicts(folder: Path) -> dict[str, Verdict]:
    records = [record for path in folder.glob("*.jsonl") for record in read(path).records]
    return {verdict.judge: verdict for verdict in judge(Journal(Header(), records))}


@pytest.mark.parametrize("order", ["total", "fifo"])
def test_a_broker_that_reorders_everything_reorders_no_publisher(
    tmp_path: Path, order: Literal["total", "fifo"]
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            unisono.testing.deployment(delay="20ms", reorder=True, seed=3) as world,
            world.connect(journal=tmp_path) as hearing,
            world.connect(journal=tmp_path) as one,
            world.connect(journal=tmp_path) as other,
            hearing.subscribe("a", "b", order=order, deadline="20s") as stream,
        ):
            for session, topic in ((one, "a"), (one, "b"), (other, "a"), (other, "b")):
                await session.publish(topic, "first")  # what precedes the first one heard is nothing to wait for
                await take(stream, 1)
            await asyncio.gather(
                *(
                    session.publish(topic, number)
                    for number in range(EACH)
                    for session in (one, other)
                    for topic in ("a", "b")
                )
            )
            await take(stream, 4 * EACH)

    asyncio.run(main())
    found = verdicts(tmp_path)
    assert found["publisher-order"].holds, found["publisher-order"].witness
    assert found["kept"].holds, found["kept"].witness
