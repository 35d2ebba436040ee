"""H1 to H14: the two-layer text at its seams, and the one machine on the same traces (specs, section 0).

The specification tells H6 by no trace; here it is the answer to a publication, without which a client that changes its
broker loses what the first one knew.
"""

from msgspec.structs import replace

from tests.papers.causal import literal
from tests.papers.causal.test_printed import names
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalEmitted, CausalFrame, CausalRefused, FrameFate, past_of
from unisono.protocols.causal.order import CausalOrder
from unisono.protocols.causal.publishing import CausalAuthor, CausalEmitter

RULES = ("LOGICAL", "CLIENT")
CONFIG = CausalConfig(
    eps_ticks=2, life_ticks=20, spread_ticks=5, deadline_ticks_max=150, delay_ticks=10, publish_ticks=8
)
A, B, Z = 1, 2, 3
G, OTHER = 7, 8


def member(kind: type[CausalOrder] = CausalOrder, me: int | None = None, config: CausalConfig = CONFIG) -> CausalOrder:
    """Somebody who has been subscribed to G for ever."""
    order = kind(config, me)
    order.floors = {G: 0}
    return order


class Client:
    """A subscriber that publishes."""

    def __init__(self, name: str, broker: int) -> None:
        self.order = member()
        self.author = CausalAuthor(Address(name), self.order, lambda topic: (G,))
        self.author.broker = broker
        self.events = 0

    def publish(self, at: CausalEmitter, clock: int, answered: bool = True, knows: bool = True) -> CausalFrame:
        """`knows`: the answer brings what the broker knew, and is not for the client's outcome alone."""
        self.events += 1
        self.author.broker = at.me
        self.author.put(self.events, Event("c", self.events, "g"))
        publication = self.author.next(clock)
        assert publication is not None
        assert at.ask(publication, clock) is None
        frames, answers = at.emit(clock)
        if answered:
            assert isinstance(answers[0], CausalEmitted)
            answer = answers[0] if knows else replace(answers[0], past=(), high=0)
            assert self.author.emitted(answer) == (self.events,)
        return frames[0]


def through_a_client(kind: type[CausalOrder]) -> list[int]:
    """H1: c hears f1 of A and publishes at B, which lacks f1; a subscriber gets f2, then f1."""
    a, b = member(me=A), member(kind, B)
    client, subscriber = Client("c", B), member()
    f1 = a.send((G,), 30, "f1", 10)
    client.order.receive(f1, 11)
    f2 = client.publish(CausalEmitter(b), 12)
    return [each.frame.sender for each in subscriber.receive(f2, 13) + subscriber.receive(f1, 14)]


def test_h1_causality_goes_through_clients() -> None:
    assert through_a_client(literal.NoContext) == [B, A]
    assert through_a_client(CausalOrder) == [A, B]


def foreign_knowledge(kind: type[CausalOrder], skew: int = 0) -> FrameFate:
    """H2: B learns of f1 by a client, and f1 comes on time."""
    a, b, client = member(me=A), member(kind, B), Client("c", B)
    f1 = a.send((G,), 30, "f1", 10)
    client.order.receive(f1, 11)
    client.publish(CausalEmitter(b), 12 + skew)
    return b.receive(f1, 13 + skew)[0].fate


def test_h2_foreign_knowledge_costs_no_frame_that_is_on_time() -> None:
    assert foreign_knowledge(literal.KnowledgeInTheTest) is FrameFate.SUCC_DELIVERED
    assert foreign_knowledge(CausalOrder) is FrameFate.DELIVERED


def from_client_to_client(one_way: bool) -> list[int]:
    """H3: what B learnt from c is before what d publishes at B, and d takes it to Z; there it is before f4."""
    a, b, z = member(me=A), member(me=B), member(me=Z)
    c, d, subscriber = Client("c", B), Client("d", B), member()
    f1 = a.send((G,), 40, "f1", 10)
    c.order.receive(f1, 11)
    f2 = c.publish(CausalEmitter(b), 12)
    f3 = d.publish(CausalEmitter(b), 13, knows=not one_way)
    f4 = d.publish(CausalEmitter(z), 14)
    return [each.frame.sender for f in (f4, f3, f2, f1) for each in subscriber.receive(f, 15)]


def test_h3_knowledge_goes_on_from_one_client_to_the_next() -> None:
    assert from_client_to_client(one_way=True) == [Z, A, B, B]
    assert from_client_to_client(one_way=False) == [A, B, B, Z]


def test_h4_foreign_knowledge_under_skew_costs_none_either() -> None:
    assert foreign_knowledge(literal.KnowledgeInTheTest, skew=2) is FrameFate.SUCC_DELIVERED
    assert foreign_knowledge(CausalOrder, skew=2) is FrameFate.DELIVERED


def test_h5_a_broker_waits_for_its_clock_when_a_client_knows_more() -> None:
    """A stamp is above all that the client knows, and no further ahead of the broker's clock than clocks may be
    apart."""
    client, emitter = Client("c", B), CausalEmitter(member(me=B))
    client.order.receive(member(me=A).send((G,), 40, "f1", 20), 20)
    client.author.put(1, Event("c", 1, "g"))
    publication = client.author.next(20)
    assert publication is not None
    assert emitter.ask(publication, 12) is None
    assert emitter.emit(12) == ([], [])
    assert emitter.wakes_at() == 19
    assert emitter.emit(18) == ([], [])
    frames, _ = emitter.emit(19)
    assert [frame.stamp for frame in frames] == [21]


def with_a_clock_behind(kind: type[CausalOrder]) -> list[object]:
    """H5, and what comes of it: B's clock is behind, so that its effect of f1 would have the earlier deadline."""
    a, b, subscriber = member(me=A), member(kind, B), member()
    f1 = a.send((G,), 40, "f1", 20)
    b.learn({(A, G): (20, 40)}, 20)
    f2 = b.send((G,), b.earliest(19) + CONFIG.life_ticks, "f2", 19)
    return names(subscriber.receive(f2, 21) + subscriber.pump(39) + subscriber.receive(f1, 40))


def test_h5_with_equal_lives_an_effect_is_never_over_before_its_cause() -> None:
    assert with_a_clock_behind(literal.NoBump) == ["f2"]  # f1 was on time
    assert with_a_clock_behind(CausalOrder) == ["f1", "f2"]


def told_before(knows: bool) -> list[int]:
    a, b, z = member(me=A), member(me=B), member(me=Z)
    client, subscriber = Client("c", B), member()
    f1 = a.send((G,), 30, "f1", 10)
    b.receive(f1, 11)
    f2 = client.publish(CausalEmitter(b), 12, knows=knows)
    f3 = client.publish(CausalEmitter(z), 13)
    return [e.frame.sender for f in (f3, f2, f1) for e in subscriber.receive(f, 14)]


def test_h6_the_answer_brings_what_the_broker_knew() -> None:
    assert told_before(knows=False) == [Z, A, B]
    assert told_before(knows=True) == [A, B, Z]


def pruning(kind: type[CausalOrder]) -> FrameFate:
    """H7: t1 D=90, t2 D=2; t2 is late and forgotten; t1 is on time."""
    a, subscriber = member(me=A), member(kind)
    t1, t2 = a.send((G,), 90, "t1", 1), a.send((G,), 4, "t2", 2)
    assert subscriber.receive(t2, 9)[0].fate is FrameFate.LATE
    return subscriber.receive(t1, 10)[0].fate


def test_h7_what_is_forgotten_of_a_sender_does_not_cover_older_stamps() -> None:
    assert pruning(literal.PrunedBySender) is FrameFate.DUP
    assert pruning(CausalOrder) is FrameFate.DELIVERED


def overflow(kind: type[CausalOrder]) -> list[object]:
    """H8: room for two, m2 and m3 wait for m1."""
    a, subscriber = member(me=A), member(kind, config=replace(CONFIG, pending_max=2))
    m1, m2, m3 = (a.send((G,), 40 + i, f"m{i}", i) for i in (1, 2, 3))
    return names([each for frame in (m3, m2, m1) for each in subscriber.receive(frame, 10)])


def test_h8_a_full_buffer_does_not_turn_away_what_it_waits_for() -> None:
    assert overflow(literal.NewestOverflows) == []
    assert overflow(CausalOrder) == ["m1", "m2", "m3"]


def test_h8_what_goes_is_what_nothing_waits_for_and_has_the_most_time_left() -> None:
    a, subscriber = member(me=A), member(config=replace(CONFIG, pending_max=2))
    deadlines = {"m1": 50, "m2": 90, "m3": 60, "m4": 40}
    frames = [a.send((G,), deadline, name, i) for i, (name, deadline) in enumerate(deadlines.items(), 1)]
    settled = [each for frame in frames[1:] for each in subscriber.receive(frame, 10)]
    assert names(settled, FrameFate.OVERFLOW) == ["m4"]  # the only one that nothing waits for


def rejoined(kind: type[CausalOrder]) -> int:
    """H9: f delivered, crash, rejoin in the same tick; f comes once more."""
    a, told = member(me=A), 0
    f = a.send((G,), 30, "f", 10)
    for _ in range(2):
        subscriber = kind(CONFIG)
        if told:
            subscriber.subscribe((G,), 10)
        else:
            subscriber.floors = {G: 0}
        told += len(names(subscriber.receive(f, 10)))
    return told


def test_h9_a_member_that_comes_back_is_not_told_twice() -> None:
    assert rejoined(literal.FloorNow) == 2
    assert rejoined(CausalOrder) == 1


def subscribed_again(kind: type[CausalOrder]) -> list[FrameFate]:
    """H10: what was passed by while nobody listened, then the subscription, then what it covers."""
    a, subscriber = member(me=A), member(kind)
    subscriber.floors[OTHER] = 0
    f1 = a.send((G,), 60, "f1", 13)
    f2 = a.send((OTHER,), 60, "f2", 14)
    subscriber.unsubscribe((G,), 12)
    assert names(subscriber.receive(f2, 12)) == ["f2"]  # whose past has f1, so that has been passed
    subscriber.subscribe((G,), 12)
    f3 = a.send((G,), 60, "f3", 15)
    return [each.fate for f in (f1, f3) for each in subscriber.receive(f, 14)]


def test_h10_a_group_subscribed_again_begins_above_what_was_passed_meanwhile() -> None:
    """Passed by is no reason to turn away what a subscription covers, so it covers nothing of that kind."""
    assert subscribed_again(literal.FloorNow) == [FrameFate.SUCC_DELIVERED, FrameFate.DELIVERED]
    assert subscribed_again(CausalOrder) == [FrameFate.PRE_JOIN, FrameFate.DELIVERED]


def unanswered(gives_up: bool) -> list[int]:
    """H11: a publication at B is not answered, the next goes through Z; B's leaves later."""
    b, z, client, subscriber = member(me=B), member(me=Z), Client("c", B), member()
    emitter = CausalEmitter(b)
    client.author.put(1, Event("c", 1, "g"))
    publication = client.author.next(10)
    assert publication is not None
    assert emitter.ask(publication, 17) is None
    assert client.author.overdue_at == 21
    if gives_up:
        assert client.author.give_up() == (1,)
    else:
        client.author.open = None
    client.events = 1
    f2 = client.publish(CausalEmitter(z), 21)
    (f1,), _ = emitter.emit(18)
    return [each.frame.sender for each in subscriber.receive(f2, 21) + subscriber.receive(f1, 21)]


def test_h11_what_may_have_left_is_before_what_leaves_next() -> None:
    assert unanswered(gives_up=False) == [Z, B]
    assert unanswered(gives_up=True) == [B, Z]


def test_h11_a_broker_refuses_what_nobody_waits_for_any_more() -> None:
    emitter, client = CausalEmitter(member(me=B)), Client("c", B)
    client.author.put(1, Event("c", 1, "g"))
    publication = client.author.next(10)
    assert publication is not None
    assert emitter.ask(publication, publication.until) is None
    frames, answers = emitter.emit(publication.until + 1)
    assert frames == []
    assert isinstance(answers[0], CausalRefused)


def test_h11_another_incarnation_does_not_emit_it() -> None:
    emitter, client = CausalEmitter(member(me=Z)), Client("c", B)
    client.author.put(1, Event("c", 1, "g"))
    publication = client.author.next(10)
    assert publication is not None
    assert isinstance(emitter.ask(publication, 10), CausalRefused)


def late_delivery(kind: type[CausalOrder]) -> list[object]:
    """H12: q (D=12) is long over when p, which depends on it, is sent; then q comes."""
    config = replace(CONFIG, late="deliver")
    a, b, subscriber = member(kind, A, config), member(kind, B, config), member(kind, config=config)
    q = a.send((G,), 12, "q", 10)
    b.receive(q, 11)
    p = b.send((G,), 60, "p", 20)
    return names(subscriber.receive(p, 21) + subscriber.receive(q, 22))


def test_h12_what_is_delivered_late_is_never_after_what_depends_on_it() -> None:
    assert late_delivery(literal.ElidedAndLate) == ["p", "q"]
    assert late_delivery(CausalOrder) == ["p"]


def strangers(kind: type[CausalOrder]) -> bool:
    """H13: is a frame for others asked for again?"""
    a, subscriber = member(me=A), member(kind)
    f = a.send((OTHER,), 30, "f", 10)
    subscriber.receive(f, 11)
    return not subscriber.has_seen(f.id)


def test_h13_a_frame_for_others_is_fetched_once() -> None:
    assert strangers(literal.StrangersUnseen)
    assert not strangers(CausalOrder)


def from_the_future(kind: type[CausalOrder]) -> list[FrameFate]:
    """H14: a stamp ahead of the clock comes again when its time has come."""
    a, subscriber = member(me=A), member(kind)
    f = a.send((G,), 40, "f", 20)
    return [subscriber.receive(f, clock)[0].fate for clock in (10, 18)]


def test_h14_a_frame_from_the_future_is_refused_and_may_come_again() -> None:
    assert from_the_future(literal.FinalFuture) == [FrameFate.FUTURE, FrameFate.DUP]
    assert from_the_future(CausalOrder) == [FrameFate.FUTURE, FrameFate.DELIVERED]


# What the sections above leave to say about single rules.


def test_the_largest_deadline_of_the_past_is_waited_for() -> None:
    """x sends a (D=100), then b (D=10): whoever waits for b may have to wait for a."""

    def got(kind: type[CausalOrder]) -> list[object]:
        a, b, subscriber = member(kind, A), member(me=B), member()
        first, second = a.send((G,), 100, "a", 1), a.send((G,), 10, "b", 2)
        b.learn({(A, G): a.known[A, G]}, 2)
        effect = b.send((G,), 90, "c", 3)
        del second
        return names(subscriber.receive(effect, 11) + subscriber.receive(first, 12) + subscriber.pump(13))

    assert got(literal.LastDeadline) == ["c"]
    assert got(CausalOrder) == ["a"]


def test_logical_deadlines_are_transitive() -> None:
    """p forces r and r forces q, although p does not name q: its sender had left that entry out."""
    subscriber = member()
    missing = (Z, G)
    q = CausalFrame(A, 10, (G,), 90, {missing: (5, 95)}, "q")
    r = CausalFrame(B, 11, (G,), 80, {(A, G): (10, 90), missing: (5, 95)}, "r")
    p = CausalFrame(B, 12, (G,), 30, {(B, G): (11, 80)}, "p")
    for frame in (q, r, p):
        assert subscriber.receive(frame, 12) == []
    assert names(subscriber.pump(29)) == []
    assert names(subscriber.pump(30)) == ["q", "r", "p"]


def test_an_entry_is_left_out_when_nobody_can_get_it_on_time_any_more() -> None:
    """Nobody whose clock is within eps: a stamp tells how far clocks have come."""
    a = member(me=A)
    a.send((G,), 20, "f", 10)
    assert (A, G) in a.past_at(20 + CONFIG.eps_ticks)
    assert (A, G) not in a.past_at(20 + CONFIG.eps_ticks + 1)


def test_what_is_forced_out_together_leaves_in_order_of_what_it_knows() -> None:
    subscriber = member()
    q = CausalFrame(A, 10, (G,), 90, {(Z, G): (5, 95)}, "q")
    p = CausalFrame(B, 12, (G,), 30, {(A, G): (10, 90)}, "p")
    assert subscriber.receive(q, 12) == []
    assert names(subscriber.receive(p, 30)) == ["q", "p"]


def test_who_can_wait_no_longer_for_one_thing_still_leaves_after_what_else_it_knows() -> None:
    """The deadline in p's past is over (a client had no answer and could not know it), that of q itself is not."""
    subscriber = member()
    q = CausalFrame(A, 10, (G,), 90, {(Z, G): (5, 95)}, "q")
    p = CausalFrame(B, 12, (G,), 80, {(A, G): (11, 30)}, "p")
    assert subscriber.receive(q, 12) + subscriber.receive(p, 12) + subscriber.pump(79) == []
    assert names(subscriber.pump(80)) == ["q", "p"]


def test_what_waits_is_let_go_in_its_order_when_a_clock_is_right_again() -> None:
    subscriber = member()
    frames = [
        CausalFrame(A, 10 + i, (G,), 90, {(Z, G): (5, 95), **past}, f"m{i}")
        for i, past in enumerate(({}, {(A, G): (10, 90)}))
    ]
    assert [each for frame in reversed(frames) for each in subscriber.receive(frame, 12)] == []
    assert names(subscriber.release(13)) == ["m0", "m1"]
    subscriber.rejoin(13)
    assert subscriber.floors == {G: 13 + CONFIG.eps_ticks + 1}
    assert len(subscriber) == 0


def test_when_more_has_come_than_can_be_remembered_the_rest_may_come_again() -> None:
    config = replace(CONFIG, seen_max=2)
    a, subscriber = member(me=A), member(config=config)
    frames = [a.send((G,), 60, f"m{i}", 10 + i) for i in range(3)]
    assert [each.fate for frame in frames for each in subscriber.receive(frame, 12)] == [
        FrameFate.DELIVERED,
        FrameFate.DELIVERED,
        FrameFate.FULL,
    ]
    assert not subscriber.has_seen(frames[2].id)
    assert subscriber.receive(frames[0], 12)[0].fate is FrameFate.DUP
    clock = 12 + CONFIG.horizon_ticks  # the first two are forgotten, and late by their age
    late = a.send((G,), clock + 20, "later", clock)
    assert names(subscriber.receive(late, clock)) == ["later"]


def test_whoever_never_sends_forgets_what_is_over_all_the_same() -> None:
    subscriber = member()
    for number in range(50):  # brokers that come back have new names
        clock = 10 + number * 40
        frame = CausalFrame(number, clock, (G,), clock + 20, {}, "")
        assert names(subscriber.receive(frame, clock)) == [""]
    assert len(subscriber.known) <= 2


def test_a_frame_whose_deadline_has_come_is_on_time() -> None:
    f = member(me=A).send((G,), 30, "f", 10)
    assert member().receive(f, 30)[0].fate is FrameFate.DELIVERED
    assert member().receive(f, 31)[0].fate is FrameFate.LATE


def test_a_member_that_wakes_up_late_delivers_what_it_had_and_marks_it() -> None:
    a, subscriber = member(me=A), member()
    a.send((G,), 60, "lost", 9)
    f = a.send((G,), 30, "f", 10)
    assert subscriber.receive(f, 12) == []
    (settled,) = subscriber.pump(45)
    assert (settled.fate, settled.late) == (FrameFate.DELIVERED, True)


def test_nothing_is_held_back_for_longer_than_a_subscriber_wants_to_wait() -> None:
    a, subscriber = member(me=A), CausalOrder(CONFIG, patience_ticks=4)
    subscriber.floors = {G: 0}
    a.send((G,), 60, "lost", 9)
    f = a.send((G,), 60, "f", 10)
    assert subscriber.receive(f, 12) == []
    assert subscriber.wakes_at() == 16
    (settled,) = subscriber.pump(16)
    assert settled.bypassed == (((A, 9), G),)
    assert not settled.late


def test_a_clock_that_goes_back_is_not_believed() -> None:
    subscriber = member()
    subscriber.pump(40)
    f = member(me=A).send((G,), 30, "f", 10)
    assert subscriber.receive(f, 12)[0].fate is FrameFate.LATE


def test_stamps_of_a_sender_increase_and_wait_for_the_clock() -> None:
    a = member(me=A)
    stamps = []
    while a.may_send(10):
        stamps.append(a.send((G,), 40, "", 10).stamp)
    assert stamps == [10, 11, 12]
    assert a.may_send(11)


def test_an_answer_to_something_older_changes_nothing() -> None:
    client = Client("c", B)
    b = CausalEmitter(member(me=B))
    client.publish(b, 10, answered=False)
    client.author.give_up()
    assert client.author.emitted(CausalEmitted(Address("c"), 1, (), 99)) == ()
    assert client.order.high < 99
    assert past_of(((B, G, 1, 2),)) == {(B, G): (1, 2)}


def test_what_is_forgotten_is_late_by_its_age() -> None:
    a, subscriber = member(me=A), member()
    f = a.send((G,), 30, "f", 10)
    subscriber.receive(f, 11)
    later = a.send((G,), 400, "later", 390)
    subscriber.receive(later, 390)
    assert not subscriber.has_seen(f.id)
    assert (A, G) in subscriber.passed
    assert subscriber.receive(f, 391)[0].fate in (FrameFate.LATE, FrameFate.SUCC_DELIVERED)
