"""What `unisono.runtime.brokers.contract` promises, over every adapter and a real broker."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from tests.runtime.ens.worlds import PATIENCE_S, WORLDS, Ear
from unisono.errors import MisuseError
from unisono.runtime.brokers.contract import AdapterLimits, Down, FullError, Item, ItemRow, Lost, Parcel, Up, unpack


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * PATIENCE_S))


every_adapter = pytest.mark.parametrize("kind", WORLDS)
every_broker = pytest.mark.parametrize("kind", [kind for kind, world in WORLDS.items() if world().survives_kill])


def numbered(topic: str, count: int, publisher: str = "p", control: bool = False) -> list[Item]:
    return [Item(topic, b"%s %d" % (publisher.encode(), n), publisher, n, control) for n in range(1, count + 1)]


@every_adapter
def test_first_event_after_subscribe_is_heard_fifty_times_of_fifty(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            for n in range(50):
                topic = f"fresh.t{n}"
                await subscriber.subscribe(topic, control=n % 2 == 1)
                publisher.publish([Item(topic, b"first", "p", n + 1, n % 2 == 1)])
            await here.until(lambda: len(here.items) >= 50)
            assert [item.topic for item in sorted(here.items, key=lambda item: item.request)] == [
                f"fresh.t{n}" for n in range(50)
            ]

    run(main())


@every_adapter
def test_items_of_one_publisher_come_in_order_and_once(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            ears = [Ear(), Ear(), Ear()]
            subscriber = await world.connect(ears[0], 0)
            await subscriber.subscribe("trades")
            await subscriber.subscribe("quotes")
            for name, ear in zip(("alice", "bob"), ears[1:]):
                publisher = await world.connect(ear, world.places - 1 if name == "bob" else 0)
                items = [item for n in range(1, 301) for item in numbered_at(name, n)]
                for start in range(0, len(items), 7):
                    publisher.publish(items[start : start + 7])
                    await asyncio.sleep(0)
            await ears[0].until(lambda: len(ears[0].items) >= 1200)
            for name in ("alice", "bob"):
                for topic in ("trades", "quotes"):
                    requests = [item.request for item in ears[0].items if (item.publisher, item.topic) == (name, topic)]
                    assert requests == list(range(1, 301))

    def numbered_at(name: str, n: int) -> list[Item]:
        return [Item("trades", b"x", name, n), Item("quotes", b"y", name, n)]

    run(main())


@every_adapter
def test_the_moment_of_publication_arrives_with_every_item(kind: str) -> None:
    """Of rows, of single items with and without headers; what was not told stays untold."""
    told, later = 1_763_479_118_000_001, 1_763_479_118_000_002
    parcels: list[Parcel] = [
        ItemRow("trades", (b"a", b"bb", b"c"), "p", 9, told),
        ItemRow("trades", (b"d", b"e"), "p", 12, later),
        Item("trades", b"f", "p", 14, born_us=later),
        Item("trades", b"g", "p", 15, headers={"x": "1"}, born_us=later),
        Item("trades", b"h", "p", 16, headers={"x": "1"}),
        ItemRow("trades", (b"i", b"j"), "p", 17),
    ]

    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            await subscriber.subscribe("trades")
            for _ in range(2):  # readers remember who published: the first time is another way through the code
                publisher.publish(parcels)
                await publisher.flush()
                parcels[:] = [replace(parcel, request=parcel.request + 100) for parcel in parcels]
            await here.until(lambda: len(here.items) >= 20)
            moments = [told] * 3 + [later] * 4 + [0] * 3
            assert [(item.request, item.born_us) for item in here.items] == [
                (request + more, born) for more in (0, 100) for request, born in enumerate(moments, 9)
            ]
            assert {item.request % 100: item.headers for item in here.items if item.headers} == {
                15: {"x": "1"},
                16: {"x": "1"},
            }

    run(main())


@every_adapter
def test_every_item_is_confirmed_and_flush_waits_for_it(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            ear = Ear()
            ens = await world.connect(ear)
            ens.publish(numbered("trades", 500))
            assert ens.open_count == 500
            await ens.flush()
            assert ens.open_count == 0
            assert ear.confirmed == 500

    run(main())


@every_adapter
def test_publish_beyond_the_bound_takes_nothing_until_there_is_room(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            ear = Ear()
            ens = await world.connect(ear, limits=AdapterLimits(open_items_max=100))
            ens.publish(numbered("trades", 60))
            with pytest.raises(FullError):
                ens.publish(numbered("trades", 60))
            assert ens.open_count == 60
            await ens.room()
            ens.publish(numbered("trades", 300))  # who waited is let in with a batch of any size
            await ens.flush()
            assert ear.confirmed == 360

    run(main())


@every_adapter
def test_nothing_is_heard_after_unsubscribe(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            await subscriber.subscribe("trades")
            await subscriber.subscribe("quotes")
            publisher.publish(numbered("trades", 10))
            await here.until(lambda: len(here.items) == 10)
            subscriber.pause()
            publisher.publish(numbered("trades", 1000))
            await publisher.flush()
            subscriber.unsubscribe("trades")  # a thousand items are on their way
            subscriber.resume()
            publisher.publish([Item("trades", b"late", "p", 2000), Item("quotes", b"seen", "p", 2001)])
            await here.until(lambda: b"seen" in here.payloads())
            assert here.payloads("trades") == [b"p %d" % n for n in range(1, 11)]

    run(main())


@every_adapter
def test_subscribing_again_after_leaving_hears_again(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            for n in range(1, 11):
                await subscriber.subscribe("trades")
                publisher.publish([Item("trades", b"%d" % n, "p", n)])
                await here.until(lambda n=n: len(here.items) == n)
                subscriber.unsubscribe("trades")

    run(main())


@every_adapter
def test_payload_headers_and_names_arrive_untouched(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            await subscriber.subscribe("trades")
            parcels: list[Parcel] = [
                Item("trades", bytes(range(256)), "eu-1/alice", 2**53),
                Item("trades", b"", "p", 1, headers={"Ce-Type": "trade", "Ce-Source": "a: b; c=ü"}),
                Item("trades", b"MSG trades 1 2\r\n\r\n", "p", 2, headers={"Empty": ""}),
                Item("trades", b"nobody's"),
                Item("trades", b"nobody's, with headers", headers={"X": "y"}),
                ItemRow("trades", (b"", b"x", b"y", b"z", b"four", b"five"), "p", 8),
            ]
            publisher.publish(parcels)
            sent = unpack(parcels)
            await here.until(lambda: len(here.items) == len(sent))
            for before, after in zip(sent, here.items):
                assert (before.payload, before.publisher, before.request) == (
                    after.payload,
                    after.publisher,
                    after.request,
                )
                assert before.headers == after.headers
            assert [item.foreign for item in here.items] == [False, False, False, True, True, *[False] * 6]
            await publisher.flush()
            assert there.confirmed == len(sent)

    run(main())


@every_adapter
def test_a_large_payload_arrives_whole_and_a_larger_one_is_misuse(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            await subscriber.subscribe("trades")
            size = min(publisher.traits.payload_bytes_max, 1024 * 1024) - 1024
            large = bytes(range(256)) * (size // 256)
            publisher.publish([Item("trades", b"small", "p", 1), Item("trades", large, "p", 2)])
            await here.until(lambda: len(here.items) == 2)
            assert here.items[1].payload == large
            with pytest.raises(MisuseError):
                publisher.publish([Item("trades", bytes(publisher.traits.payload_bytes_max + 1), "p", 3)])

    run(main())


@every_adapter
def test_many_topics_each_hear_their_own(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            topics = [f"many.t{n}" for n in range(200)]
            await asyncio.gather(*(subscriber.subscribe(topic) for topic in topics[::2]))
            publisher.publish([Item(topic, topic.encode(), "p", n) for n, topic in enumerate(topics)])
            await here.until(lambda: len(here.items) == 100)
            assert sorted(here.payloads()) == sorted(topic.encode() for topic in topics[::2])
            assert all(item.payload.decode() == item.topic for item in here.items)

    run(main())


@every_adapter
def test_control_and_events_of_a_topic_are_apart(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            events, control, there = Ear(), Ear(), Ear()
            a, b, publisher = await world.connect(events), await world.connect(control), await world.connect(there)
            await a.subscribe("trades")
            await b.subscribe("trades", control=True)
            publisher.publish([Item("trades", b"stamp", control=True), Item("trades", b"event", "p", 1)])
            await events.until(lambda: len(events.items) == 1)
            await control.until(lambda: len(control.items) == 1)
            assert (events.items[0].payload, events.items[0].control) == (b"event", False)
            assert (control.items[0].payload, control.items[0].control) == (b"stamp", True)
            assert not control.items[0].foreign

    run(main())


@every_adapter
def test_a_reserved_or_broken_topic_is_misuse(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            ens = await world.connect(Ear())
            for topic in ("_unisono.ctl.trades", "two words", "", "line\r\nbreak"):
                with pytest.raises(MisuseError):
                    await ens.subscribe(topic)
                with pytest.raises(MisuseError):
                    ens.publish([Item(topic, b"", "p", 1)])

    run(main())


@every_adapter
def test_a_slow_subscriber_hears_everything_or_is_told_of_the_loss(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, world.places - 1)
            await subscriber.subscribe("trades")
            subscriber.pause()
            total = world.flood
            for start in range(0, total, 100):
                await publisher.room()
                publisher.publish([Item("trades", bytes(2_000), "p", start + n + 1) for n in range(100)])
            await publisher.flush()
            assert here.items == []
            subscriber.resume()
            await here.until(lambda: len(here.items) == total or bool(here.heard(Lost)))
            publisher.publish([Item("trades", b"end", "p", total + 1)])
            await here.until(lambda: b"end" in here.payloads())
            if all(notice.count is not None for notice in here.heard(Lost)):
                assert len(here.items) + here.lost_count() == total + 1
            requests = [item.request for item in here.items]
            assert requests == sorted(requests)
            assert not there.notices  # the publisher did not have to suffer for it

    run(main())


@every_broker
def test_a_killed_broker_is_noticed_and_its_return_is_too(kind: str) -> None:
    async def main() -> None:
        async with WORLDS[kind]() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, 0)
            await subscriber.subscribe("trades")
            publisher.publish(numbered("trades", 10))
            await here.until(lambda: len(here.items) == 10)
            await publisher.flush()
            await world.kill()
            await here.until(lambda: bool(here.heard(Down)))
            await there.until(lambda: bool(there.heard(Down)))
            publisher.publish([Item("trades", b"while away", "p", 11)])
            assert publisher.open_count == 1
            await world.start()
            await here.until(lambda: bool(here.heard(Up)))
            await publisher.flush()
            publisher.publish([Item("trades", b"after", "p", 12)])
            await here.until(lambda: b"after" in here.payloads())
            requests = [item.request for item in here.items]
            assert requests == sorted(requests)
            if subscriber.traits.retains or not here.heard(Lost):
                assert requests == list(range(1, 13))  # nothing was lost, or it would have been said
            else:
                # "while away" may have left before we were back: then it is what the notice is about.
                assert {1, 12} <= set(requests)
            await publisher.flush()
            assert there.confirmed == 12

    run(main())
