"""Hosts in the world: time, timers, disks, crashes, pauses, clocks, queues."""

from typing import Any

import pytest

from unisono.errors import InvariantError, MisuseError
from unisono.machine import (
    PERSIST,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Heard,
    Joined,
    Publish,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.region import LatencyTable
from unisono.model.time import Micros
from unisono.sim.links import ByRegion, Fixed, LinkSpec
from unisono.sim.service import ServiceSpec
from unisono.sim.spec import Span
from unisono.sim.world import World


class Obedient:
    """Answers every `Publish` with the effects it carries; keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, int]] = []

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self.seen.append((message, now))
        return list(message.message) if isinstance(message, Publish) else []


class Remembering(Obedient):
    """The same, with a memory that is put on disk."""

    def snapshot(self) -> Any:
        return [[str(message), now] for message, now in self.seen]

    def restore(self, snapshot: Any) -> None:
        self.seen = [(message, now) for message, now in snapshot]


def do(*effects: Effect) -> Publish:
    return Publish(Topic(0), effects)


def inputs(world: World, host: str) -> list[Any]:
    machine = world.host(host).machine
    assert isinstance(machine, Obedient)
    return [message for message, _ in machine.seen]


def test_things_happen_in_time_order_and_then_in_the_order_they_were_planned() -> None:
    world, happened = World(0), []
    world.at(20, happened.append, "late")
    world.at(10, happened.append, "first")
    world.at(10, happened.append, "second")
    world.at(-5, happened.append, "now")
    assert world.run() == 4
    assert happened == ["now", "first", "second", "late"]
    assert world.now == 20


def test_a_run_stops_after_its_last_moment_and_can_go_on() -> None:
    world, happened = World(0), []
    for time in (10, 20, 30):
        world.at(time, happened.append, time)
    world.run(until=20)
    assert happened == [10, 20]
    world.run()
    assert happened == [10, 20, 30]


def test_a_run_that_never_rests_is_reported() -> None:
    world = World(0)

    def again() -> None:
        world.after(1, again)

    again()
    with pytest.raises(InvariantError, match="does not come to rest"):
        world.run(steps_max=100)


def test_dice_of_one_concern_do_not_move_those_of_another() -> None:
    one, other = World(5), World(5)
    other.dice("links").random()
    assert one.dice("faults").random() == other.dice("faults").random()
    assert one.dice("links").random() != other.dice("links").random()


def test_a_timer_fires_once_unless_it_is_moved_or_cancelled() -> None:
    world = World(0)
    world.add("h", lambda name: Obedient())
    host = world.host("h")
    host.tell(do(SetTimer("a", Micros(100)), SetTimer("b", Micros(50)), SetTimer("c", Micros(70))))
    host.tell(do(SetTimer("a", Micros(200)), CancelTimer("b"), CancelTimer("unknown")))
    world.run()
    assert isinstance(host.machine, Obedient)
    assert host.machine.seen[2:] == [(Fired("c"), 70), (Fired("a"), 200)]


def test_messages_take_the_time_of_their_link() -> None:
    world = World(0, links=LinkSpec(Fixed(Span(700))))
    world.add("a", lambda name: Obedient())
    world.add("b", lambda name: Obedient())
    world.host("a").tell(do(Send(Address("b"), "hello"), Send(Address("nobody"), "?")))
    world.run()
    machine = world.host("b").machine
    assert isinstance(machine, Obedient)
    assert machine.seen == [("hello", 700)]


def test_only_what_was_persisted_survives_a_crash() -> None:
    world = World(0)
    host = world.add("h", lambda name: Remembering())
    world.run()
    assert inputs(world, "h") == [Restarted()]
    seen = Send(Address("somebody"), "seen")
    kept, lost, unseen = do(PERSIST, seen), do(SetTimer("x", Micros(10))), do(PERSIST)
    for message in (kept, lost, unseen):
        host.tell(message)
    world.run(until=5)
    host.crash()
    host.restart()
    world.run()
    assert inputs(world, "h") == [kept, Restarted()]


def test_a_crash_comes_before_the_effect_it_names_and_stops_the_rest() -> None:
    for crash_at, persisted, sent in [(1, False, 0), (2, True, 0), (3, True, 1)]:
        world = World(0)
        host = world.add("h", lambda name: Remembering())
        world.add("peer", lambda name: Obedient())
        host.crash_at = crash_at
        host.tell(do(PERSIST, Send(Address("peer"), 1), Send(Address("peer"), 2)))
        world.run()
        assert not host.is_up
        assert bool(host.disk.log) is persisted
        assert len(inputs(world, "peer")) == sent


def test_a_first_message_finds_hosts_that_were_added_later() -> None:
    class Greeting(Remembering):
        def handle(self, message: Any, now: Micros) -> list[Effect]:
            super().handle(message, now)
            return [Send(Address("far"), "hello")] if isinstance(message, Restarted) else []

    table = LatencyTable(("eu", "us"), ((0, 40_000), (40_000, 0)))
    world = World(0, links=LinkSpec(ByRegion()), latencies=table)
    world.add("near", lambda name: Greeting(), region="eu")
    far = world.add("far", lambda name: Obedient(), region="us")
    world.run()
    assert isinstance(far.machine, Obedient)
    assert far.machine.seen == [("hello", 40_000)]


def test_a_snapshot_replaces_the_log() -> None:
    world = World(0)
    host = world.add("h", lambda name: Remembering(), snapshot_every=3)
    for _ in range(4):
        host.tell(do(PERSIST, Send(Address("somebody"), "seen")))
    world.run()
    assert len(host.disk.log) == 1
    host.crash()
    host.restart()
    assert len(inputs(world, "h")) == 1 + 4 + 1


def test_without_its_disk_a_host_comes_back_as_somebody_else() -> None:
    world = World(0)
    host = world.add("h", lambda name: Remembering())
    host.tell(do(PERSIST))
    world.run()
    host.crash()
    host.restart(disk=False)
    assert inputs(world, "h") == [Restarted()]
    assert host.name != "h"
    assert host.address == "h"


def test_a_crash_forgets_timers_and_what_arrives_meanwhile() -> None:
    world = World(0, links=LinkSpec(Fixed(Span(100))))
    host = world.add("h", lambda name: Obedient())
    world.add("peer", lambda name: Obedient())
    host.tell(do(SetTimer("x", Micros(500))))
    world.host("peer").tell(do(Send(Address("h"), "while it is down")))
    world.at(50, host.crash)
    world.at(200, host.restart)
    world.run()
    assert inputs(world, "h") == []


def test_a_paused_host_handles_everything_later_in_order() -> None:
    world = World(0)
    host = world.add("h", lambda name: Obedient())
    host.tell(do(SetTimer("x", Micros(50))))
    world.at(10, host.pause)
    world.at(20, host.receive, "a")
    world.at(100, host.resume)
    world.run()
    machine = host.machine
    assert isinstance(machine, Obedient)
    assert machine.seen[1:] == [("a", 100), (Fired("x"), 100)]


def test_a_skewed_host_sees_another_time_and_its_timers_still_last_as_long() -> None:
    world = World(0)
    host = world.add("h", lambda name: Obedient())
    host.skew_us = -300
    world.at(1_000, host.receive, do(SetTimer("x", Micros(750))))
    world.run()
    machine = host.machine
    assert isinstance(machine, Obedient)
    assert [now for _, now in machine.seen] == [700, 750]
    assert world.now == 1_050


def busy_host(when_full: Any) -> tuple[World, Obedient, Any]:
    world = World(0)
    host = world.add("h", lambda name: Obedient(), service=ServiceSpec(Span(10), queue_max=5, when_full=when_full))
    for time in range(0, 300, 3):  # three times faster than it can serve
        world.at(time, host.receive, time)
    world.run()
    assert isinstance(host.machine, Obedient)
    return world, host.machine, host


def test_a_saturated_host_drops_and_keeps_waiting_short() -> None:
    world, machine, host = busy_host("drop")
    assert host.queue.dropped > 50
    assert len(machine.seen) == 100 - host.queue.dropped
    assert max(now - message for message, now in machine.seen) <= 10 * 6
    assert sum(record.kind == "refuse" for record in world.records) == host.queue.dropped


def test_a_saturated_host_that_pushes_back_loses_nothing_and_waiting_grows() -> None:
    _, machine, _ = busy_host("push back")
    assert [message for message, _ in machine.seen] == list(range(0, 300, 3))
    waits = [now - message for message, now in machine.seen]
    assert waits[-1] > 600
    assert waits == sorted(waits)


def test_the_journal_tells_what_a_client_was_told() -> None:
    world = World(0)
    host = world.add("c", lambda name: Obedient())
    world.topic("news")
    event = Event("p", 1, "news")
    host.tell(
        do(
            Deliver(Joined(Topic(0), 4)),
            Deliver(Heard(Topic(0), event, number=5)),
            Deliver(Heard(Topic(0), event, late=True)),
        )
    )
    world.run()
    told = [(record.kind, record.topic, record.number, record.position) for record in world.records]
    assert told == [("subscribe", "news", 4, None), ("deliver", "news", 5, 1), ("tag", "news", None, 2)]


def test_hosts_have_different_names() -> None:
    world = World(0)
    world.add("h", lambda name: Obedient())
    with pytest.raises(MisuseError, match="two hosts"):
        world.add("h", lambda name: Obedient())
    with pytest.raises(MisuseError, match="no host 'x'"):
        world.host("x")
