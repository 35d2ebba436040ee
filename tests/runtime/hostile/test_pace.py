"""One client among many: what it asks for at once waits for others, not they for it. Turns and answers are counted."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from tests.runtime.hostile.world import HUB, ME, SMALL, Attacker, attacker, target
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.runtime import edge
from unisono.runtime.frames import Letter, encode_frame
from unisono.runtime.pace import TURN_LETTERS_MAX

ALICE = Address("alice")


def test_a_frame_of_thousands_of_letters_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """Alice speaks after the attacker, and is heard before the attacker's frame has been handed over."""

    async def run() -> None:
        async with (
            asyncio.timeout(60),
            target(tmp_path) as node,
            attacker(node.place) as one,
            attacker(node.place) as alice,
        ):
            await one.enter()
            await alice.enter(ALICE)
            order: list[Address] = []
            node.node.links.attach(HUB, Recorder(order))
            links = node.node.links
            mine = next(each for each in links._connections if each.peer is not None and ME in each.peer.addresses)
            frame = encode_frame([Letter(HUB, Creates(ME, (Wanted(Topic(1), 1),)))] * 10_000)
            one.writer.write(frame[:-1])
            while len(mine._reader._rest) < len(frame) - 1:
                await asyncio.sleep(0)
            one.writer.write(frame[-1:])
            while not order:
                await asyncio.sleep(0)
            alice.writer.write(encode_frame([Letter(HUB, edge.Inquire(ALICE))]))
            while len(order) < 10_001:
                before = len(order)
                await asyncio.sleep(0)
                assert len(order) - before <= TURN_LETTERS_MAX + 1
            assert order.index(ALICE) < 10_000

    asyncio.run(run())


def test_who_asks_more_than_its_share_waits_and_is_answered_in_the_end(tmp_path: Path) -> None:
    """With one question a second a hundred of them last longer than the test; nobody else waits for that."""

    async def run() -> None:
        limits = replace(SMALL, client_questions_per_s=1)
        async with asyncio.timeout(60), target(tmp_path, limits) as node, attacker(node.place) as one:
            await one.enter()
            links = node.node.links
            mine = next(each for each in links._connections if each.peer is not None and ME in each.peer.addresses)
            await one.send(encode_frame([Letter(HUB, edge.Inquire(ME))]) * 100)
            assert await answered(one)
            await node.serves()
            assert mine.waits
            assert len(mine.unheard) > 50
            assert await answered(one)

    asyncio.run(run())


async def answered(one: Attacker) -> bool:
    while (body := await one.body()) is not None:
        if b"Report" in body:
            return True
    return False


class Recorder:
    """A sink that notes who has spoken."""

    is_full = False

    def __init__(self, order: list[Address]) -> None:
        self._order = order

    def post(self, message: Creates | edge.Inquire) -> None:
        self._order.append(message.client if isinstance(message, edge.Inquire) else message.publisher)

    def when_roomy(self, callback: object) -> None: ...
