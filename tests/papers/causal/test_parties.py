"""The machines: a client and a broker, and the letters between them, by hand."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.causal.test_gossip import CONFIG, ME, PEER, THIRD, G, T, frame, gossip_of, member, said
from unisono.machine import (
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Joined,
    Publish,
    Restarted,
    Send,
    SetTimer,
    Subscribe,
    Unknown,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.predicate import parse
from unisono.model.time import Micros
from unisono.protocols.causal.broker import BROKERS, CausalBroker
from unisono.protocols.causal.client import CausalClient, CausalVia
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.mesh import CausalMesh, order_of
from unisono.protocols.causal.messages import (
    CausalEmitted,
    CausalEnter,
    CausalFrame,
    CausalFrames,
    CausalGoodbye,
    CausalGossip,
    CausalPublication,
    CausalRefused,
    CausalWelcome,
    FrameFate,
)

RULES = ("GOSSIP", "CLIENT")


class Party:
    """A client and a broker, and the letters between them, by hand."""

    def __init__(self, multicast: bool = False, **client: Any) -> None:
        self.broker = CausalBroker(PEER, 5, CausalGroups(("t1",)), CONFIG, Random(1), multicast=multicast)
        self.client = CausalClient(ME, lambda topic: f"t{topic}", CausalGroups(("t1",)), CONFIG, Random(2), **client)
        self.now = Micros(100 * T)
        self.started = self.broker.handle(Restarted(), self.now)
        self.client.handle(Restarted(), self.now)
        self.tell(CausalVia(PEER))
        self.answer(CausalEnter)

    def tell(self, message: Any) -> list[Effect]:
        self.last = self.client.handle(message, self.now)
        return self.last

    def answer(self, kind: type) -> list[Effect]:
        """The broker hears what the client has just said, the client what the broker answers."""
        effects: list[Effect] = []
        for message in said(self.last, kind):
            effects += self.broker.handle(message, self.now)
        for effect in effects:
            if isinstance(effect, Send) and effect.to == ME:
                self.tell(effect.message)
        return effects

    def at(self, ticks: int) -> None:
        self.now = Micros(ticks * T)

    def publish(self, number: int, topic: int = 0, deadline_us: int = 0) -> list[Effect]:
        event = Event(ME, number, f"t{topic}", born_at=self.now)
        return self.tell(Publish(Topic(topic), event, request=number, deadline_us=deadline_us))


def delivered(effects: list[Effect]) -> list[Any]:
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def test_a_publication_is_accepted_when_it_has_left() -> None:
    party = Party()
    party.publish(1)
    effects = party.answer(CausalPublication)
    assert delivered(party.last) == [Accepted(1, "sent")]
    assert not any(isinstance(effect, Broadcast) for effect in effects)
    party.at(102)
    assert party.broker.mesh.gossip.held == 1
    assert party.broker.report()["emitted_events"] == 1


def test_brokers_multicast_what_is_new() -> None:
    party = Party(multicast=True)
    party.publish(1)
    (cast,) = [e for e in party.answer(CausalPublication) if isinstance(e, Broadcast)]
    other = CausalBroker(THIRD, 6, CausalGroups(("t1",)), CONFIG, Random(1), multicast=True)
    other.handle(Restarted(), Micros(50 * T))
    other.handle(Heard(BROKERS, cast.message, control=True), party.now)
    assert other.mesh.order.counts == {FrameFate.DELIVERED: 1}


def test_a_broker_that_is_another_one_now_is_entered_again() -> None:
    party = Party()
    party.publish(1)
    party.broker = CausalBroker(PEER, 9, CausalGroups(("t1",)), CONFIG, Random(1))
    party.broker.handle(Restarted(), party.now)
    party.answer(CausalPublication)
    # Its earlier life may have emitted it before it ended, so this is no refusal.
    assert isinstance(delivered(party.last)[0], Unknown)
    assert (5, 0) in party.client.mesh.order.known
    party.answer(CausalEnter)
    party.at(101 + CONFIG.publish_ticks)  # by then it would have left, or never does
    party.publish(2)
    party.answer(CausalPublication)
    assert delivered(party.last) == [Accepted(2, "sent")]


def test_silence_is_unknown_and_the_next_one_leaves_through_another_broker() -> None:
    party = Party()
    party.publish(1)
    timers = {e.key: e.at for e in party.last if isinstance(e, SetTimer)}
    party.tell(CausalVia(THIRD))
    party.tell(CausalWelcome(ME, 7))
    party.publish(2)
    assert said(party.last, CausalPublication) == []
    party.now = timers["overdue"]
    effects = party.tell(Fired("overdue"))
    assert isinstance(delivered(effects)[0], Unknown)
    (publication,) = said(effects, CausalPublication)
    assert publication.broker == 7
    assert (5, 0) in {row[:2] for row in publication.past}


def test_what_no_broker_takes_is_refused_in_the_end() -> None:
    party = Party()
    party.tell(CausalVia(None))
    party.publish(1)
    party.at(100 + CONFIG.queue_ticks)
    assert delivered(party.tell(Fired("round"))) == []
    party.at(101 + CONFIG.queue_ticks)
    (refused,) = delivered(party.tell(Fired("round")))
    assert "no broker has taken it" in refused.reason


def test_what_was_refused_stays_refused_when_it_comes_again() -> None:
    party = Party()
    (publication,) = said(party.publish(1), CausalPublication)
    party.broker.mesh.order.knowledge.clock_off_by = 50
    assert said(party.broker.handle(publication, party.now), CausalRefused) != []
    party.broker.mesh.order.knowledge.clock_off_by = 0
    assert party.broker.handle(publication, party.now) == []
    assert party.broker.mesh.gossip.held == 0


def test_a_refusal_of_something_older_takes_nobodys_broker_away() -> None:
    party = Party()
    (publication,) = said(party.publish(1), CausalPublication)
    first = party.last
    assert delivered(party.tell(CausalRefused(ME, publication.request - 1, "gone", gone=True))) == []
    party.last = first
    party.answer(CausalPublication)
    party.at(101)
    party.publish(2)
    party.answer(CausalPublication)
    assert delivered(party.last) == [Accepted(2, "sent")]


def test_deadlines_shorter_than_the_life_of_events_are_refused() -> None:
    party = Party()
    life = CONFIG.life_us
    (short,) = delivered(party.publish(1, deadline_us=life - 1))
    (long,) = delivered(party.publish(2, deadline_us=CONFIG.deadline_ticks_max * T + 1))
    assert "shorter than the life of events" in short.reason
    assert "no deadline here is longer" in long.reason
    party.publish(3, deadline_us=life + 100_000)
    party.answer(CausalPublication)
    assert delivered(party.last) == [Accepted(3, "sent")]
    assert [frame.deadline for frame in party.broker.mesh.gossip._have.values()] == [100 + 50 - 1]


def subscribed(party: Party, *topics: int) -> None:
    effects = party.tell(Subscribe(tuple(map(Topic, topics))))
    join = next(e.at for e in effects if isinstance(e, SetTimer) and e.key == "join")
    assert delivered(effects) == []
    party.now = join
    assert delivered(party.tell(Fired("join"))) == [Joined(Topic(topic)) for topic in topics]


def heard(party: Party, *frames: CausalFrame) -> list[Any]:
    return delivered(party.tell(CausalFrames(PEER, frames)))


def event(number: int, topic: str = "t0", **attributes: Any) -> Event:
    return Event("p", number, topic, attributes=attributes)


def test_a_subscription_is_in_force_when_everything_that_is_published_will_come() -> None:
    party = Party()
    subscribed(party, 0)
    clock = party.now // T
    assert heard(party, frame(clock - CONFIG.eps_ticks, body=(event(1),))) == [Heard(Topic(0), event(1))]


def test_a_filter_decides_what_is_told_and_not_what_is_passed_on() -> None:
    party = Party(where=parse("x > 5"))
    subscribed(party, 0)
    clock = party.now // T
    told = heard(party, frame(clock, body=(event(1, x=9), event(2, x=1), event(3, "elsewhere", x=9))))
    assert told == [Heard(Topic(0), event(1, x=9))]
    assert party.client.mesh.gossip.held == 1


def test_events_of_a_topic_in_a_row_are_told_as_one() -> None:
    party = Party()
    every = Topic(9)
    party.client = CausalClient(ME, lambda topic: "*", CausalGroups(("t1",)), CONFIG, Random(2))
    party.tell(Subscribe((every,)))
    party.at(party.now // T + 2 * CONFIG.eps_ticks + 1)
    events = [event(1), event(2), event(1, "t2"), event(2, "t2"), event(3)]
    told = heard(party, frame(party.now // T, body=tuple(events)))
    assert [item.message for item in told] == [tuple(events[:2]), tuple(events[2:4]), events[4]]
    assert [one.message for item in told for one in one_by_one(item)] == events
    assert {one.number for item in told for one in one_by_one(item)} == {0}


def test_what_does_not_come_is_told_with_its_reason() -> None:
    party = Party()
    subscribed(party, 0)
    clock = party.now // T
    early = frame(clock, deadline=clock + 2, body=(event(1),))
    late = replace(frame(clock + 1, body=(event(2),)), past={(1, G): (clock, clock + 2)})
    assert heard(party, late) == []
    party.at(clock + 3)
    missed, got = delivered(party.tell(Fired("due")))
    assert (missed.publisher, got) == ("broker-1", Heard(Topic(0), event(2)))
    assert heard(party, early) == [Gap(Topic(0), 1, 1, "successor-delivered", "p")]


def test_what_is_replayed_long_after_is_no_gap() -> None:
    """Nobody remembers what became of it: it may have been told."""
    party = Party()
    subscribed(party, 0)
    clock = party.now // T
    old = frame(clock, body=(event(1),))
    assert len(heard(party, old)) == 1
    party.at(clock + CONFIG.horizon_ticks + 1)
    assert heard(party, frame(clock + CONFIG.horizon_ticks, body=(event(2),))) == [Heard(Topic(0), event(2))]
    assert heard(party, old) == []
    report = party.client.report()
    assert report.get("late", 0) + report.get("successor_delivered", 0) == 1


def test_an_event_of_a_group_that_is_subscribed_to_later_is_not_told() -> None:
    """A frame may be for several groups: each of its events is owed to those who had subscribed to its own."""
    party = Party()
    subscribed(party, 0)
    clock = party.now // T
    party.tell(Subscribe((Topic(1),)))
    both = replace(frame(clock, body=(event(1), event(2, "t1"))), groups=(0, 1))
    assert heard(party, both) == [Heard(Topic(0), event(1))]


def test_who_unsubscribes_is_told_nothing_more() -> None:
    party = Party()
    subscribed(party, 0)
    clock = party.now // T
    party.tell(Unsubscribe((Topic(0),)))
    assert heard(party, frame(clock, body=(event(1),))) == []
    assert party.client.mesh.order.floors == {}


def test_who_leaves_says_so() -> None:
    party = Party()
    party.tell(CausalGossip(member(PEER), 100))
    party.tell(CausalFrames(PEER, (frame(100),)))
    last, goodbye = said(party.tell(CausalGoodbye()), CausalGossip)
    assert (last.push, last.left) == ((frame(100),), ())  # what is new goes first
    assert goodbye.left == ((ME, 100),)
    other = gossip_of(PEER)
    other.view.add(member(ME), 100)
    other.hear(goodbye, 100)
    assert ME not in other.view


def test_a_goodbye_that_is_replayed_sends_nobody_away() -> None:
    party = Party()
    party.tell(CausalGossip(member(PEER), 100))
    (goodbye,) = said(party.tell(CausalGoodbye()), CausalGossip)
    other = gossip_of(PEER)
    other.view.add(member(ME), 100)
    other.hear(goodbye, 100 + CONFIG.spread_ticks + 1)
    assert ME in other.view


def test_who_comes_back_to_an_address_is_found_there_again() -> None:
    """A goodbye is over at the same tick for all: nobody learns it again from those who have not yet forgotten it."""
    names = [Address(f"m{i}") for i in range(8)]
    clocks = {name: i % (CONFIG.eps_ticks + 1) for i, name in enumerate(names)}
    seeds = tuple(member(name, 0) for name in names[:2])
    meshes = {name: CausalMesh(name, "local", order_of(CONFIG), seeds, Random(name)) for name in names}

    def perform(effects: list[Effect], now: int) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.to in meshes:
                perform(meshes[effect.to].hear(effect.message, now + clocks[effect.to])[1], now)

    def rounds(first: int, last: int) -> None:
        for now in range(first, last, CONFIG.round_ticks):
            for name, each in meshes.items():
                each.order.subscribe((G,), now + clocks[name])
                perform(each.round(Micros((now + clocks[name]) * T)), now)

    rounds(1000, 1100)
    leaver = meshes.pop(names[3])
    perform(leaver.farewell(1100 + clocks[names[3]]), 1100)
    rounds(1100, 1110)
    assert any(names[3] in dict(each.gossip.view.left()) for each in meshes.values())
    rounds(1110, 1140)
    assert not any(each.gossip.view.left() for each in meshes.values())
    meshes[names[3]] = CausalMesh(names[3], "local", order_of(CONFIG), seeds, Random(7))
    rounds(1140, 1240)
    assert all(names[3] in each.gossip.view for name, each in meshes.items() if name != names[3])


def test_what_one_stream_was_told_of_is_before_what_the_session_publishes() -> None:
    """Streams of a session and its publisher are clients of their own, and know in one place."""
    knowledge = CausalKnowledge()
    told, speaks = Party(knowledge=knowledge), Party(knowledge=knowledge)
    subscribed(told, 0)
    clock = told.now // T
    heard(told, frame(clock, body=(event(1),)))
    (publication,) = said(speaks.publish(1), CausalPublication)
    assert publication.past == ((1, 0, clock, clock + CONFIG.life_ticks),)
    assert publication.high == clock


OWN = Event(ME, 1, "t0")
SOUND = CausalPublication(ME, 5, 1, (0,), (OWN,), (), 100, 120)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"groups": (9,)}, "not those of its topics"),
        ({"groups": ()}, "not those of its topics"),
        ({"events": (Event(ME, 1, "no topic!"),)}, "is not a word"),
        ({"events": (Event("you.t0", 1, "t0"),)}, "in the name of you.t0"),
        ({"events": (Event(ME, 1, "t0", bytes(40_000)),)}, "the most is 32768"),
        ({"events": (Event(ME, 1, "t0", attributes={"a": "x" * 10_000}),)}, "fit one"),
        ({"until": 99}, "it was to leave 10 ms ago: is the clock of this client right?"),
        ({"until": 10**6}, "clock of this client"),
        ({"high": 10**6}, "clock of this client"),
        ({"past": ((7, 0, 101, 130),)}, "cannot know of stamp 101"),
        ({"past": ((7, 0, 100, 99),)}, "cannot know of stamp 100"),
        ({"past": ((7, 0, 100, 10**6),)}, "cannot know of stamp 100"),
        ({"past": ((2**16, 0, 100, 130),)}, "cannot know"),
        ({"past": ((7, 0, 90, 130), (7, 0, 91, 130))}, "twice"),
        ({"past": tuple((i, 0, 90, 130) for i in range(2000))}, "which is the most"),
    ],
)
def test_what_no_client_says_is_refused_and_leaves_no_trace(wrong: dict[str, Any], words: str) -> None:
    """Whatever a broker believed would be in its frames, and nobody would take those."""
    party = Party()
    before = dict(party.broker.mesh.order.known)
    (answer,) = said(party.broker.handle(replace(SOUND, **wrong), party.now), CausalRefused)
    assert words in answer.reason
    assert party.broker.mesh.order.known == before
    again = replace(SOUND, request=2)
    assert said(party.broker.handle(again, party.now), CausalEmitted) != []
    assert party.broker.report()["publications_refused"] == 1


def test_groups_are_patterns_and_a_rest() -> None:
    groups = CausalGroups(("flights.>", "video.*"))
    assert [groups.of(name) for name in ("flights.ba.1", "video.a", "other", "flights.*")] == [
        (1,), (2,), (0,), (0, 1, 2),
    ]  # fmt: skip
    assert groups.name(1) == "flights.>"
    assert groups.name(0) == "everything else"
