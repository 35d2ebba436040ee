"""FIFO per publisher: each rule of the machine, by hand."""

from typing import Any

import pytest

from unisono.machine import (
    Accepted,
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Joined,
    Leave,
    Publish,
    SetTimer,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine, Numbered
from unisono.sim import scenario

A, B = Topic(1), Topic(2)
P, Q = Address("p"), Address("q")
CONFIG = FifoConfig(deadline_us=Micros(100), held_max=3)


def subscriber(*topics: Topic) -> FifoMachine:
    machine = FifoMachine(Address("s"), CONFIG)
    machine.handle(Subscribe(topics), Micros(0))
    for topic in topics:
        machine.handle(Joined(topic), Micros(0))
    return machine


def says(*topics: Topic, source: Address = P) -> list[Heard]:
    """What a publisher's events on these topics look like to its subscribers."""
    machine = FifoMachine(source)
    heard = []
    for n, topic in enumerate(topics, 1):
        broadcast, accepted = machine.handle(Publish(topic, f"{source}{n}", request=n), Micros(0))
        assert isinstance(broadcast, Broadcast)
        assert accepted == Deliver(Accepted(n, "sent"))
        heard.append(Heard(topic, broadcast.message))
    return heard


def told(effects: list[Effect]) -> list[Any]:
    items = [effect.item for effect in effects if isinstance(effect, Deliver)]
    return [item.message if isinstance(item, Heard) else item for item in items]


def test_events_in_turn_are_delivered_at_once_and_set_no_timer() -> None:
    machine = subscriber(A)
    for n, heard in enumerate(says(A, A, A), 1):
        assert machine.handle(heard, Micros(n)) == [Deliver(Heard(A, f"p{n}"))]


def test_an_early_event_waits_for_its_predecessor() -> None:
    one, two, three = says(A, A, A)
    machine = subscriber(A)
    assert machine.handle(three, Micros(5)) == [SetTimer("p", Micros(105))]
    assert told(machine.handle(two, Micros(6))) == []
    effects = machine.handle(one, Micros(7))
    assert told(effects) == ["p1", "p2", "p3"]
    assert effects[-1] == CancelTimer("p")


def test_the_order_holds_across_topics() -> None:
    one, two = says(A, B)
    both = subscriber(A, B)
    assert told(both.handle(two, Micros(1))) == []
    assert told(both.handle(one, Micros(2))) == ["p1", "p2"]


def test_topics_not_subscribed_are_not_waited_for() -> None:
    _, two = says(A, B)
    assert told(subscriber(B).handle(two, Micros(1))) == ["p2"]


def test_publishers_do_not_wait_for_each_other() -> None:
    machine = subscriber(A)
    machine.handle(says(A, A)[1], Micros(1))
    assert told(machine.handle(says(A, source=Q)[0], Micros(2))) == ["q1"]


def test_repeated_events_are_delivered_once() -> None:
    one, two = says(A, A)
    machine = subscriber(A)
    machine.handle(two, Micros(1))
    assert machine.handle(two, Micros(2)) == []
    assert told(machine.handle(one, Micros(3))) == ["p1", "p2"]
    assert machine.handle(one, Micros(4)) == []
    assert machine.handle(two, Micros(4)) == []


def test_a_wait_ends_at_its_deadline_in_a_gap_and_what_comes_later_is_dropped() -> None:
    one, two, three, four = says(A, B, A, A)
    machine = subscriber(A, B)
    machine.handle(four, Micros(10))
    machine.handle(three, Micros(50))
    reason = "publisher p: not heard in time"
    assert told(machine.handle(Fired("p"), Micros(110))) == [Gap(A, 1, 1, reason), Gap(B, 1, 2, reason), "p3", "p4"]
    assert machine.handle(one, Micros(111)) == []
    assert machine.handle(two, Micros(111)) == []


def test_the_deadline_is_that_of_the_event_that_waits_longest() -> None:
    heard = says(A, A, A, A, A, A)
    machine = subscriber(A)
    machine.handle(heard[2], Micros(10))
    assert machine.handle(heard[5], Micros(90))[-1] == SetTimer("p", Micros(110))
    effects = machine.handle(Fired("p"), Micros(110))
    assert told(effects)[1:] == ["p3"]
    assert effects[-1] == SetTimer("p", Micros(190))


def test_at_the_bound_the_longest_wait_ends_at_once() -> None:
    machine = subscriber(A)
    machine.handle(says(A, A)[1], Micros(1))
    late = says(*[A] * 5, source=Q)
    assert told(machine.handle(late[2], Micros(2))) == []
    assert told(machine.handle(late[3], Micros(3))) == []
    assert told(machine.handle(late[4], Micros(4)))[1:] == ["p2"]
    assert told(machine.handle(late[1], Micros(5)))[1:] == ["q2", "q3", "q4", "q5"]


def test_leaving_drops_what_was_held_for_the_topic_and_frees_what_waited_for_it() -> None:
    one, two, three = says(B, A, B)
    machine = subscriber(A, B)
    machine.handle(two, Micros(1))
    machine.handle(three, Micros(2))
    effects = machine.handle(Unsubscribe((B,)), Micros(3))
    assert effects[0] == Leave(B)
    assert told(effects) == ["p2"]
    assert effects[-1] == CancelTimer("p")
    del one


@pytest.mark.parametrize("seed", range(10))
def test_every_loss_that_something_follows_is_told(seed: int) -> None:
    """Whoever stays subscribed is told of each event of a publisher before the last one it heard: delivered or gap."""
    chosen = scenario.with_options(scenario.load("fifo/lossy"), {"workload.churn_per_s": 0.0})
    records = scenario.play(chosen, seed).records
    topics = {(r.subscriber, r.topic) for r in records if r.kind == "subscribe"}
    published = [r for r in records if r.kind == "publish"]
    delivered = {(r.subscriber, r.event) for r in records if r.kind == "deliver"}
    last = {(r.subscriber, r.publisher): r.publisher_seq for r in records if r.kind == "deliver"}
    gaps = [r for r in records if r.kind == "gap"]
    missing = 0
    for subscriber_name, topic in topics:
        for event in published:
            heard_later = (event.publisher_seq or 0) < (last.get((subscriber_name, event.publisher)) or 0)
            if event.topic != topic or not heard_later or (subscriber_name, event.event) in delivered:
                continue
            missing += 1
            assert any(
                gap.subscriber == subscriber_name
                and gap.topic == topic
                and gap.number <= event.publisher_seq <= gap.last_number
                and f"publisher {event.publisher}:" in gap.note
                for gap in gaps
            )
    assert missing > 5


def test_a_numbered_event_names_the_number_before_it_on_every_topic() -> None:
    messages = [heard.message for heard in says(A, B, A)]
    assert messages == [Numbered(P, 1, {}, "p1"), Numbered(P, 2, {A: 1}, "p2"), Numbered(P, 3, {A: 1, B: 2}, "p3")]
