"""One client among many: what it asks for at once waits for others, not they for it. Turns and answers are counted."""

import asyncio
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.runtime.hostile.world import HUB, ME, SMALL, Attacker, attacker, broker_frame, broker_place, target
from unisono.errors import PeerError
from unisono.model.ids import Address, Topic
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.runtime.brokers.embedded import server
from unisono.runtime.brokers.embedded.server import TURN_MESSAGES_MAX
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import ArchiveRow, Fetch, Fetched, Locate
from unisono.runtime.links.frames import Letter, encode_frame
from unisono.runtime.links.pace import BACKLOG_MAX, BACKLOG_S, BEARING, FETCHED, TURN_FRAMES_MAX, TURN_LETTERS_MAX, Pace

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
            alice.writer.write(encode_frame([Letter(HUB, control.AskReport(ALICE))]))
            while len(order) < 10_001:
                before = len(order)
                await asyncio.sleep(0)
                assert len(order) - before <= TURN_LETTERS_MAX + 1
            assert order.index(ALICE) < 10_000

    asyncio.run(run())


def test_who_asks_more_than_its_share_waits_and_is_answered_in_the_end(tmp_path: Path) -> None:
    """With five questions a second a hundred of them last longer than the test; nobody else waits for that."""

    async def run() -> None:
        limits = replace(SMALL, client_questions_per_s=5)
        async with asyncio.timeout(60), target(tmp_path, limits) as node, attacker(node.place) as one:
            await one.enter()
            links = node.node.links
            mine = next(each for each in links._connections if each.peer is not None and ME in each.peer.addresses)
            await one.send(encode_frame([Letter(HUB, control.AskReport(ME))]) * 100)
            assert await answered(one)
            await node.serves()
            assert mine.waits
            assert mine._bodies is not None  # most of its questions have not even been looked at
            assert await answered(one)

    asyncio.run(run())


def test_thousands_of_empty_frames_do_not_keep_others_waiting(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            mine = next(each for each in node.node.links._connections if each.peer and each.peer.addresses == (ME,))
            mine.data_received(encode_frame([]) * 1_000)
            assert mine._bodies is not None
            assert len(list(mine._bodies)) == 1_000 - TURN_FRAMES_MAX
            mine._bodies = None

    asyncio.run(run())


def test_who_has_more_to_say_waits_while_others_speak_and_the_node_has_much_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            links = node.node.links
            mine = next(each for each in links._connections if each.peer is not None and each.peer.addresses == (ME,))
            links._spoke = {mine: asyncio.get_running_loop().time()}
            assert links.pause_s(mine) == 0
            await node.serves()
            assert links.pause_s(mine) == BACKLOG_S
            heard: list[Address] = []
            links.attach(HUB, Recorder(heard))
            links.backlog = lambda: BACKLOG_MAX + 1
            mine.data_received(encode_frame([Letter(HUB, control.AskReport(ME))] * 1_000))
            until = asyncio.get_running_loop().time() + 20 * BACKLOG_S
            while asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0)
            assert len(heard) == TURN_LETTERS_MAX  # and no more, however long we look
            links.backlog = lambda: 0
            while len(heard) < 1_000:
                await asyncio.sleep(0)

    asyncio.run(run())


def test_those_who_wait_for_their_pace_share_one() -> None:
    """Ten connections get what one gets."""
    alone, shared = Pace(left_s=0.0), Pace(left_s=0.0)
    alone.spend(0.1, 0.0)
    shared.spend(0.1, 0.0, sharing=10)
    assert shared.wait_s(0.0, sharing=10) == 10 * alone.wait_s(0.0)
    assert not shared.spend(0.0, 1.0, sharing=10)
    assert alone.spend(0.0, 1.0)


def test_topics_that_are_born_while_events_are_under_way_are_paced(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            mine = next(each for each in node.node.links._connections if each.peer and each.peer.addresses == (ME,))
            role = node.node.sequencer
            assert role is not None
            role._published = role.broker.counters.published  # nothing is, now
            before = mine.pace.left_s
            node.node.letters.post(naming.OpenTopics(ME, 1, ("born at leisure",)))
            assert mine.pace.left_s == before
            await node.serves()
            mine.pace = Pace(burst_s=0.0, left_s=0.0)
            node.node.letters.post(naming.OpenTopics(ME, 2, ("born in between",)))
            assert mine.pace.left_s <= -(1 + BEARING) / node.deployment.limits.client_questions_per_s

    asyncio.run(run())


def test_who_asks_an_archive_for_what_is_not_sealed_shares_a_file_with_all_who_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            archive = node.node.archivist
            assert archive is not None
            assert archive.post(Fetch(ME, 1, 0, ("trades",), seal=True))
            assert archive._seal_again_s > asyncio.get_running_loop().time() - 60
            archive._seal_again_s = float("inf")  # however slow we are
            assert not archive.post(Fetch(ME, 2, 0, ("trades",), seal=True))
            assert not archive.post(Locate(ME, 3, "trades", 1 << 50))
            archive._seal_again_s = 0.0
            assert archive.post(Locate(ME, 4, "trades", 1 << 50))

    asyncio.run(run())


def test_what_an_archive_hands_out_while_events_are_under_way_is_charged_by_its_rows(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            mine = next(each for each in node.node.links._connections if each.peer and each.peer.addresses == (ME,))
            role = node.node.sequencer
            assert role is not None
            answer = Fetched(1, (ArchiveRow(1, "trades", 1, "p", 1, {}, b""),) * (3 * FETCHED), 0, 0, {}, {})
            role._published = role.broker.counters.published  # nothing is, now
            mine.pace = Pace(burst_s=0.0, left_s=0.0)
            node.node.letters.hand_out(ME, answer)
            assert mine.pace.left_s == 0
            await node.serves()
            mine.pace = Pace(burst_s=0.0, left_s=0.0)
            node.node.letters.hand_out(ME, answer)
            assert mine.pace.left_s <= -3 / node.deployment.limits.client_questions_per_s

    asyncio.run(run())


def test_refusals_are_charged_to_who_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            mine = next(each for each in node.node.links._connections if each.peer and each.peer.addresses == (ME,))
            mine.pace = Pace(burst_s=0.0, left_s=0.0)
            node.node.links.offended(ME, PeerError("too much", "watches"))
            assert mine.pace.left_s <= -1 / node.deployment.limits.client_questions_per_s

    asyncio.run(run())


def test_a_burst_of_pings_to_an_embedded_broker_is_answered_in_turns(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(broker_place(node)) as one:
            await one.send(broker_frame(server.Greet("mallory")))
            await one.body()
            (mine,) = [peer for peer in node.node.broker.connections if peer._session == "mallory"]
            mine.data_received(broker_frame(*[server.Ping()] * 1_000))
            assert mine._unheard is not None
            assert mine._out_bytes <= TURN_MESSAGES_MAX // 4 * len(server.encoder.encode(server.Pong()))
            answered = 0
            while answered < 1_000 and (body := await one.body()) is not None:
                answered += body.count(b"pong")
            assert answered == 1_000

    asyncio.run(run())


def test_a_burst_of_long_items_to_an_embedded_broker_is_handed_over_in_turns(tmp_path: Path) -> None:
    """Whoever publishes much, on a topic of nobody even, does not keep the node waiting."""

    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(broker_place(node)) as one:
            await one.send(broker_frame(server.Greet("mallory")))
            await one.body()
            (mine,) = [peer for peer in node.node.broker.connections if peer._session == "mallory"]
            group = server.ItemGroup("elsewhere", False, 1, msgspec.Raw(msgspec.msgpack.encode(bytes(10_000))))
            groups = TURN_MESSAGES_MAX * server.GROUP_BYTES // 10_000
            mine.data_received(broker_frame(*[group] * (groups + 1), server.PutItems(7)))
            assert mine._out_bytes == 0, "the end of the burst has not had its turn"
            assert b"taken" in (await one.body() or b"")

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

    def post(self, message: object) -> None:
        match message:  # the node's own archive speaks to it as well
            case control.AskReport(client=who) | Creates(publisher=who):
                self._order.append(who)

    def when_roomy(self, callback: object) -> None: ...
