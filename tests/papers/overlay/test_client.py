"""A client of the overlay, alone and in the simulator."""

import pytest

from unisono.audit.judges.table import judge
from unisono.machine import (
    Accepted,
    CutOff,
    Deliver,
    Gap,
    Heard,
    Joined,
    Publish,
    Refused,
    Select,
    Selected,
    Send,
    Stalled,
    Subscribe,
    Unsubscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.predicate import parse
from unisono.model.time import Micros
from unisono.protocols.overlay.client import OverlayClient
from unisono.protocols.overlay.messages import (
    Active,
    Adv,
    LinkDown,
    Missing,
    OverlayCut,
    OverlayDelivery,
    OverlayNotTaken,
    OverlayTaken,
    Pub,
    Sub,
    Unsub,
)
from unisono.sim.scenario import load, play, with_options

RULES = ("ADMIT",)

T = Topic(0)
NOW = Micros(0)


def client(where: str = "true") -> OverlayClient:
    return OverlayClient(Address("c"), Address("B"), lambda topic: f"t{topic}", parse(where))


def event(sequence: int, **attributes: int) -> Event:
    return Event("c", sequence, "t0", attributes=attributes)


def test_the_first_event_of_a_topic_advertises_the_whole_topic() -> None:
    machine = client()
    first = machine.handle(Publish(T, event(1), request=1), NOW)
    assert first == [
        Send(Address("B"), Adv(Address("c"), "c/1", "c", parse("`$topic` = 't0'"))),
        Send(Address("B"), Pub(Address("c"), event(1))),
    ]
    assert machine.handle(Publish(T, event(2), request=2), NOW) == [Send(Address("B"), Pub(Address("c"), event(2)))]
    assert machine.handle(OverlayTaken(event(1).id), NOW) == [Deliver(Accepted(1))]
    assert machine.handle(OverlayNotTaken(event(2).id, "full"), NOW) == [Deliver(Refused(2, "full"))]


def test_a_subscription_is_the_topic_narrowed_by_content() -> None:
    machine = client("x > 5")
    filter = parse("`$topic` = 't0' and x > 5")
    assert machine.handle(Subscribe((T,)), NOW) == [Send(Address("B"), Sub(Address("c"), "c/1", "c", filter))]
    assert machine.handle(Active("c/1"), NOW) == [Deliver(Joined(T))]
    assert machine.handle(OverlayDelivery(event(1, x=6)), NOW) == [Deliver(Heard(T, event(1, x=6)))]
    assert machine.handle(Unsubscribe((T,)), NOW) == [Send(Address("B"), Unsub(Address("c"), "c/1"))]
    assert machine.handle(OverlayDelivery(event(2, x=6)), NOW) == []


def test_what_is_missing_is_told() -> None:
    machine = client()
    machine.handle(Subscribe((T,)), NOW)
    gap = machine.handle(Missing(event(7).id, "t0", "p", 7, "held too long"), NOW)
    assert gap == [Deliver(Gap(T, 7, 7, "c:7: held too long", "p"))]
    cut = machine.handle(OverlayCut((("p", 7), ("q", 2))), NOW)
    assert cut == [Deliver(CutOff((("p", 7), ("q", 2)), "a link between brokers was lost"))]


def test_a_client_whose_broker_is_gone_refuses_and_says_so() -> None:
    machine = client()
    machine.handle(Subscribe((T,)), NOW)
    assert machine.handle(LinkDown(Address("B")), NOW) == [Deliver(Stalled(T, NOW, "the link to B was lost"))]
    assert machine.handle(Publish(T, event(1), request=1), NOW) == [Deliver(Refused(1, "the link to B was lost"))]


def test_values_no_filter_can_judge_are_refused_at_the_client() -> None:
    bad = Event("c", 1, "t0", attributes={"x": float("nan")})
    assert "NaN" in str(client().handle(Publish(T, bad, request=1), NOW))


@pytest.mark.parametrize("name", ["overlay/static", "overlay/churn", "overlay/crash", "overlay/heal"])
def test_scenarios_keep_their_promises(name: str) -> None:
    scenario = load(name)
    for seed in range(3):
        journal = play(scenario, seed)
        assert [verdict for verdict in judge(journal, scenario.promises) if not verdict.holds] == [], seed


def test_without_filters_every_subscriber_of_a_topic_hears_everything() -> None:
    scenario = with_options(load("overlay/static"), {"options.content": False})
    for seed in range(3):
        assert [v for v in judge(play(scenario, seed), ("complete", "pairwise-order")) if not v.holds] == []


def test_failures_in_the_simulator_are_told_to_subscribers() -> None:
    kinds = [record.kind for seed in range(3) for record in play(load("overlay/heal"), seed).records]
    assert kinds.count("gap") > 0
    assert kinds.count("cut") > 0


def test_the_judges_see_what_the_wrong_rule_does() -> None:
    """Clients here have several subscriptions: `exact` misorders, and the simulator shows it."""
    options = {"options.config": {"detection": "exact"}, "workload.topics": 4, "workload.topics_per_client": 3}
    scenario = with_options(load("overlay/static"), options)
    verdicts = [verdict for seed in range(3) for verdict in judge(play(scenario, seed), scenario.promises)]
    assert not all(verdict.holds for verdict in verdicts)


def test_a_new_filter_is_in_force_before_the_old_one_ends() -> None:
    machine = client("x > 5")
    machine.handle(Subscribe((T,)), NOW)
    machine.handle(Active("c/1"), NOW)
    narrow = parse("`$topic` = 't0' and x > 7")
    assert machine.handle(Select(parse("x > 7")), NOW) == [Send(Address("B"), Sub(Address("c"), "c/2", "c", narrow))]
    assert machine.handle(OverlayDelivery(event(1, x=6)), NOW) == [Deliver(Heard(T, event(1, x=6)))]
    ended = machine.handle(Active("c/2"), NOW)
    assert ended == [Send(Address("B"), Unsub(Address("c"), "c/1")), Deliver(Selected())]
    assert machine.handle(OverlayDelivery(event(2, x=6)), NOW) == []
    assert machine.handle(OverlayDelivery(event(3, x=8)), NOW) == [Deliver(Heard(T, event(3, x=8)))]
