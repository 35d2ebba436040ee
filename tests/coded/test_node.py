"""The coded node alone on a bench: delivery, asking, serving, adverts, deadlines, bounds."""

import pickle

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
    opened,
    publication,
)
from unisono.errors import MisuseError
from unisono.machine import (
    Accepted,
    Deliver,
    Gap,
    Heard,
    Publish,
    Refuse,
    Refused,
    Send,
)
from unisono.model.ids import Address, Topic
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import Advert, Adverts, AskPackets, Nothing, PacketPiece


def test_an_event_is_delivered_when_its_rank_is_full() -> None:
    bench = Bench()
    packets = publication(CONTENT)[0]
    assert len(packets) == N + 2
    for data in packets[: N - 1]:
        bench.give(direct(data))
    assert bench.heard == []
    bench.give(direct(packets[-1]))  # a combination stands in for the row that is missing
    assert bench.heard == [CONTENT]


def test_repeated_packets_are_no_event() -> None:  # T5: rank, not count
    bench = Bench()
    packets = publication(CONTENT)[0]
    for data in [packets[0]] * N + [packets[-1]] * N:
        bench.give(direct(data))
    assert bench.heard == []
    assert bench.node.counters["useless"] == 2 * N - 2


def test_a_late_packet_does_not_notify_again() -> None:  # T6, J4
    bench = Bench()
    packets = publication(CONTENT)[0]
    for data in packets + packets:
        bench.give(direct(data))
    bench.wait(bench.config.keep_us)
    for data in packets:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]
    assert bench.node.counters["after the end"] > N


@pytest.mark.parametrize("finished_max", [1, 100_000])
def test_what_was_forgotten_does_not_come_again(finished_max: int) -> None:  # J4, for ever
    bench = Bench(CodedConfig(finished_max=finished_max))
    events = publication(CONTENT, count=3)
    for data in [data for packets in events for data in packets]:
        bench.give(direct(data))
    bench.wait(3 * bench.config.keep_us if finished_max > 1 else 0)
    for data in [data for packets in events for data in packets]:
        bench.give(direct(data))
    assert bench.heard == [CONTENT] * 3


def test_an_event_of_our_own_that_the_broker_lost_is_heard_all_the_same() -> None:
    bench = Bench(ASKING)
    bench.give(Publish(TOPIC, CONTENT))
    assert bench.heard == []
    bench.wait(2 * ASKING.quiet_us)
    assert bench.heard == [CONTENT]
    assert bench.asks() == []


def test_an_event_of_our_own_is_not_given_up_for_want_of_room() -> None:
    bench = Bench(CodedConfig(live_max=2))
    for _ in range(5):
        bench.give(Publish(TOPIC, CONTENT))
    bench.wait(1_000_000)
    assert bench.heard == [CONTENT] * 5
    assert bench.gaps == []


def test_a_restart_from_the_log_remembers_what_was_delivered_and_what_was_not() -> None:
    bench = Bench()
    first, second = publication(CONTENT, count=2)
    for data in first + second[: N - 1]:
        bench.give(direct(data))
    bench.restart()
    for data in first:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]
    bench.give(direct(second[N - 1]))
    assert bench.heard == [CONTENT, CONTENT]


def test_a_snapshot_is_as_good_as_the_log() -> None:
    bench = Bench(ASKING)
    first, second = publication(CONTENT, count=2)
    for data in first + second[: N - 1]:
        bench.give(direct(data))
    bench.give(Publish(TOPIC, b"mine"))
    snapshot = pickle.loads(pickle.dumps(bench.node.snapshot()))
    again = Bench(ASKING, topics=())
    again.node.restore(snapshot)
    assert again.node.snapshot() == snapshot
    again.give(direct(second[N - 1]))
    assert again.heard == [CONTENT]
    again.give(Publish(TOPIC, b"mine too"))
    pieces = [b.message.data for b in again.broadcasts if isinstance(b.message, PacketPiece)]
    assert {opened(data).sequence for data in pieces} == {2}


def test_the_same_inputs_make_the_same_effects() -> None:
    a, b = Bench(ASKING), Bench(ASKING)
    for data in publication(CONTENT)[0][: N - 1]:
        assert a.give(direct(data)) == b.give(direct(data))
        b.node = pickle.loads(pickle.dumps(b.node))
    a.wait(10_000_000)
    b.wait(10_000_000)
    assert a.sent == b.sent
    assert a.gaps == b.gaps != []


def test_large_events_have_several_generations() -> None:
    config = CodedConfig(rows_max=4)
    content = bytes(range(251)) * 100
    bench = Bench(config)
    packets = publication(content, config)[0]
    assert len({opened(data).generation for data in packets}) == 5
    for data in packets[::-1]:
        bench.give(direct(data))
    assert bench.heard == [content]


@pytest.mark.parametrize("size", [0, 1, 1415, 1416, 50_000, 90_000])
def test_any_size_arrives_as_it_was(size: int) -> None:
    bench = Bench()
    content = bytes(i * 7 % 256 for i in range(size))
    for data in publication(content)[0]:
        bench.give(direct(data))
    assert bench.heard == [content]


def test_an_event_too_large_is_refused_and_takes_no_number() -> None:
    bench = Bench(CodedConfig(event_bytes_max=100))
    effects = bench.give(Publish(TOPIC, bytes(101), request=4))
    assert [type(e.item) for e in effects if isinstance(e, Deliver)] == [Refused]
    effects = bench.give(Publish(TOPIC, bytes(100), request=5))
    assert Deliver(Accepted(5)) in effects
    assert {opened(b.message.data).sequence for b in bench.broadcasts if isinstance(b.message, PacketPiece)} == {1}


def test_a_subscribed_publisher_hears_itself_once() -> None:
    bench = Bench()
    bench.give(Publish(TOPIC, CONTENT))
    for broadcast in list(bench.broadcasts):
        bench.give(Heard(TOPIC, broadcast.message, broadcast.control))
    assert bench.heard == [CONTENT]


def test_plain_publishers_and_notices_from_beneath_pass_through() -> None:
    bench = Bench()
    bench.give(Heard(TOPIC, "not ours"))
    bench.give(Gap(TOPIC, 1, 2, "beneath"))
    assert bench.heard == ["not ours"]
    assert bench.gaps == [Gap(TOPIC, 1, 2, "beneath")]
    assert isinstance(bench.give(object())[0], Refuse)


# -- asking


def test_the_incomplete_node_asks_for_what_it_lacks_after_a_silence() -> None:
    bench = lacking(3)
    bench.wait(ASKING.quiet_us - 1)
    assert bench.asks() == []
    bench.wait(ASKING.quiet_us)
    [(to, ask)] = bench.asks()
    assert to in PEERS
    assert (ask.event, ask.generation, ask.need) == (key_of(1), 0, 3)


def test_it_asks_again_in_every_tau_until_the_deadline_and_then_says_gap() -> None:
    bench = lacking(3)
    bench.wait(20_000_000)
    expected = ASKING.deadline_us // ASKING.ask_every_us
    assert expected - 2 <= len(bench.asks()) <= expected + 1
    assert {to for to, _ in bench.asks()} == {*PEERS}
    [gap] = bench.gaps
    assert (gap.topic, gap.first, gap.last) == (TOPIC, 1, 1)
    assert "5 of 8 packets" in gap.reason
    assert bench.node.counters["gaps"] == 1


def test_nothing_is_asked_or_announced_after_the_end() -> None:  # J7
    bench = Bench(replace(ASKING, fan_in=0))
    for data in publication(CONTENT)[0]:
        bench.give(direct(data))
    bench.sent.clear()
    bench.wait(60_000_000)
    assert bench.sent == []
    assert bench.gaps == []
    assert bench.timers == {}


def test_who_has_nothing_is_followed_by_another_at_once() -> None:
    bench = lacking(3)
    bench.wait(30_000)
    for _ in range(4):
        to, ask = bench.asks()[-1]
        bench.give(Nothing(to, ask.event, ask.generation))
    assert len({to for to, _ in bench.asks()}) == 5
    bench.give(Nothing(bench.asks()[-1][0], key_of(1), 0))
    assert len(bench.asks()) == 5


def test_a_number_that_was_skipped_is_asked_for() -> None:
    bench = Bench(ASKING)
    events = publication(CONTENT, count=4)
    for data in events[0] + events[3]:
        bench.give(direct(data))
    bench.wait(40_000)
    assert {ask.event.sequence for _, ask in bench.asks()} == {2, 3}
    bench.wait(20_000_000)
    assert sorted(gap.first for gap in bench.gaps) == [2, 3]


def test_what_was_published_before_the_first_event_heard_is_not_owed() -> None:
    bench = Bench(ASKING)
    for data in publication(CONTENT, count=4)[3]:
        bench.give(direct(data))
    bench.wait(40_000)
    assert bench.asks() == []


def test_a_long_silence_is_one_gap_not_a_thousand_questions() -> None:
    bench = Bench(replace(ASKING, behind_max=2))
    events = publication(b"x", count=9)
    for data in events[0] + events[8]:
        bench.give(direct(data))
    assert [(gap.first, gap.last) for gap in bench.gaps] == [(2, 6)]
    bench.wait(40_000)
    assert {ask.event.sequence for _, ask in bench.asks()} == {7, 8}


# -- serving


@pytest.mark.parametrize("need", [1, 3, N])
def test_an_answer_has_what_is_needed_and_one_more(need: int) -> None:  # J5
    assert len(answer(holder(), AskPackets(PEERS[0], key_of(1), 0, need))) == need + 1


def test_a_peer_gets_no_more_than_its_share_in_a_tau() -> None:  # J5
    bench = holder()
    ask = AskPackets(PEERS[0], key_of(1), 0, N)
    assert [len(answer(bench, ask)) for _ in range(3)] == [N + 1, 3, 0]
    assert len(answer(bench, AskPackets(PEERS[1], key_of(1), 0, N))) == N + 1
    bench.wait(bench.config.ask_every_us)
    assert len(answer(bench, ask)) == N + 1


def test_an_incomplete_node_serves_what_it_has() -> None:
    giver, taker = Bench(), Bench()
    packets = publication(CONTENT)[0]
    for data in packets[:5]:
        giver.give(direct(data))
    for data in packets[5:N]:
        taker.give(direct(data))
    for data in answer(giver, AskPackets(Address("taker"), key_of(1), 0, 5)):
        taker.give(PacketPiece(data, giver.me))
    assert taker.heard == [CONTENT]


def test_a_holder_of_plain_rows_sends_just_the_missing_ones() -> None:
    bench = lacking(3)
    bench.wait(40_000)
    [(_, ask)] = bench.asks()
    pieces = [opened(data) for data in answer(holder(), ask)]
    plain = [p for p in pieces if p.coefficients.count(0) == N - 1]
    assert len(plain) == 3
    for data in answer(holder(), ask)[:3]:
        bench.give(PacketPiece(data, PEERS[0]))
    assert bench.heard == [CONTENT]


def test_an_incomplete_peer_without_news_says_nothing() -> None:
    """Both heard rows 0 to 4 and both extras; a third one heard row 5 as well."""
    packets = publication(CONTENT)[0]
    same, more, asker = Bench(), Bench(), lacking(N, ASKING)
    for data in packets[:5] + packets[N:]:
        for bench in (same, more, asker):
            bench.give(direct(data))
    more.give(direct(packets[5]))
    asker.wait(40_000)
    [(_, ask)] = asker.asks()
    assert ask.need == 1
    assert [type(e.message) for e in same.give(ask) if isinstance(e, Send)] == [Nothing]
    for data in answer(more, ask):
        asker.give(PacketPiece(data, more.me))
    assert asker.heard == [CONTENT]


def test_who_knows_nothing_says_so() -> None:
    bench = Bench()
    [send] = [e for e in bench.give(AskPackets(PEERS[0], key_of(9), 0, 3)) if isinstance(e, Send)]
    assert send == Send(PEERS[0], Nothing(bench.me, key_of(9), 0))


@pytest.mark.parametrize("need", [0, -1, 256])
def test_an_impossible_need_is_refused(need: int) -> None:
    assert [type(e) for e in holder().give(AskPackets(PEERS[0], key_of(1), 0, need))] == [Refuse]


def test_a_question_about_a_foreign_topic_is_refused() -> None:
    effects = holder().give(AskPackets(PEERS[0], key_of(1, topic=Topic(99)), 0, 1))
    assert [type(e) for e in effects] == [Refuse]


# -- adverts and retention


def test_an_event_is_advertised_fan_in_times_and_served_longer() -> None:  # T7, T8
    bench = holder(replace(ASKING, fan_in=2))
    bench.wait(2 * bench.config.advert_every_us)
    adverts = [s.message for s in bench.sent if isinstance(s.message, Adverts)]
    assert [[e.event for e in a.entries] for a in adverts] == [[key_of(1)]] * 2
    bench.wait(bench.config.keep_us - 2 * bench.config.advert_every_us - 1)
    assert len([s for s in bench.sent if isinstance(s.message, Adverts)]) == 2
    assert len(answer(bench, AskPackets(PEERS[0], key_of(1), 0, 2))) == 3
    bench.wait(2)
    assert answer(bench, AskPackets(PEERS[1], key_of(1), 0, 2)) == []


def test_rows_must_be_kept_longer_than_they_are_advertised() -> None:  # T8
    with pytest.raises(MisuseError, match="could not be served"):
        CodedConfig(fan_in=3, advert_every_us=1_500_000, keep_us=4_800_000)
    assert CodedConfig(fan_in=3, advert_every_us=1_500_000, keep_us=5_000_000).advert_life_us == 4_500_000


def test_an_advert_of_an_unknown_event_is_answered_by_a_question() -> None:
    bench = Bench(ASKING)
    bench.give(Adverts(PEERS[3], TOPIC, (Advert(key_of(5), 0),)))
    [(to, ask)] = bench.asks()
    assert (to, ask.event, ask.generation, ask.need) == (PEERS[3], key_of(5), 0, 255)


def test_an_event_older_than_the_subscription_is_not_asked_for() -> None:
    bench = Bench(ASKING)
    bench.wait(500)
    bench.give(Adverts(PEERS[3], TOPIC, (Advert(key_of(5), 501),)))
    assert bench.asks() == []
    bench.give(Adverts(PEERS[3], TOPIC, (Advert(key_of(6), 500),)))
    assert len(bench.asks()) == 1


def test_adverts_on_the_topic_reach_those_who_heard_nothing() -> None:
    publisher = Bench(CodedConfig(), me=PUBLISHER, topics=())
    publisher.give(Publish(TOPIC, CONTENT))
    publisher.broadcasts.clear()
    publisher.wait(publisher.config.advert_every_us)
    [news] = publisher.broadcasts
    assert news.control
    bench = Bench()
    bench.now = publisher.now
    bench.give(Heard(TOPIC, replace(news.message, entries=tuple(replace(e, age_us=0) for e in news.message.entries))))
    assert [to for to, _ in bench.asks()] == [PUBLISHER]


# -- the styles of the thesis


def style(name: str, **more) -> CodedConfig:
    return CodedConfig(style=name, seeds=PEERS, fanout=3, **more)


def test_push_sends_the_redundancy_or_in_plain_mode_the_event() -> None:
    def pushed(coded: bool) -> list[Send]:
        bench = Bench(style("push", coded=coded))
        for data in publication(CONTENT)[0]:
            bench.give(direct(data))
        return bench.sent

    assert len(pushed(True)) == 3 * 2
    assert len(pushed(False)) == 3 * N
    assert len({send.to for send in pushed(True)}) == 3


@pytest.mark.parametrize(("name", "at_once"), [("push-pull", 3), ("pull", 0)])
def test_push_pull_tells_at_once_and_pull_in_time(name: str, at_once: int) -> None:
    bench = Bench(style(name))
    for data in publication(CONTENT)[0]:
        bench.give(direct(data))
    assert len([s for s in bench.sent if isinstance(s.message, Adverts)]) == at_once
    bench.wait(bench.config.advert_every_us)
    assert len([s for s in bench.sent if isinstance(s.message, Adverts)]) == 3


def test_a_plain_style_asks_for_the_whole_event() -> None:
    bench = lacking(3, style("push-pull", coded=False))
    bench.give(Adverts(PEERS[0], TOPIC, (Advert(key_of(1), 0),)))
    [(_, ask)] = bench.asks()
    assert len(answer(holder(style("push-pull", coded=False)), ask)) == N


def test_only_need_asks_unprompted() -> None:
    bench = lacking(3, style("pull"))
    bench.wait(1_000_000)
    assert bench.asks() == []


@pytest.mark.parametrize(("extra", "copies"), [(3, 1), (N, 2), (2 * N + 1, 3)])
def test_plain_extras_are_copies_round_and_round(extra: int, copies: int) -> None:  # T10: defined for a > n too
    packets = publication(CONTENT, CodedConfig(coded=False, redundancy=extra))[0]
    assert len(packets) == N + extra
    assert max(packets.count(data) for data in packets) in (copies, copies + 1)
    assert min(packets.count(data) for data in packets) >= copies - (extra < N)
