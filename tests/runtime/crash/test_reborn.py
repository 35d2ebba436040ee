"""A node that has forgotten and is told to go on: no number names two events, and all hear what may be missing."""

import asyncio
import shutil
from pathlib import Path

import pytest

import unisono
from tests.runtime.crash.test_forgotten import World, connected, publish, spoil, world
from unisono.model.ids import Address
from unisono.model.settings import OrderedBy
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.stream import Stream

LAST = "the last"


async def heard(stream: Stream, topics: tuple[str, ...]) -> list[Notification]:
    """Everything up to the last event of every topic."""
    found: list[Notification] = []
    missing = dict.fromkeys(topics)
    async for item in stream:
        found.append(item)
        if item.gap is None and item.stalled is None and item.data == LAST:
            missing.pop(item.topic, None)
        if not missing:
            return found
    raise AssertionError("the stream ended")


def check(streams: list[list[Notification]]) -> None:
    """One event per number and one number per event, in one order, and no number is missing without a notice."""
    names: dict[tuple[str, int], str | None] = {}
    for notifications in streams:
        events = [item for item in notifications if item.id is not None]
        assert len({item.id for item in events}) == len(events), "an event came twice"
        for item in events:
            assert item.number is not None
            assert names.setdefault((item.topic, item.number), item.id) == item.id, f"{item.topic} {item.number}"
        told: dict[str, int] = {}
        for item in notifications:
            if item.gap is not None:
                assert item.gap.first <= told.get(item.topic, item.gap.first - 1) + 1
                told[item.topic] = max(item.gap.last, told.get(item.topic, 0))
            elif item.id is not None:
                assert item.number == told.get(item.topic, item.number - 1) + 1, "a number is missing"
                told[item.topic] = item.number
    one, two = [[item.id for item in notifications if item.id is not None] for notifications in streams]
    assert [event for event in one if event in two] == [event for event in two if event in one]


async def publish_last(session: unisono.Session, topics: tuple[str, ...]) -> None:
    for topic in topics:
        while not isinstance(await session.publish(topic, LAST), unisono.Accepted):
            pass


async def root_knows(session: unisono.Session, topic: str) -> None:
    """Returns when the root could tell the way to a topic, should its home be away."""
    assert isinstance(session, SequencedSession)
    while not (await session._directory.open_at(Address("hub"), (topic,), through=True)).topics:
        pass


async def all_heard(
    session: unisono.Session, streams: tuple[Stream, ...], topics: tuple[str, ...]
) -> list[list[Notification]]:
    """What each stream hears up to its last event of every topic.

    What is numbered before a subscriber has subscribed again is in its gap, accepted or not: the last is said again.
    """
    hearing = asyncio.gather(*(heard(stream, topics) for stream in streams))
    while not hearing.done():
        await publish_last(session, topics)
        await asyncio.wait((hearing,), timeout=0.2)
    return await hearing


@pytest.mark.parametrize(
    ("broker", "how"),
    [
        pytest.param("embedded", "rolled back", marks=pytest.mark.campaign),
        ("embedded", "truncated"),
        pytest.param("nats", "rolled back", marks=pytest.mark.campaign),
        pytest.param("nats", "truncated", marks=pytest.mark.campaign),
    ],
)
def test_a_reborn_node_gives_no_number_twice_and_tells_what_is_missing(tmp_path: Path, broker: str, how: str) -> None:
    asyncio.run(play(tmp_path, broker, ("n",), "n", how))


@pytest.mark.campaign
@pytest.mark.parametrize("victim", ["hub", "leaf"])
def test_a_reborn_node_of_a_tree_gives_no_number_twice_and_the_others_go_on(tmp_path: Path, victim: str) -> None:
    asyncio.run(play(tmp_path, "nats", ("hub", "leaf", "other"), victim, "rolled back"))


async def play(directory: Path, broker: str, names: tuple[str, ...], victim: str, how: str) -> None:
    topics = tuple(f"of-{name}" for name in names)
    async with (
        asyncio.timeout(150),
        world(directory, broker, names) as made,
        connected(made) as session,
        session.subscribe(*topics) as one,
        session.subscribe(*topics) as two,
    ):
        for topic in topics:
            await publish(session, topic, 3)
        shutil.copytree(made.data(victim), directory / "backup")
        for topic in topics:
            await publish(session, topic, 3)
        made.kill(victim)
        spoil(made.data(victim), directory / "backup", how)
        made.start(victim, "--new-incarnation")
        for topic in topics:
            # What reaches it before it has said that it is reborn is unknown: it might have been numbered before.
            assert isinstance(await session.publish(topic, "first"), unisono.Accepted | unisono.Unknown)
            await publish(session, topic, 2)
        streams = await all_heard(session, (one, two), topics)
        check(streams)
        for notifications in streams:
            assert any(item.gap is not None and item.topic == f"of-{victim}" for item in notifications)
        await restarts(made, victim, session, topics)


async def restarts(made: World, victim: str, session: unisono.Session, topics: tuple[str, ...]) -> None:
    """Afterwards it starts like any other, and accepts what is published."""
    made.kill(victim)
    made.start(victim)
    await publish_last(session, topics)


def test_an_emptied_node_goes_on_and_whoever_used_its_topics_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(150), world(tmp_path, "nats", ("n",)) as made:
            async with connected(made) as session, session.subscribe("of-n") as stream:
                await publish(session, "of-n", 3)
                made.kill("n")
                spoil(made.data("n"), tmp_path / "backup", "emptied")
                made.start("n", "--new-incarnation")
                with pytest.raises(unisono.UnisonoError, match="has forgotten the topic 'of-n'"):
                    await heard(stream, ("of-n",))
            async with connected(made) as session, session.subscribe("of-n") as stream:
                await publish_last(session, ("of-n",))
                (event,) = await heard(stream, ("of-n",))
                assert event.number is not None
                assert event.number > 1 << 40

    asyncio.run(run())


@pytest.mark.parametrize("by", ["tree", pytest.param("clock", marks=pytest.mark.campaign)])
def test_a_session_that_began_while_the_node_was_away_is_told_that_its_topics_are_others(
    tmp_path: Path, by: OrderedBy
) -> None:
    """The root tells it the number that the topic had. Nothing that the node ever showed it could tell it more."""

    async def run() -> None:
        async with asyncio.timeout(150), world(tmp_path, "nats", ("hub", "leaf"), by) as made:
            async with connected(made) as session:
                await publish(session, "of-leaf", 3)
            made.kill("leaf")
            spoil(made.data("leaf"), tmp_path / "backup", "emptied")
            async with connected(made) as session:
                assert isinstance(session, SequencedSession)
                while not session.links.is_up(Address("hub")):
                    await asyncio.sleep(0.01)
                joining = asyncio.ensure_future(session.subscribe("of-leaf").__aenter__())
                while session.topic_of("of-leaf") is None and not joining.done():
                    await asyncio.sleep(0.01)
                made.start("leaf", "--new-incarnation")
                if by == "clock":
                    with pytest.raises(unisono.UnisonoError, match="has forgotten the topic 'of-leaf'"):
                        await joining
                else:  # the root has told it the number again
                    stream = await joining
                    async with connected(made) as other:
                        await publish_last(other, ("of-leaf",))
                        assert (await heard(stream, ("of-leaf",)))[-1].data == LAST
            async with connected(made) as session, session.subscribe("of-leaf") as stream:
                await publish_last(session, ("of-leaf",))
                assert (await heard(stream, ("of-leaf",)))[-1].data == LAST

    asyncio.run(run())


def test_what_a_session_has_open_that_began_while_the_node_was_away_is_given_up_too(tmp_path: Path) -> None:
    """The root has told it where the topics are. What the node may have numbered is not asked for again."""

    async def run() -> None:
        async with asyncio.timeout(150), world(tmp_path, "nats", ("hub", "leaf")) as made:
            async with connected(made) as session:
                await publish(session, "of-leaf", 3)
                await root_knows(session, "of-leaf")
            made.kill("leaf")
            async with connected(made) as session:
                assert isinstance(session, SequencedSession)
                while not session.links.is_up(Address("hub")):
                    await asyncio.sleep(0.01)
                first = asyncio.ensure_future(session.publish("of-leaf", "first"))
                while session.topic_of("of-leaf") is None:
                    await asyncio.sleep(0.01)
                    assert not first.done()
                made.start("leaf")
                assert isinstance(await first, unisono.Accepted | unisono.Unknown)
                while not isinstance(await session.publish("of-leaf", "again"), unisono.Accepted):
                    pass
                made.kill("leaf")
                second = asyncio.ensure_future(session.publish("of-leaf", "second"))
                while not session.publications.in_flight:
                    await asyncio.sleep(0.01)
                made.start("leaf", "--new-incarnation")
                assert isinstance(await second, unisono.Unknown)

    asyncio.run(run())
