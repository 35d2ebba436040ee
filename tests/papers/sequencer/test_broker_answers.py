"""What the broker beneath says of itself is an input: it has not taken a payload, or may have lost something."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.machine import Accepted, Deliver, Effect, Fired, Gap, Missed, NotTaken, Publish, Refused, Send
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Ask, Creates, Taken, Withdraw, Withdrawn

RULES = ("ANSWER",)

T, HOME, NOW = Topic(1), Address("home"), Micros(1_000)


def publisher(config: SequencerConfig = STAMP) -> OrderingClient:
    """One that has published five in a row, which the caller calls 11 to 15."""
    client = OrderingClient(Address("p"), {T: HOME}, config)
    events = tuple(Event("p.t", n, "t", str(n).encode()) for n in range(1, 6))
    client.handle(Publish(T, events, 11), NOW)
    return client


def told(effects: list[Effect]) -> list[Any]:
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def sent(effects: list[Effect], kind: type) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


@pytest.mark.parametrize("causal", [False, True])
def test_what_was_not_taken_is_refused_alone_and_its_number_withdrawn_when_it_has_one(causal: bool) -> None:
    client = publisher(replace(STAMP, shared_subscriptions_min=1, causal=True) if causal else STAMP)
    effects = client.handle(NotTaken(T, 3, "full"), NOW)
    assert told(effects) == [Refused(13, "full")]
    assert sent(effects, Withdraw) == [], "of requests without numbers nothing can be withdrawn"
    effects = client.handle(Taken({T: 5}), NOW)
    accepted = [(one.request, one.count) for one in told(effects) if isinstance(one, Accepted)]
    assert [n for first, count in accepted for n in range(first, first + count)] == [11, 12, 14, 15]
    assert sent(effects, Withdraw) == [Withdraw(Address("p"), T, 3, 1)]


def test_what_was_numbered_before_is_refused_by_the_name_its_owner_knows() -> None:
    client = publisher()
    client.handle(Taken({T: 5}), NOW)
    effects = client.handle(NotTaken(T, 4, "full", 14), NOW)
    assert told(effects) == [Refused(14, "full")]
    assert sent(effects, Withdraw) == [Withdraw(Address("p"), T, 4, 1)]


def test_what_was_told_as_accepted_is_not_withdrawn_behind_the_back_of_its_publisher() -> None:
    """Subscribers wait for its payload, and are told of the gap."""
    client = publisher()
    client.handle(Taken({T: 5}), NOW)
    assert client.handle(NotTaken(T, 4, "denied"), NOW) == []
    assert client.publisher.withdrawals == {}


def test_a_withdrawal_is_repeated_until_it_is_answered() -> None:
    client = publisher()
    client.handle(Taken({T: 5}), NOW)
    for request in (1, 2, 5):
        client.handle(NotTaken(T, request, "full", 10 + request), NOW)
    both = [Withdraw(Address("p"), T, 1, 2), Withdraw(Address("p"), T, 5, 1)]
    assert sent(client.handle(Fired("create"), NOW), Withdraw) == both
    client.handle(Withdrawn(T, 1, 2), NOW)
    assert sent(client.handle(Fired("create"), NOW), Withdraw) == both[1:]
    client.handle(Withdrawn(T, 5, 1), NOW)
    assert client.handle(Fired("create"), NOW) == []


def test_what_was_not_taken_is_asked_a_number_for_with_its_neighbours() -> None:
    """Those after it have theirs in line, and a home passes nothing over."""
    client = publisher()
    client.handle(NotTaken(T, 3, "full"), NOW)
    later = Micros(NOW + client.publisher.config.resend_us)
    (creates,) = sent(client.handle(Fired("create"), later), Creates)
    assert [(item.first, item.count) for item in creates.items] == [(1, 5)]


@pytest.mark.parametrize("request_", [0, 6, -1, 2**40])
def test_nothing_is_withdrawn_that_was_never_published(request_: int) -> None:
    client = publisher()
    assert client.handle(NotTaken(T, request_, "full", 11), NOW) == []
    assert client.publisher.withdrawals == {}


@pytest.mark.parametrize("config", [STAMP, SequencerConfig()], ids=["stamps", "pieces"])
def test_after_a_loss_the_home_is_asked_how_far_the_topic_is(config: SequencerConfig) -> None:
    """Payloads and stamps of the last three events are lost to s, and no mark comes any more."""
    world = Deployment({"n0": None, "n1": "n0"}, {T: "n0", Topic(2): "n1"}, config)
    world.client("s", T, Topic(2))
    world.settle()
    for text in ("a", "b", "c"):
        world.publish("p", T, text)
    world.run(but(("Payload", "s"), ("Stamps", "s"), ("Pieces", "s"), ("Mark", "s")))
    world.letters = []
    subscriber = world.clients["s"]
    asked = subscriber.handle(Missed(T), world.now)
    assert [ask.number for ask in sent(asked, Ask)] == [1]
    assert sent(subscriber.handle(Fired("ask"), world.now), Ask)[:1] == [Ask(Address("s"), T, 1)], (
        "until it is answered"
    )
    world.perform("s", asked)
    world.run()
    assert subscriber.subscriber.feeds[T].mark == 3
    world.settle()
    assert [gap.first for _, gap in world.notices if isinstance(gap, Gap)] == [1, 2, 3]
    assert sent(subscriber.handle(Missed(Topic(77)), world.now), Ask) == [], "nobody listens there"
