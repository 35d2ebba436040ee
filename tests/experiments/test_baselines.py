"""What experiments compare with is what it says it is: judged like everything else, right or wrong for a reason."""

from functools import cache

import pytest

from unisono.audit import judge
from unisono.experiments.baselines.chain import ChainClient, ChainSite, ChainTicket, ChainTicketed, Visit
from unisono.experiments.baselines.clock_merge import MergeBeat, MergePublisher, MergeStamped, MergeSubscriber
from unisono.experiments.baselines.topic_order import Number, TopicOrderClient
from unisono.experiments.sequencer.schemes import SCHEMES, play
from unisono.experiments.sequencer.sites import Habits, draw_crowd, find_sites
from unisono.machine import Broadcast, Deliver, Fired, Heard, Publish, Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.journal import Header, Journal
from unisono.model.time import Micros

WRONG = ("chain, ticket (the paper's)", "per-topic order only", "direct, unordered")
ORDER = ("pairwise-order", "exactly-once", "complete")
START = Micros(0)


@cache
def verdicts(scheme: str) -> dict[str, bool]:
    """Interest everywhere on the paper's sites, small: which promises hold."""
    habits = Habits(0.8, 0.349, subscribers=3, topics=3, per_client=4, events=200)
    world = play(scheme, find_sites("A"), draw_crowd(5, habits, 1), seed=1)
    return {verdict.judge: verdict.holds for verdict in judge(Journal(Header(), world.records), ORDER)}


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in WRONG])
def test_what_orders_orders_everything_and_loses_nothing(scheme: str) -> None:
    assert verdicts(scheme) == dict.fromkeys(ORDER, True)


@pytest.mark.parametrize("scheme", ["per-topic order only", "direct, unordered"])
def test_topics_apart_are_heard_in_different_orders(scheme: str) -> None:
    assert verdicts(scheme) == {"pairwise-order": False, "exactly-once": True, "complete": True}


def test_the_papers_chain_gets_stuck_and_never_misorders() -> None:
    assert verdicts("chain, ticket (the paper's)") == {
        "pairwise-order": True,
        "exactly-once": True,
        "complete": False,
    }


def event(number: int) -> Event:
    return Event("p", number, "t")


def test_requests_that_skip_managers_make_events_wait_in_a_circle() -> None:
    """Ordering spec, C3: s = {0, 2, 3} twice, {1, 2} twice; x on 3 is overtaken by m on 2, then t on 0."""
    t0, t1, t2, t3 = (Topic(i) for i in range(4))
    groups = {t0: (t2, t3), t1: (t2,), t2: (t0, t1, t3), t3: (t0, t2)}
    high, middle, low = Address("high"), Address("middle"), Address("low")
    homes = {t0: high, t1: middle, t2: low, t3: low}
    sites = {name: ChainSite(name, homes, groups) for name in (high, middle, low)}
    publisher = Address("p")

    def visit(site: Address, message: Visit) -> Send:
        (effect,) = sites[site].handle(message, START)
        assert isinstance(effect, Send)
        return effect

    x = visit(low, Visit(publisher, 1, t3))
    assert x.to == high, "straight there: no topic of the middle is in its group"
    m = visit(low, Visit(publisher, 2, t2))
    m = visit(middle, m.message)
    m = visit(high, m.message)
    t = visit(high, Visit(publisher, 3, t0))
    x = visit(high, x.message)
    tickets = [sent.message for sent in (x, m, t)]
    assert tickets[0].entries == {t3: 1, t2: 0, t0: 1}, "x waits for t"
    assert tickets[1].entries == {t2: 1, t3: 1, t1: 0, t0: 0}, "m waits for x"
    assert tickets[2].entries == {t0: 1, t2: 1, t3: 1}, "t waits for m"
    listener = ChainClient(Address("s"), homes)
    listener.handle(Subscribe((t0, t2, t3)), START)
    for topic, ticket in zip((t3, t2, t0), tickets):
        assert isinstance(ticket, ChainTicket)
        assert listener.handle(Heard(topic, ChainTicketed(ticket.entries, event(ticket.request))), START) == []


def test_numbers_decide_within_a_topic() -> None:
    listener, topic = TopicOrderClient({}), Topic(1)
    listener.handle(Subscribe((topic,)), START)
    heard = [
        listener.handle(Heard(topic, message), START)
        for message in (event(1), event(2), Number("p:2", 2), Number("p:1", 1))
    ]
    assert [delivered([*effects]) for effects in heard] == [[], [], [], [1, 2]]


def delivered(effects: list[object]) -> list[int]:
    return [effect.item.message.sequence for effect in effects if isinstance(effect, Deliver)]


def test_a_clock_merge_waits_for_every_publisher() -> None:
    listener = MergeSubscriber((Address("p"), Address("q")), Topic(9))
    heard = [
        listener.handle(Heard(Topic(1), MergeStamped(Address("p"), 5, event(1))), START),
        listener.handle(Heard(Topic(9), MergeBeat(Address("q"), 4)), START),
        listener.handle(Heard(Topic(2), MergeStamped(Address("q"), 5, event(2))), START),
        listener.handle(Heard(Topic(9), MergeBeat(Address("q"), 6)), START),
        listener.handle(Heard(Topic(9), MergeBeat(Address("p"), 6)), START),
    ]
    assert [delivered([*effects]) for effects in heard] == [[], [], [1, 2], [], []]


def test_no_stamp_is_used_twice_and_none_comes_after_its_beat() -> None:
    publisher = MergePublisher(Address("p"), Topic(9), every_us=10, until=100)
    stamps = [
        effect.message.at
        for message in (Fired("beat"), Publish(Topic(1), event(1)), Publish(Topic(1), event(2)), Fired("beat"))
        for effect in publisher.handle(message, Micros(7))
        if isinstance(effect, Broadcast)
    ]
    assert stamps == [7, 8, 9, 10]
