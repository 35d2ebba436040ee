"""What joining costs: a home is told once, lists travel and are kept once, and repetitions become rare."""

from typing import Any

import msgspec
import pytest

from tests.papers.sequencer.pump import STAMP
from unisono.machine import Effect, Fired, Joined, Publish, Send, SetTimer, Subscribe, Unsubscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.messages import (
    Collect,
    Collected,
    Creates,
    Fill,
    Install,
    Moved,
    Part,
    Renew,
    Renewed,
    Routed,
    Taken,
    Update,
    Wanted,
)
from unisono.protocols.sequencer.node import TopicManager
from unisono.structures.sessions import LinkFree, LinkFull, Reconnected

RULES = ("LINEAR", "BACK-OFF")

NOW = Micros(0)
S, HOME, OTHER = Address("s"), Address("home"), Address("other")


def topics(count: int, first: int = 1) -> tuple[Topic, ...]:
    return tuple(Topic(number) for number in range(first, first + count))


def client(*some: tuple[Topic, ...]) -> OrderingClient:
    homes = {topic: home for home, here in zip((HOME, OTHER), some) for topic in here}
    return OrderingClient(S, homes, STAMP)


def sends(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def tell(machine: Any, *inputs: Any, now: Micros = NOW) -> list[Any]:
    return [message for one in inputs for message in sends(machine.handle(one, now))]


def node(count: int, parent: str | None = None) -> TopicManager:
    return TopicManager(HOME, None if parent is None else Address(parent), (), topics(count), {}, STAMP)


def joined(machine: OrderingClient, at: TopicManager, some: tuple[Topic, ...]) -> int:
    """Joins, at one home; returns how many messages the client sent."""
    said = tell(machine, Subscribe(some), *map(Joined, some))
    count = len(said)
    while said:
        answers = [answer for message in said for answer in tell(at, message)]
        said = [message for answer in answers for message in tell(machine, answer)]
        count += len(said)
    assert machine.subscriber.joining == ()
    return count


def test_a_home_is_told_once_what_concerns_all_its_topics() -> None:
    here, there = topics(300), topics(200, 301)
    machine = client(here, there)
    installs = tell(machine, Subscribe(here + there), *map(Joined, here + there))
    assert installs == [Install(S, 1, home, here + there, short=True) for home in (here, there)]
    alone, at = client(topics(101)), node(101)
    assert joined(alone, at, topics(100)) == 1
    assert joined(alone, at, topics(1, 101)) == 2  # one Collect, one Install
    (renew,) = tell(alone, Fired("lease"))
    assert renew == Renew(S, topics(101), NOW)
    (answer,) = tell(at, renew)
    assert answer == Renewed(topics(101), NOW, True)
    updates = tell(alone, Unsubscribe(topics(50)))
    assert [(len(update.here), len(update.topics)) for update in updates] == [(51, 51), (50, 0)]


def test_what_is_asked_for_one_by_one_meanwhile_is_joined_together() -> None:
    machine, at = client(topics(100)), node(100)
    (first,) = tell(machine, Subscribe(topics(1)), Joined(Topic(1)))
    for topic in topics(99, 2):
        assert tell(machine, Subscribe((topic,))) == []
    tell(machine, *tell(at, first))
    (collect,) = tell(machine, *map(Joined, topics(99, 2)))
    assert collect == Collect(S, 2, topics(1), topics(100), topics(99, 2), short=True)


def test_whoever_leaves_what_was_joined_together_with_others_does_not_stop_them() -> None:
    """A home that does not answer holds up those who were asked for at the same time no longer than its own topic."""
    machine = client(topics(3), topics(2, 4))
    at = node(3)
    (first,) = tell(machine, Subscribe(topics(1)), Joined(Topic(1)))
    tell(machine, Subscribe(topics(2, 4)), Subscribe(topics(2, 2)))
    tell(machine, *tell(at, first))
    (collect,) = tell(machine, *map(Joined, topics(4, 2)))
    installs = tell(machine, *tell(at, collect))
    assert [install.here for install in installs] == [topics(2, 4), topics(2, 2)]
    left = tell(machine, Unsubscribe(topics(1, 4)))
    assert left == []  # the other one that was asked for with it is still wanted
    answers = tell(machine, Unsubscribe(topics(1, 5)), *map(Joined, topics(2, 2)))
    (again,) = [message for message in answers if isinstance(message, Collect)]
    assert (again.here, again.new) == (topics(1), topics(2, 2))
    (install,) = tell(machine, *tell(at, again))
    tell(machine, *tell(at, install))
    assert machine.subscriber.subscribed == topics(3)


@pytest.mark.parametrize("sessions", [1, 2])
def test_what_a_home_keeps_grows_with_what_is_joined(sessions: int) -> None:
    """Nobody publishes, so nobody has to know yet what must be ordered against what."""

    def size(count: int) -> int:
        at = node(count)
        for i in range(sessions):
            machine = OrderingClient(Address(f"s{i}"), dict.fromkeys(topics(count), HOME), STAMP)
            joined(machine, at, topics(count))
        return len(msgspec.msgpack.encode(at.snapshot()))

    assert size(800) < 2.2 * size(400)


def test_one_part_climbs_for_all_that_is_collected() -> None:
    at = node(100, parent="root")
    (part,) = tell(at, Collect(S, 1, topics(100), topics(101), topics(1, 101)))
    assert part == Part(dict.fromkeys(topics(100), 0), S, 1, topics(1, 101))
    root = TopicManager(Address("root"), None, (HOME,), topics(1, 101), dict.fromkeys(topics(100), HOME), STAMP)
    assert tell(root, part) == [Collected(topic, 1) for topic in topics(100)]


def test_topics_that_have_moved_are_found_in_one_message_each_way() -> None:
    """What is at home is registered at once; the rest travels together, and the client learns where it is."""
    below = dict.fromkeys(topics(3, 4), OTHER)
    root = TopicManager(HOME, None, (OTHER,), topics(3), below, STAMP)
    *_, onward = tell(root, Install(S, 1, topics(6), topics(6)))
    assert onward == Routed(Topic(4), Install(S, 1, topics(3, 4), topics(6)))
    child = TopicManager(OTHER, HOME, (), topics(3, 4), {}, STAMP)
    answers = tell(child, onward)
    assert [answer for answer in answers if isinstance(answer, Moved)] == [
        Moved(topic, OTHER) for topic in topics(3, 4)
    ]
    assert len(answers) == 6


def test_whoever_becomes_a_member_of_a_group_gets_an_explicit_entry() -> None:
    """Who joined while there was no group has none of the entries from before, and they may be omitted above."""
    x, t = topics(2)
    at = TopicManager(HOME, Address("root"), (), (t,), {}, STAMP)

    def fill(request: int) -> Fill:
        (found,) = [one for one in tell(at, Creates(Address("p"), (Wanted(t, request),))) if isinstance(one, Fill)]
        return found

    for sid in ("a", "b"):
        tell(at, Install(Address(sid), 1, (t,), (t, x)))
    assert fill(1).full == (x,)
    assert fill(2).full == ()
    for sid in ("a", "b"):
        tell(at, Update(Address(sid), 2, (t,), (t,)))
    tell(at, Install(Address("c"), 1, (t,), (t, x)))
    tell(at, Creates(Address("p"), (Wanted(t, 3),)))
    tell(at, Collect(Address("a"), 3, (t,), (t, x), (x,)))
    assert fill(4).full == (x,)


@pytest.mark.parametrize("counted", ["nothing", "some", "all"])
def test_a_home_that_comes_back_knows_who_has_joined_since_the_last_event(counted: str) -> None:
    """All is counted for a request that can not be taken."""
    x, t = topics(2)
    at = TopicManager(HOME, Address("root"), (), (t,), {}, STAMP)
    for sid in ("a", "b"):
        tell(at, Install(Address(sid), 1, (t,), (t, x)))
    if counted != "nothing":
        tell(at, Creates(Address("p"), (Wanted(t, 1),)))
    tell(at, Install(Address("c"), 1, (t,), (t, x)), Collect(Address("a"), 2, (t,), (t,), ()))
    if counted == "all":
        tell(at, LinkFull(Address("root")), Creates(Address("p"), (Wanted(t, 2),)), LinkFree(Address("root")))
    again = TopicManager(HOME, Address("root"), (), (), {}, STAMP)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(at.snapshot()), strict=False))
    found = [tell(each, Creates(Address("p"), (Wanted(t, 2, 1, 2),))) for each in (at, again)]
    assert found[0] == found[1]
    (fill,) = [one for one in found[1] if isinstance(one, Fill)]
    assert (fill.todo, fill.full) == ((x,), (x,))
    tell(again, Update(Address("b"), 2, (t,), (t,)))
    assert [one.todo for one in tell(again, Creates(Address("p"), (Wanted(t, 3),))) if isinstance(one, Fill)] == []


# Repetitions.


def fire(machine: OrderingClient, key: str, until: Micros, effects: list[Effect]) -> list[tuple[Micros, Any]]:
    """What is said again, and when, while nobody answers."""
    said: list[tuple[Micros, Any]] = []
    due = [effect.at for effect in effects if isinstance(effect, SetTimer) and effect.key == key][-1:]
    while due and due[0] <= until:
        now = due[0]
        effects = machine.handle(Fired(key), now)
        said += [(now, message) for message in sends(effects)]
        due = [effect.at for effect in effects if isinstance(effect, SetTimer) and effect.key == key][-1:]
    return said


def test_a_joining_that_is_not_answered_is_repeated_less_and_less() -> None:
    machine = client(topics(2))
    effects = [e for one in (Subscribe(topics(2)), *map(Joined, topics(2))) for e in machine.handle(one, NOW)]
    said = fire(machine, "subscribe", Micros(64 * STAMP.resend_us), effects)
    assert 4 <= len(said) <= 9
    assert [at for at, _ in said[:2]] == [STAMP.resend_us, 3 * STAMP.resend_us]


def test_a_request_that_is_not_answered_is_repeated_less_and_less_and_a_young_one_not_at_all() -> None:
    machine = client(topics(1))
    effects = machine.handle(Publish(Topic(1), Event("p", 1, "t"), 1), NOW)
    young = Micros(STAMP.resend_us - 1)
    machine.handle(Publish(Topic(1), Event("p", 2, "t"), 2), young)
    said = fire(machine, "create", Micros(64 * STAMP.resend_us), effects)
    first = said[0][1]
    assert isinstance(first, Creates)
    assert [(item.first, item.count) for item in first.items] == [(1, 1)]
    assert 4 <= len(said) <= 12


def test_an_answer_makes_repetitions_prompt_again() -> None:
    machine = client(topics(1))
    effects = machine.handle(Publish(Topic(1), Event("p", 1, "t"), 1), NOW)
    late = Micros(40 * STAMP.resend_us)
    fire(machine, "create", late, effects)
    machine.handle(Publish(Topic(1), Event("p", 2, "t"), 2), late)
    (timer,) = [e for e in machine.handle(Taken({Topic(1): 1}), late) if isinstance(e, SetTimer)]
    assert timer == SetTimer("create", Micros(late + STAMP.resend_us))


def test_what_is_not_answered_is_said_again_at_once_on_a_new_way() -> None:
    machine = client(topics(2))
    (install,) = tell(machine, Subscribe(topics(2)), *map(Joined, topics(2)))
    (creates,) = tell(machine, Publish(Topic(1), Event("p", 1, "t"), 1))
    assert tell(machine, Reconnected(HOME), now=Micros(1)) == [creates, install]
