"""Deployments that order by clocks: real nodes and sessions, restarts, and what is refused there."""

import asyncio
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

import unisono
from tests.papers.clock.parts import ME, SubscriberAlone
from tests.runtime.test_cluster import FAST, running, star, url
from tests.runtime.test_session import take
from unisono.audit import judge
from unisono.audit.files import read
from unisono.cli.init import Plan, RegionPlan, compose
from unisono.errors import FormatError, PlanError
from unisono.machine import Fired, Gap, Heard
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.homes import slot
from unisono.model.ids import Topic
from unisono.model.promise import Promise, Reliability
from unisono.model.settings import ArchiveSpec, BrokerKind, BrokerSpec, OrderedBy, Right, Sequencing
from unisono.protocols.clock.deployed import stampers
from unisono.protocols.clock.messages import STAMPERS_MAX, Closed, LaneName, Opened
from unisono.runtime.client.ordering import ClockClients
from unisono.runtime.client.publishing.named import named_publisher
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig


def by_clock(data: bool = True) -> Deployment:
    return structs.replace(star(data), sequencing=Sequencing(by="clock"))


def test_subscribers_of_two_sites_agree_on_one_order_of_everything(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = by_clock()
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            east.subscribe("trades", "quotes", "news") as one,
            west.subscribe("news", "quotes", "trades") as two,
        ):
            publishers = [await s.publisher(topic) for s in (east, west) for topic in ("trades", "quotes", "news")]
            for number in range(50):
                for publisher in publishers:
                    await publisher.send(number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            heard = await asyncio.gather(take(one, 300), take(two, 300))
            assert [event.gap for event in heard[0] if event.gap is not None] == []
            assert [event.id for event in heard[0]] == [event.id for event in heard[1]]
            assert len({event.id for event in heard[0]}) == 300
            assert all(node.sequencer is not None and not node.sequencer.broker.counters.nameless
                       for node in nodes.values())  # fmt: skip
            for publisher in publishers:
                await publisher.drain()
                assert (publisher.accepted, publisher.failures) == (50, [])

    asyncio.run(run())


def test_a_cause_comes_before_its_effect_wherever_both_are_heard(tmp_path: Path) -> None:
    """Who has heard an event and publishes on another topic, in another region, is heard after it by everybody."""

    async def run() -> None:
        deployment = structs.replace(star(data=False), sequencing=Sequencing(by="clock", order="causal"))
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            unisono.connect(url(deployment, "hub")) as hub,
            west.subscribe("trades") as asked,
            hub.subscribe("quotes", "trades", order="causal") as all_of_it,
        ):
            for number in range(20):
                await east.publish("trades", number)
                (cause,) = await take(asked, 1)
                await west.publish("quotes", cause.data)
            heard = [(event.topic, event.data) for event in await take(all_of_it, 40)]
            assert heard == [(topic, number) for number in range(20) for topic in ("trades", "quotes")]

    asyncio.run(run())


def test_a_reliable_stream_waits_for_the_stamps_of_a_node_that_is_away() -> None:
    """It keeps what it has stamped; seed 402 of the crash campaign, by clock."""
    deployment = by_clock()
    topic = Topic(slot(stampers(deployment)[0]))
    waited: dict[Reliability, float] = {}
    for reliability in get_args(Reliability):
        me = SubscriberAlone()
        me.machine = ClockClients(deployment, ME).subscriber(ME, Promise(reliability=reliability), "wait", False)
        me.join(topic)
        me.stamps(LaneName(topic, 0, 0), 1, Opened(400, 2))
        me.stamps(LaneName(topic, 0, 0), 2, Closed(800, 2, 1, -1, 700))
        while not me.notices(Gap):
            me.say(Fired("tick"), after=1_000_000)
        waited[reliability] = (me.now - SubscriberAlone().now) / 1_000_000
    assert waited["best-effort"] < 10 < 60 <= waited["reliable"]


@pytest.mark.parametrize("victim", ["east", "hub"])
def test_a_node_that_restarts_goes_on_with_its_keys_and_nothing_is_lost_untold(tmp_path: Path, victim: str) -> None:
    async def run() -> None:
        deployment = by_clock()
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            east.subscribe("trades", "quotes") as one,
            west.subscribe("quotes", "trades") as two,
        ):
            trades, quotes = await east.publisher("trades"), await west.publisher("quotes")
            for number in range(200):
                await trades.send(number)
                await quotes.send(number)
                if number == 100:
                    await nodes[victim].stop()
                    nodes[victim] = Node(deployment, victim, tmp_path, FAST)
                    await nodes[victim].start()
                await asyncio.sleep(0)
            await trades.drain()
            await quotes.drain()
            assert (trades.failures, quotes.failures) == ([], [])
            heard = await asyncio.gather(take(one, 400), take(two, 400))
            for events in heard:  # the embedded broker keeps nothing: what it loses at the hub is a gap
                assert victim == "hub" or all(event.gap is None for event in events)
            both = [[event.id for event in events if event.gap is None] for events in heard]
            common = set(both[0]) & set(both[1])
            assert [e for e in both[0] if e in common] == [e for e in both[1] if e in common]
            assert len(both[0]) == len(set(both[0]))
            assert len(common) >= 200

    asyncio.run(run())


def test_topics_that_are_born_are_heard_by_those_who_have_a_pattern(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = by_clock(data=False)
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            west.subscribe("new.*") as stream,
        ):
            await east.publish("new.one", 1)
            while "new.one" not in stream.topics:
                await asyncio.sleep(0.01)
            await asyncio.wait_for(_in_force(stream, "new.one"), 30)
            await east.publish("new.one", 2)
            async for event in stream:
                if event.data == 2:
                    break

    asyncio.run(run())


async def _in_force(stream: Any, name: str) -> None:
    while name not in stream.bases:
        await asyncio.sleep(0.01)


def test_what_is_not_possible_by_clock_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = by_clock(data=False)
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "hub")) as session,
        ):
            for asked, reason in (
                ({"order": "fifo"}, "use 'total'"),
                ({"on_stall": "tag"}, "'wait' or 'leave'"),
                ({"start": "earliest"}, "archive"),
                ({"group": "g"}, "archive"),
            ):
                with pytest.raises(PlanError, match=reason):
                    session.subscribe("trades", **asked)  # type: ignore[arg-type]
            with pytest.raises(PlanError, match="tree"):
                async with named_publisher(deployment, "sink"):
                    pass

    asyncio.run(run())


def test_a_file_that_says_by_clock_says_what_cannot_go_with_it() -> None:
    text = dump_deployment(by_clock())
    assert 'by = "clock"' in text
    assert parse_deployment(text).sequencing.by == "clock"
    with pytest.raises(FormatError, match="rights"):
        parse_deployment(dump_deployment(structs.replace(by_clock(), rights=(Right("r", token_file="t"),))))
    with pytest.raises(FormatError, match=r"sequencing\.by"):
        parse_deployment(
            'version = 1\nname = "x"\nkind = "overlay"\n[[nodes]]\nname = "n"\n[sequencing]\nby = "clock"\n'
        )


@pytest.mark.parametrize("kind", ["nats", "jetstream", "udp"])
def test_over_every_broker_subscribers_agree(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
        deployment = structs.replace(by_clock(data=False), broker=BrokerSpec(kind))
        if kind != "udp":
            await server.start()
            deployment = structs.replace(deployment, broker=BrokerSpec(kind, (server.url,)))
        reliably: dict[str, Any] = {"reliability": "reliable"} if kind == "jetstream" else {}
        try:
            async with (
                asyncio.timeout(90),
                running(deployment, tmp_path),
                unisono.connect(url(deployment, "east"), timeout=30) as east,
                unisono.connect(url(deployment, "west"), timeout=30) as west,
                east.subscribe("trades", "quotes", **reliably) as one,
                west.subscribe("quotes", "trades", **reliably) as two,
            ):
                outcomes = await asyncio.gather(
                    *(session.publish(topic, number, {"n": number})
                      for number in range(20) for session in (east, west) for topic in ("trades", "quotes"))
                )  # fmt: skip
                strength = "stored" if kind == "jetstream" else "ordered"
                assert {getattr(outcome, "strength", outcome) for outcome in outcomes} == {strength}
                heard = await asyncio.gather(take(one, 80), take(two, 80))
                ids = [[event.id for event in events] for events in heard]
                assert ids[0] == ids[1]
                assert len(set(ids[0])) == 80
                assert all(event.attributes == {"n": event.data} for event in heard[0])
        finally:
            server.kill()

    asyncio.run(run())


def test_what_was_delivered_is_kept_told_again_and_followed_without_a_seam(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = by_clock()
        hub = structs.replace(deployment.nodes[0], roles=("sequencer", "broker", "archive"))
        deployment = structs.replace(deployment, nodes=(hub, *deployment.nodes[1:]), archive=ArchiveSpec(seal_s=0.2))
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "east"), timeout=30) as east,
            unisono.connect(url(deployment, "west"), timeout=30) as west,
        ):
            for number in range(40):
                for session, topic in ((east, "trades"), (west, "quotes"), (east, "quotes")):
                    assert isinstance(await session.publish(topic, number), unisono.Accepted)
            async with east.subscribe("trades", "quotes", start="earliest") as stream:
                past = await take(stream, 120)
                assert [event.gap for event in past if event.gap is not None and event.gap.last > past[0].number] == []
                await west.publish("trades", "live")
                (live,) = await take(stream, 1)
                assert live.data == "live"
                half = past[59].position
            async with west.subscribe("quotes", "trades", start=half) as resumed:
                heard = await take(resumed, 61)
                assert [event.id for event in heard] == [event.id for event in [*past[60:], live]]
            async with east.subscribe("trades", "quotes", group="readers", start="earliest") as first:
                for event in await take(first, 30):
                    await first.commit(event.position)
            async with west.subscribe("trades", "quotes", group="readers") as second:
                heard = await take(second, 91)
                assert [event.id for event in heard] == [event.id for event in [*past[30:], live]]

    asyncio.run(run())


def with_a_gap_around(stream: Any) -> None:
    """Before the next event this stream is told that one stamper's entries were lost, from before it until a tenth of a
    second after it: so much lies between two entries of a stamper that writes seldom."""
    real, waits = stream.deliver, [True]

    def told(item: Any) -> None:
        if isinstance(item, Heard) and waits:
            waits.clear()
            first, last = item.number - 10, item.number + 100_000 * STAMPERS_MAX
            real(Gap(item.topic, first, last, "entries of west were lost", settled=first - 1))
        real(item)

    stream.host._outside.deliver = told


async def upto(stream: Any, number: int) -> list[Any]:
    """What it is told until it has heard of this number."""
    told: list[Any] = []
    async with asyncio.timeout(60):
        while not told or told[-1].number < number:
            told += await take(stream, 1)
    return told


def test_who_resumes_at_a_gap_of_one_stamper_hears_what_others_have_stamped_within_it(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = by_clock()
        hub = structs.replace(deployment.nodes[0], roles=("sequencer", "broker", "archive"))
        deployment = structs.replace(deployment, nodes=(hub, *deployment.nodes[1:]), archive=ArchiveSpec(seal_s=0.2))
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east"), timeout=30) as east,
            east.subscribe("trades") as stream,
        ):
            archivist: Any = nodes["hub"].archivist
            while archivist._stream is None or "trades" not in archivist._stream.bases:
                await asyncio.sleep(0.01)
            for each in (stream, archivist._stream):
                with_a_gap_around(each)
            publisher = await east.publisher("trades")
            await publisher.send_all(range(3))  # three stamps in a row
            gap, *events = await take(stream, 4)
            assert gap.gap is not None
            assert [event.data for event in events] == [0, 1, 2]
            assert gap.gap.first < events[0].number < events[-1].number < gap.gap.last
            last = 0
            while last <= gap.gap.last:
                await publisher.send("after")
                last = (await take(stream, 1))[0].number
            for start, missed in ((gap.position, 0), (events[0].position, 1), ("earliest", 0)):
                async with east.subscribe("trades", start=start) as resumed:
                    told = await upto(resumed, last)
                    assert [event.data for event in told if event.data in range(3)] == [0, 1, 2][missed:]
                    parts = [(part.gap.first, part.gap.last) for part in told if part.gap is not None]
                    begin = events[0].number + 1 if missed else gap.gap.first
                    assert (begin, events[missed].number - 1) in parts, "each is told before its event"

    asyncio.run(run())


def test_real_time_order_is_kept_between_processes_that_only_hear_each_others_answers(tmp_path: Path) -> None:
    """What east publishes after west's answer is heard after it by a third; finer tolerances are refused."""

    async def run() -> None:
        sequencing = Sequencing(by="clock", tolerance_ms=100)
        deployment = structs.replace(by_clock(), sequencing=sequencing)
        journal = tmp_path / "journals"
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "east"), journal=journal, timeout=30) as east,
            unisono.connect(url(deployment, "west"), journal=journal, timeout=30) as west,
            unisono.connect(url(deployment, "hub"), journal=journal, timeout=30) as hub,
        ):
            with pytest.raises(PlanError, match="finer than this deployment"):
                hub.subscribe("trades", order="realtime", tolerance="50ms")
            async with hub.subscribe("trades", "quotes", order="realtime", tolerance="100ms") as stream:
                for number in range(3):
                    await west.publish("trades", ("west", number))
                    await asyncio.sleep(0.11)
                    await east.publish("quotes", ("east", number))
                    await asyncio.sleep(0.11)
                heard: list[tuple[str, int]] = []
                while len(heard) < 6:  # on a machine with much to do clocks are far off now and then, which is said
                    heard += [tuple(event.data) for event in await take(stream, 1) if not event.stalled]
                assert heard == [(who, number) for number in range(3) for who in ("west", "east")]
            report = await hub.status("east")
            assert report.stamper is not None
            assert report.stamper.error_us is not None
            assert report.stamper.skew_us is not None
            assert "trades" in {lane.topic for lane in report.stamper.lanes if not lane.epoch}, "it is kept there"
            assert set(report.stamper.heard_us) == {"hub", "west"}
        verdicts = {verdict.judge: verdict for verdict in judge(read(tmp_path / "journals"))}
        assert verdicts["realtime"].holds

    asyncio.run(run())


def test_init_writes_a_file_that_orders_by_clocks() -> None:
    places = (RegionPlan("eu"), RegionPlan("us"))
    for by in get_args(OrderedBy):
        plan = Plan("here", places, "sequencer", "embedded", (), {"eu us": 80.0}, 7474, by)
        assert parse_deployment(compose(plan)).sequencing.by == by
