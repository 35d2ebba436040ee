"""The coded node alone on a bench: partners, adaptive redundancy, buffers and their bounds."""

import pytest
from msgspec.structs import replace

from tests.coded.bench import (
    ASKING,
    CONTENT,
    PEERS,
    PUBLISHER,
    TOPIC,
    Bench,
    N,
    answer,
    direct,
    holder,
    key_of,
    lacking,
    publication,
)
from unisono.errors import MisuseError
from unisono.machine import (
    Broadcast,
    Heard,
    Publish,
    Refuse,
    Send,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address
from unisono.protocols.coded.config import CodedConfig, local, planet, region
from unisono.protocols.coded.messages import AskPackets, MemberHello, Members, Observed, PacketPiece, Seen
from unisono.protocols.coded.wire import publisher_id

# -- members


def test_a_view_is_bounded_and_never_contains_its_owner() -> None:
    bench = Bench(CodedConfig(view_max=4))
    for i in range(50):
        bench.give(Heard(TOPIC, MemberHello(Address(f"n{i}"), TOPIC)))
    bench.give(Heard(TOPIC, MemberHello(bench.me, TOPIC)))
    bench.give(Members(PEERS[0], TOPIC, tuple(Seen(a, 1) for a in (*PEERS, bench.me))))
    view = bench.node._topics[TOPIC].view
    assert len(view) == 4
    assert bench.me not in view


def test_a_newcomer_is_told_about_members() -> None:
    bench = Bench(ASKING)
    effects = bench.give(Heard(TOPIC, MemberHello(Address("new"), TOPIC)))
    told = [e.message for e in effects if isinstance(e, Send)]
    assert all(isinstance(m, Members) and len(m.peers) == 5 for m in told)
    newcomer = Bench(me="new")
    for message in told:
        newcomer.give(message)
    assert len(newcomer.node._topics[TOPIC].view) == (5 if told else 0)
    assert Address("new") in bench.node._topics[TOPIC].view


def test_polarized_partners_are_near_and_serve() -> None:
    def nearest(polarized: bool) -> int:
        bench = Bench(CodedConfig(polarized=polarized))
        bench.give(Members(PEERS[0], TOPIC, tuple(Seen(Address(f"n{depth}"), depth) for depth in range(5))))
        bench.give(Members(PEERS[0], TOPIC, tuple(Seen(Address(f"n{depth}"), depth) for depth in range(5, 10))))
        view = bench.node._topics[TOPIC].view
        return sum(int(view.draw(1, polarized)[0][1:]) for _ in range(400))

    assert nearest(True) < 0.7 * nearest(False)


def test_a_peer_that_does_not_answer_loses_its_weight() -> None:
    view = Bench(ASKING).node._topics[TOPIC].view
    for _ in range(40):
        view.learn(PEERS[0], 5, 0)
        view.learn(PEERS[1], 5, 5)
    drawn = [view.draw(1, True)[0] for _ in range(300)]
    assert drawn.count(PEERS[0]) == 0
    assert drawn.count(PEERS[1]) > 100


# -- adaptive redundancy


def test_redundancy_follows_what_receivers_report() -> None:
    config = CodedConfig(adaptive=True, redundancy=2, redundancy_max=16)
    bench = Bench(config, me=PUBLISHER)

    def extras() -> int:
        bench.broadcasts.clear()
        bench.give(Publish(TOPIC, CONTENT))
        return sum(isinstance(b.message, PacketPiece) for b in bench.broadcasts) - N

    assert extras() == 2
    for i in range(20):
        bench.give(AskPackets(Address(f"r{i}"), key_of(1), 0, 1, b"", Observed(0.2, 0.1)))
    assert extras() > 8
    for i in range(20):
        bench.give(AskPackets(Address(f"r{i}"), key_of(1), 0, 1, b"", Observed(0.0, 0.0)))
    assert extras() == 2


def test_a_receiver_sees_the_loss_of_the_publishers_path() -> None:
    bench = Bench(replace(ASKING, style="none", deadline_us=10))
    for packets in publication(CONTENT, CodedConfig(redundancy=N), count=300):
        kept = [data for i, data in enumerate(packets) if i >= N or i % 8 not in (2, 3)]
        for data in kept:
            bench.give(direct(data))
    observed = bench.node._topics[TOPIC].estimator.observed
    assert observed.loss == pytest.approx(2 / N, rel=0.02)
    assert observed.loss / observed.runs == pytest.approx(2, rel=0.02)


# -- bounds


def test_one_publisher_cannot_evict_the_others() -> None:
    bench = Bench(replace(ASKING, live_max=20, live_per_publisher_max=5))
    for data in publication(CONTENT)[0][:2]:
        bench.give(direct(data))
    for packets in publication(CONTENT, me=Address("flood"), count=40):
        bench.give(direct(packets[0]))
    live = list(bench.node._arrivals.live)
    assert key_of(1) in live
    assert len(live) == 6
    assert all(publisher_id(Address("flood")).to_bytes(8, "big").hex() in gap.reason for gap in bench.gaps)


def test_the_emptiest_and_oldest_goes_first_and_says_gap() -> None:
    bench = Bench(replace(ASKING, style="none", live_max=3))
    events = publication(CONTENT, count=4)
    for sequence, rows in ((1, 4), (2, 2), (3, 2)):
        for data in events[sequence - 1][:rows]:
            bench.give(direct(data))
        bench.wait(10)
    bench.give(direct(events[3][0]))
    assert [gap.first for gap in bench.gaps] == [2]
    for data in events[1]:
        bench.give(direct(data))
    assert bench.heard == []  # after its gap it does not come


def test_complete_events_are_kept_within_a_bound() -> None:
    bench = Bench(CodedConfig(kept_max=5))
    for packets in publication(CONTENT, count=20):
        for data in packets:
            bench.give(direct(data))
    assert len(bench.heard) == 20
    assert len(bench.node._arrivals.kept) == 5


def test_everything_is_forgotten_in_time() -> None:
    bench = Bench()
    for packets in publication(CONTENT, count=20):
        for data in packets:
            bench.give(direct(data))
    bench.wait(2 * bench.config.keep_us)
    assert len(bench.node._arrivals.kept) == len(bench.node._arrivals.finished) == 0
    assert bench.timers == {}


def test_leaving_a_topic_ends_its_events_quietly() -> None:
    bench = lacking(3)
    bench.give(Unsubscribe((TOPIC,)))
    bench.wait(60_000_000)
    assert bench.gaps == []
    bench.give(direct(publication(CONTENT)[0][0]))
    assert bench.node.counters["foreign topic"] == 1


def test_a_question_under_way_when_the_topic_is_left_finds_nobody() -> None:
    bench = holder()
    bench.give(Unsubscribe((TOPIC,)))
    assert [type(e) for e in bench.give(AskPackets(PEERS[0], key_of(1), 0, 1))] == [Refuse]
    bench.give(Subscribe((TOPIC,)))
    assert len(answer(bench, AskPackets(PEERS[0], key_of(1), 0, 1))) == 2


def test_the_presets_are_valid_and_differ() -> None:
    assert local().ask_every_us < region().ask_every_us < planet().ask_every_us


@pytest.mark.parametrize("wrong", [{"rows_max": 0}, {"rows_max": 256}, {"fanout": 0}, {"packet_bytes": 100}])
def test_impossible_configs_are_misuse(wrong: dict[str, int]) -> None:
    with pytest.raises(MisuseError):
        CodedConfig(**wrong)


def test_a_publisher_announces_itself_again_and_again_but_rarely() -> None:
    bench = Bench(me=PUBLISHER, topics=())
    for _ in range(20):
        bench.give(Publish(TOPIC, b"x"))
    assert sum(isinstance(b, Broadcast) and isinstance(b.message, MemberHello) for b in bench.broadcasts) == 5
