"""What clients may say, and what is bounded: every refusal has a reason and a code, and changes nothing."""

from typing import Any

import msgspec
import pytest

from tests.papers.regions.net import RegionNet
from tests.papers.regions.test_streams import P, S, two_regions
from unisono.machine import Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Box, Filter, parse
from unisono.model.predicate.values import Values
from unisono.model.time import Micros
from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import (
    Attach,
    Attached,
    CloseStream,
    CountEntourage,
    CountReply,
    CountRound,
    DirectConnect,
    GraphReport,
    OpenStream,
    RegionLinkUp,
    ReplayStream,
    StreamGap,
    StreamItem,
)
from unisono.structures.content import about

RULES = ("R-ADMIT",)
b, B = Address("b"), Address("B")
WIDE = Filter(tuple(parse(f"x = {i} and y = {i}").boxes[0] for i in range(10_000)))
UNSORTED = Filter((Box((("x", Values(numbers=((5, 0), (3, 0)))),)),))

FORGED: list[tuple[str, Any, str]] = [
    ("another's stream", OpenStream(S, P, 9, 0, 0), "forged"),
    ("the end of another's stream", CloseStream(S, P, 9, 0), "forged"),
    ("items of another", StreamItem(S, P, 9, Micros(0)), "forged"),
    ("events of another", StreamItem(S, S, 1, Micros(0), Event("p", 9, "t")), "forged"),
    ("a gap", StreamGap(S, P, 1, 9), "forged"),
    ("answers for another", ReplayStream(S, P, 1, (), 9, True), "forged"),
    ("a broker's answer", CountReply(S, P, 1, GraphReport()), "forged"),
    ("to be a broker", Attached(S, 1), "forged"),
    ("a round of another", CountEntourage(S, P, CountRound(1, parse("x > 1"), 0.4), 9, True), "forged"),
    ("an advertisement of 10 000 boxes", CountEntourage(S, S, CountRound(1, WIDE, 0.4), 9, True), "filter-cost"),
    ("a filter of 10 000 boxes", Attach(S, 9, WIDE), "filter-cost"),
    ("a filter that is none", Attach(S, 9, UNSORTED), "filter-cost"),
    ("a direct session of another", DirectConnect(S, P, 1), "forged"),
]


@pytest.mark.parametrize(("words", "message", "code"), FORGED, ids=[words for words, _, _ in FORGED])
def test_what_is_not_a_clients_to_say_is_refused_and_changes_nothing(words: str, message: Any, code: str) -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    broker: Any = net.nodes[b]
    before = {stream: (port.mode, port.last, port.src) for stream, port in broker.ports.items()}
    net.tell(b, message)
    assert broker.refusals == {code: 1}, words
    assert {stream: (port.mode, port.last, port.src) for stream, port in broker.ports.items()} == before
    net.publish(P, x=2)
    net.settle()
    assert [event.sequence for event in net.heard[S]] == [1, 2]


def test_a_publisher_that_counts_without_end_is_held_back() -> None:
    net = two_regions()
    net.publish(P, x=1)
    net.settle()
    broker: Any = net.nodes[Address("a")]
    for number in range(1, 100):
        net.tell(Address("a"), CountEntourage(P, P, CountRound(number, parse("x > 1"), 0.4), 9, is_climbing=True))
    assert broker.refusals["flood"] == 98


def test_rounds_and_streams_are_bounded() -> None:
    config = msgspec.structs.replace(RegionsConfig(), rounds_max=2, streams_max=3, discovery_us=Micros(0))
    net = two_regions(config)
    root: Any = net.nodes[B]
    for number in range(6):
        net.tell(B, CountEntourage(Address("A"), Address(f"q{number}"), CountRound(1, parse("x > 1"), 0.4), 9))
        net.tell(B, OpenStream(Address("A"), Address(f"q{number}"), 1, 0, 0, is_new=True))
    assert root.rounds == 2
    assert len(root.ports) == 3
    assert root.refusals == {"flood": 4, "streams": 3}


def test_a_forged_answer_to_a_round_is_not_taken() -> None:
    """Only who was asked answers, once."""
    net = RegionNet()
    net.broker("root", root=True)
    net.link(net.broker("other", root=True), Address("root"), is_peer=True)
    for name in ("one", "two"):
        net.link(net.broker(name), Address("root"))
        net.subscribe(net.client(f"s-{name}"))
        net.link(Address(f"s-{name}"), Address(name))
    net.settle()
    node: Any = net.nodes[Address("root")]
    node._discovery.on_count(CountEntourage(Address("other"), P, CountRound(1, about("t"), 0.0), 9))
    for _ in range(2):
        net.tell(Address("root"), CountReply(Address("one"), P, 1, GraphReport()))
    net.tell(Address("root"), CountReply(Address("two"), P, 7, GraphReport()))
    assert not node._discovery.rounds[P].is_done


def test_whoever_wants_more_topics_than_a_filter_may_name_asks_for_everything_and_chooses() -> None:
    names = {Topic(n): f"t{n}" for n in range(2_001)}
    me, broker = Address("many"), RegionBroker(b, True)
    client = RegionClient(me, lambda topic: names[topic])
    client.handle(RegionLinkUp(b, "parent"), Micros(0))
    broker.handle(RegionLinkUp(me, "client"), Micros(0))

    def asks(*topics: Topic) -> Filter:
        (said,) = [e.message for e in client.handle(Subscribe(topics), Micros(0)) if isinstance(e, Send)]
        broker.handle(said, Micros(0))
        assert broker.refusals == {}
        wanted: Filter = said.wanted
        return wanted

    assert not asks(Topic(0), Topic(1)).is_everything
    assert asks(*names).is_everything
