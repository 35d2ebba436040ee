"""What was told Refused or Unknown, and is still asked for: it takes up room, and shifts nobody's names."""

import asyncio
from pathlib import Path

from msgspec import structs

import unisono
from tests.runtime.test_broker_answers import PATIENCE_S, QUICK, beside
from tests.runtime.test_cluster import FAST, running, star, url
from unisono import audit
from unisono.model.deployment import BrokerSpec
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer

REFUSED = 20


def test_what_the_broker_refused_while_its_home_is_away_takes_up_room_and_no_name_of_others(tmp_path: Path) -> None:
    """Subscribers name an event by its request. Were one refused at the bound that had a sequence already, they would
    call all later events of this publisher by other names than he does."""

    async def run() -> None:
        server, journal = NatsServer(tmp_path / "nats", QUICK), tmp_path / "journal"
        await server.start()
        deployment = structs.replace(star(), broker=BrokerSpec("jetstream", (server.url,)))
        async with asyncio.timeout(PATIENCE_S), running(deployment, tmp_path) as nodes, beside(server) as plain:
            await plain.keep_at_most("trades", 1)
            async with (
                unisono.connect(url(deployment, "west"), journal=journal) as session,
                session.subscribe("trades", deadline="60s") as stream,
            ):
                assert isinstance(session, SequencedSession)
                assert isinstance(await session.publish("trades", "first"), unisono.Accepted)
                assert (await anext(stream)).data == "first"
                await nodes.pop("east").stop()
                refused = await asyncio.gather(*(session.publish("trades", "too many") for _ in range(REFUSED)))
                assert [type(outcome) for outcome in refused] == [unisono.Refused] * REFUSED
                await plain.keep_at_most("trades", -1, "UPDATE")
                room = session.publications.window - REFUSED
                waiting = [asyncio.ensure_future(session.publish("trades", number)) for number in range(room)]
                while session.publications.in_flight < room:
                    await asyncio.sleep(0)
                crowded = await session.publish("trades", "no room")
                assert isinstance(crowded, unisono.Refused)
                assert "wait for their numbers" in crowded.reason
                nodes["east"] = Node(deployment, "east", tmp_path, FAST)
                await nodes["east"].start()
                outcomes = await asyncio.gather(*waiting)
                heard = [await anext(stream) for _ in range(room)]
                assert [event.data for event in heard] == list(range(room))
                assert {type(outcome) for outcome in outcomes} <= {unisono.Accepted, unisono.Unknown}
                assert isinstance(await session.publish("trades", "room again"), unisono.Accepted)
                last = await anext(stream)
                assert last.data == "room again"
            published = [record.event for record in audit.read(journal).records if record.kind == "publish"]
            assert published[-1] == last.id
            assert [event.id for event in heard] == published[1 + REFUSED : -1]
        server.kill()

    asyncio.run(run())
