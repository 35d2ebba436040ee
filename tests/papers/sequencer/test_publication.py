"""Publishing: numbers, repetitions, restarts, voids, program order (spec sections 7 to 9 and 11).

Where the weaker rule is a property of the network or of the disk it is played here and must fail; where it is a line
of ours it is planted by `tests/mutants/sequencer.toml`.
"""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.fuzz import fuzz
from tests.papers.sequencer.pump import STAMP, Deployment, Letter, but
from unisono.machine import Accepted, Broadcast, Deliver, Effect, Gap, Heard, Persist, Publish, Refuse, Send
from unisono.model.event import Event, Payload
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Ask, Creates, Fill, Install, Part, Taken, Turn, Wanted, Withdraw
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.groups import Lists

RULES = ("RUN", "BOUND", "V1")

X, T = 1, 2
FULL = replace(STAMP, encoding="full")
CAUSAL = replace(STAMP, shared_subscriptions_min=1, causal=True)


def star(config: SequencerConfig = STAMP, **machines: Any) -> Deployment:
    return Deployment({"hub": None, "r1": "hub", "r2": "hub"}, {X: "r1", T: "r2"}, config, **machines)


def line(config: SequencerConfig = FULL) -> Deployment:
    return Deployment({"n0": None, "n1": "n0"}, {0: "n0", 1: "n1"}, config)


def finish(world: Deployment) -> None:
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []


def test_c10_a_repeated_request_keeps_its_number() -> None:
    world = line()
    world.client("s", 0)
    world.publish("p", 0, "a")
    again = world.find("Creates", "n0").message
    world.run()
    world.perform("n0", world.nodes["n0"].handle(again, world.now))
    world.publish("p", 0, "b")
    finish(world)
    assert world.order("s") == "a,b"
    assert world.nodes["n0"].clock[Topic(0)] == 2


def test_requests_are_numbered_in_the_publishers_order_whatever_overtakes_what() -> None:
    world = line()
    world.client("s", 0)
    for payload in "abc":
        world.publish("p", 0, payload)
    first = world.find("Creates", "n0")
    world.run(lambda letter: letter == first)
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == "a,b,c"


def test_a_home_keeps_one_counter_per_publisher_and_a_bounded_number_of_early_requests() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, replace(STAMP, window=10, requests_max=10))
    home = node.hosted[Topic(0)]
    for i in range(2, 12):
        node.handle(Creates(Address("p"), (Wanted(Topic(0), i),)), Micros(0))
    assert node.clock[Topic(0)] == 0
    assert sum(map(len, home.pack(Lists())["early"].values())) < 10
    node.handle(Creates(Address("p"), (Wanted(Topic(0), 1, 10),)), Micros(0))
    assert node.clock[Topic(0)] == 10
    assert home.requests == {"p": 11}
    assert home.pack(Lists())["early"] == {}


def two_lines(duplicate: bool) -> Deployment:
    """x is on its way from n1 to n0; the link repeats its Fill after t."""
    world = line()
    world.client("s", 0, 1)
    world.client("z", 0, 1)
    world.publish("p", 1, "x")
    world.run(but(("Fill",)))
    fill = world.find("Fill", "n0")
    world.deliver(fill)
    world.letters = [x for x in world.letters if x.kind != "Stamps"]  # the first answer is lost
    world.publish("p", 0, "t")
    world.run()
    if duplicate:
        world.perform("n0", world.nodes["n0"].handle(fill.message, world.now))
    return world


def test_c11_a_timestamp_filled_twice_blocks_both_events() -> None:
    weak = two_lines(duplicate=True)
    weak.run()
    assert weak.order("s") == ""  # x waits for t and t for x; sessions keep a link from repeating a Fill
    finish(two_lines(duplicate=False))


def restarted(forget: str, ask: bool = False) -> Deployment:
    """x has passed n0 (unless `ask`: it is still on the link), n0 restarts, t is published."""
    world = line()
    world.client("s", 0, 1)
    world.client("z", 0, 1)
    world.publish("p", 0, "t0")
    world.run()
    world.publish("p", 1, "x")
    world.run(but(("Stamps", "z", 1), *([("Fill",)] if ask else [])))
    snapshot = world.nodes["n0"].snapshot()
    if forget == "known":
        snapshot["clock"][1] = world.nodes["n1"].clock[Topic(1)] if ask else 0
    if forget == "numbers":
        snapshot["clock"][0] = 0
    children = (Address("n1"),)
    world.nodes["n0"] = TopicManager(Address("n0"), None, children, (), {}, world.config)
    world.nodes["n0"].restore(snapshot)
    world.publish("p", 0, "t")
    world.run(but(("Stamps", "z", 1), *([("Fill",)] if ask else [])))
    world.settle()
    return world


@pytest.mark.parametrize("ask", [False, True])
def test_c12_c14_what_a_node_knows_of_the_topics_below_is_durable(ask: bool) -> None:
    """Lost, it reorders; asked for again, it blocks: the number that is told has not passed yet."""
    assert restarted("known", ask).complaints() != []
    assert restarted("nothing", ask).complaints() == []


def test_c13_numbers_are_durable() -> None:
    assert restarted("numbers").order("s") == "t0,x"  # t got the number of t0 again
    assert restarted("nothing").order("s") == "t0,x,t"


def question(config: SequencerConfig) -> Deployment:
    """q has T0 only, is notified of `ask` and answers on T1; s has both."""
    world = line(config)
    world.client("s", 0, 1)
    world.client("q", 0)
    world.publish("p", 0, "ask")
    late = but(("Stamps", "s", 0))
    world.run(late)
    assert world.order("q") == "ask"
    world.publish("q", 1, "ans")
    world.run(late)
    world.settle()
    return world


def test_c16_pairs_shared_by_one_subscriber_make_the_order_causal() -> None:
    assert question(STAMP).order("s") == "ans,ask"
    assert question(CAUSAL).order("s") == "ask,ans"


def test_c16_d10_a_publisher_waits_for_completion_before_it_turns_to_another_topic() -> None:
    world = star(CAUSAL)
    world.client("z", X, T)
    world.publish("p", X, "ask")
    world.publish("p", T, "ans")
    world.run(but(("Fill", "hub", X)))
    assert world.order("z") == ""
    finish(world)
    assert world.order("z") == "ask,ans"


class Skipping(Deployment):
    """A network on which a Fill goes straight to the next node that has something to say."""

    kind: type = Fill

    def _post(self, source: str, to: str, message: Any) -> None:
        if isinstance(message, self.kind):
            while not any(x in self.nodes[to].clock for x in message.todo):
                to = self.tree[to] or to
        super()._post(source, to, message)


class SkippingParts(Skipping):
    """The same for the parts of subscriptions."""

    kind = Part


def skipped(make: type[Deployment]) -> Deployment:
    """C3 inside a tree: x@3 sits on its way from n2 to the top while m@2 overtakes it through n1."""
    world = make({f"n{i}": f"n{i - 1}" if i else None for i in range(4)}, {i: f"n{i}" for i in range(4)}, FULL)
    for name in ("s1", "s2"):
        world.client(name, 0, 2, 3)
    for name in ("s3", "s4"):
        world.client(name, 1, 2)
    world.publish("p", 3, "x")
    # x has left n2 on its way up.
    world.run(lambda letter: letter.kind == "Fill" and letter.source != "n3")
    slow = world.find("Fill", source="n2")
    world.publish("p", 2, "m")

    def behind(letter: Letter) -> bool:
        return letter == slow

    world.run(behind)
    world.publish("p", 0, "t")
    world.run(behind)
    world.settle()
    return world


def test_c03_d09_a_request_skips_no_node() -> None:
    assert "holds back" in str(skipped(Skipping).complaints())
    assert skipped(Deployment).complaints() == []


def test_a_part_skips_no_node() -> None:
    """Found at random: a subscription overtakes events on a shortcut, and somebody waits for ever."""
    assert "never stop" in str(fuzz(37, FULL, make=SkippingParts).complaints())
    assert fuzz(37, FULL).complaints() == []


def test_d11_a_skip_obeys_the_delivery_rule() -> None:
    world = star()
    world.client("z", X, T)
    world.client("s", X)
    world.publish("p", T, "t1")  # its payload leaves before s listens, its number comes after
    create = world.find("Creates", "r2")
    world.run(lambda letter: letter == create)
    world.subscribe("s", T)
    world.run(lambda letter: letter == create)
    world.publish("p", X, "x")
    late = but(("Stamps", "s", X), ("Told", "s", X))
    world.run(lambda letter: letter == create or late(letter))
    world.run(late)
    world.publish("p", T, "t2")
    world.run(late)
    for _ in range(60):
        world.fire()
        world.run(late)
    assert world.order("s") == ""
    finish(world)
    assert (world.order("z"), world.order("s")) == ("x,t1,t2", "x,t2")
    # Lost, or published before s listened: s cannot tell, so it is told (the lossy scenario needs this).
    assert [(who, n.first, n.last) for who, n in world.notices if type(n).__name__ == "Gap"] == [("s", 1, 1)]


def withdraw(world: Deployment, topic: int, request: int, count: int = 1) -> None:
    """The broker has refused what p has published, for good."""
    home = world.clients["p"].homes[Topic(topic)]
    world.perform("p", [Send(home, Withdraw(Address("p"), Topic(topic), request, count))])


def withdrawn(config: SequencerConfig) -> Deployment:
    """x@T1; number 1 of T0 carries T1:1 and its payload d is refused by the broker; t@T0 follows. z hears x late."""
    world = line(config)
    world.client("s", 0, 1)
    world.client("z", 0, 1)
    world.publish("p", 1, "x")
    world.run(LATE)
    world.publish("p", 0, "d")
    world.letters = [letter for letter in world.letters if (letter.kind, letter.topic) != ("Payload", 0)]
    world.run(LATE)
    withdraw(world, 0, 1)
    world.run(LATE)
    world.publish("p", 0, "t")
    return world


LATE = but(("Payload", "z", 1), ("Stamps", "z", 0), ("Pieces", "z", 0))
VOIDING = [FULL, STAMP, SequencerConfig()]


@pytest.mark.parametrize("config", VOIDING, ids=["full", "delta", "early"])
def test_c19_v1_a_void_carries_its_timestamp(config: SequencerConfig) -> None:
    world = withdrawn(config)
    world.run(LATE)
    for letter in [x for x in world.letters if x.to == "z" and x.topic == 0 and x.kind in ("Stamps", "Pieces")][:1]:
        world.letters.remove(letter)  # of number 1: what z knows of it is the void
    late = but(("Payload", "z", 1))
    world.run(late)
    assert (world.order("s"), world.order("z")) == ("x,t", "")
    finish(world)
    assert world.order("z") == "x,t"
    assert [n for _, n in world.notices if isinstance(n, Gap)] == []


@pytest.mark.parametrize("config", VOIDING, ids=["full", "delta", "early"])
def test_c20_v2_an_event_whose_number_has_gone_by_is_tagged(config: SequencerConfig) -> None:
    world = line(config)
    world.client("s", 0)
    world.client("z", 0)
    world.publish("p", 0, "a")
    world.publish("p", 0, "b")
    late = next(x for x in world.letters if (x.kind, x.to) == ("Payload", "z") and "a" in str(x.message.message.event))
    world.run(lambda letter: letter == late)
    withdraw(world, 0, 1)
    world.run(lambda letter: letter == late)
    assert (world.order("s"), world.order("z")) == ("a,b", "b")
    world.letters = [late]
    world.run()
    assert (world.order("s"), world.order("z")) == ("a,b", "b")
    tagged = [(who, n.message.payload) for who, n in world.notices if isinstance(n, Heard) and n.late]
    assert tagged == [("z", b"a")]


@pytest.mark.parametrize("config", VOIDING, ids=["full", "delta", "early"])
def test_v3_an_event_that_is_here_is_preferred_to_its_void(config: SequencerConfig) -> None:
    world = withdrawn(config)
    event = Event("p", 1, "0", b"d")  # it had got through to them all the same
    world.perform("p", [Broadcast(Topic(0), Payload(Address("p"), 1, event))])
    world.run(LATE)
    world.settle()
    assert (world.order("s"), world.order("z")) == ("x,t", "x,d,t")
    assert [(who, n.message.payload) for who, n in world.notices if isinstance(n, Heard)] == [("s", b"d")]
    assert world.clients["z"].subscriber.feeds[Topic(0)].lost == {}


@pytest.mark.parametrize("config", VOIDING, ids=["full", "delta", "early"])
def test_v4_a_number_is_void_when_its_timestamp_is_complete_and_not_before(config: SequencerConfig) -> None:
    """Both children are ordered at the hub; the request has not got there when its payload is withdrawn."""
    world = star(config)
    world.client("s", X, T)
    world.client("z", X, T)
    world.publish("p", X, "x")
    world.letters = [letter for letter in world.letters if letter.kind != "Payload"]
    world.run(but(("Fill",)))
    withdraw(world, X, 1)
    world.run(but(("Fill",), ("Void",)))
    assert not any(x.kind == "Void" for x in world.letters)
    restored = TopicManager(Address("r1"), Address("hub"), (), (), {}, config)
    restored.restore(world.nodes["r1"].snapshot())
    world.nodes["r1"] = restored
    world.run(but(("Void",)))
    void = world.find("Void", "s").message.message
    assert (void.first, void.count, void.run.topics) == (1, 1, (T,))
    world.publish("p", X, "y")
    finish(world)
    assert (world.order("s"), world.order("z")) == ("y", "y")


def test_numbers_in_the_middle_of_a_run_are_void_and_told_as_such() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, STAMP)
    node.handle(Creates(Address("p"), (Wanted(Topic(0), 1, 5),)), Micros(0))
    voids = [
        effect.message
        for effect in node.handle(Withdraw(Address("p"), Topic(0), 2, 2), Micros(0))
        if isinstance(effect, Broadcast)
    ]
    assert [(void.run.first, void.run.count, void.first, void.count) for void in voids] == [(1, 5, 2, 2)]
    fates = []
    for number in range(1, 7):
        (told,) = node.handle(Ask(Address("s"), Topic(0), number), Micros(0))
        assert isinstance(told, Send)
        fates.append(told.message.fate)
    assert fates == ["published", "void", "void", "published", "published", "unissued"]


@pytest.mark.parametrize("first", [0, -1, 2**40])
def test_only_what_has_a_number_is_withdrawn(first: int) -> None:
    """The rest is asked for again, or was never asked for."""
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, STAMP)
    node.handle(Creates(Address("p"), (Wanted(Topic(0), 1, 5),)), Micros(0))
    node.handle(Creates(Address("q"), (Wanted(Topic(0), 1, 1),)), Micros(0))
    for who, count in (("p", 10**9), ("p", 0), ("p", 2), ("r", 1)):
        effects = node.handle(Withdraw(Address(who), Topic(0), first, count), Micros(0))
        assert not any(isinstance(effect, Broadcast | Send) for effect in effects)
    assert node.handle(Withdraw(Address("p"), Topic(0), 5, 2), Micros(0)) == []
    assert node.hosted[Topic(0)].voids == {}


def test_voids_are_forgotten_with_their_numbers() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, replace(STAMP, issued_max=3))
    for request in range(1, 6):
        node.handle(Creates(Address("p"), (Wanted(Topic(0), request),)), Micros(0))
        node.handle(Withdraw(Address("p"), Topic(0), request), Micros(0))
    assert list(node.hosted[Topic(0)].voids) == [3, 4, 5]


def test_consecutive_requests_of_one_message_are_one_run() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0), Topic(1)), {}, STAMP)
    wanted = [Wanted(Topic(t), 1 + i // 2) for i, t in enumerate([0, 1] * 3)]
    effects = node.handle(Creates(Address("p"), tuple(wanted)), Micros(0))
    stamps = [effect.message for effect in effects if isinstance(effect, Broadcast)]
    assert [(s.topic, [(run.first, run.count) for run in s.runs]) for s in stamps] == [(0, [(1, 3)]), (1, [(1, 3)])]


@pytest.mark.parametrize(("first", "count"), [(1, 10**9), (-1, 1), (1, 0), (1, -5)])
def test_a_request_for_absurd_numbers_is_refused(first: int, count: int) -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, STAMP)
    effects = node.handle(Creates(Address("p"), (Wanted(Topic(0), first, count),)), Micros(0))
    assert [type(effect) for effect in effects] == [Persist, Refuse]
    assert node.clock[Topic(0)] == 0


def test_request_0_tells_how_far_a_publisher_is_and_changes_nothing() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0),), {}, STAMP)
    how_far = Creates(Address("p"), (Wanted(Topic(0), 0, 1, 0),), wait=True)
    told = [node.handle(how_far, Micros(0))]
    node.handle(Creates(Address("p"), (Wanted(Topic(0), 5, 2, 5), Wanted(Topic(0), 9, 1, 9))), Micros(0))
    told.append(node.handle(how_far, Micros(0)))
    assert [effects[1:] for effects in told] == [[Send(Address("p"), Taken({Topic(0): upto}))] for upto in (0, 9)]
    assert node.clock[Topic(0)] == 3


def test_requests_of_several_publishers_that_come_together() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0), Topic(1)), {}, STAMP)
    asked = {"p": Wanted(Topic(0), 1, 2), "q": Wanted(Topic(1), 1, 1), "r": Wanted(Topic(0), 1, 3)}
    creates = tuple(Creates(Address(name), (item,)) for name, item in asked.items())
    effects = node.handle(Turn((*creates, creates[0])), Micros(0))
    stamps = [effect.message for effect in effects if isinstance(effect, Broadcast)]
    assert [[(run.publisher, run.first, run.count) for run in stamp.runs] for stamp in stamps] == [
        [("p", 1, 2), ("r", 3, 3)],
        [("q", 1, 1)],
    ]
    taken = [(effect.to, effect.message.upto) for effect in effects if isinstance(effect, Send)]
    assert taken == [("p", {0: 2}), ("q", {1: 1}), ("r", {0: 3}), ("p", {0: 2})]
    assert node.clock == {0: 5, 1: 1}


def test_a_publisher_may_have_its_requests_numbered_in_line() -> None:
    node = TopicManager(Address("n"), None, (), (Topic(0), Topic(1)), {}, FULL)
    for sid, topic in (("s", 0), ("s", 1), ("r", 0), ("r", 1)):
        node.handle(Install(Address(sid), 1, (Topic(topic),), (Topic(0), Topic(1))), Micros(0))
    items = tuple(Wanted(Topic(topic), request, 1) for topic, request in ((0, 1), (1, 1), (0, 2)))
    other = Creates(Address("q"), (Wanted(Topic(1), 1, 1),))
    effects = node.handle(Turn((other, Creates(Address("p"), items, in_line=True))), Micros(0))
    stamps = [effect.message for effect in effects if isinstance(effect, Broadcast)]
    runs = [(stamp.topic, run.first, run.entries) for stamp in stamps for run in stamp.runs if run.publisher == "p"]
    second = next(entries for topic, first, entries in runs if (topic, first) == (Topic(1), 2))
    third = next(entries for topic, first, entries in runs if (topic, first) == (Topic(0), 2))
    assert (second[Topic(0)], third[Topic(1)]) == (1, 2)  # each comes after the one before it


@pytest.mark.parametrize("config", [STAMP, FULL, replace(CAUSAL, early=True)], ids=["delta", "full", "early"])
@pytest.mark.parametrize("parent", [None, Address("above")])
def test_a_turn_is_its_requests_one_after_the_other_topic_by_topic(
    config: SequencerConfig, parent: Address | None
) -> None:
    dice = random.Random(11)
    here = tuple(Topic(number) for number in range(6))
    together, apart = (TopicManager(Address("n"), parent, (), here, {}, config) for _ in range(2))
    following: dict[tuple[str, Topic], int] = {}
    for step in range(200):
        now = Micros(step)
        if dice.random() < 0.3:
            topics = tuple(dice.sample([*here, Topic(9)], 3))
            install = Install(Address(f"s{dice.randrange(3)}"), step + 1, (dice.choice(here),), topics)
            assert together.handle(install, now) == apart.handle(install, now)
        asked: list[tuple[str, Wanted]] = []
        for name in dice.sample("pqrs", 3):
            for topic in dice.sample(here, 2):
                first, count = following.get((name, topic), 1), dice.randint(1, 3)
                following[name, topic] = first + count
                asked.append((name, Wanted(topic, first, count, first)))
        turn = Turn(tuple(Creates(Address(name), (item,), config.causal) for name, item in asked))
        places = list(dict.fromkeys(item.topic for _, item in asked))
        in_line = sorted(turn.creates, key=lambda create: places.index(create.items[0].topic))
        effects = together.handle(turn, now)
        expected = [effect for create in in_line for effect in apart.handle(create, now)]
        assert _said(effects) == _said(expected)
        assert together.snapshot() == apart.snapshot()


def _said(effects: list[Any]) -> list[str]:
    """Everything that was sent or broadcast, whatever came together in one message or in another order."""
    said = []
    for effect in effects:
        match effect:
            case Broadcast(message=message):
                said += [repr(part) for part in getattr(message, "pieces", None) or message.runs]
            case Send() | Refuse():
                said.append(repr(effect))
            case _:
                pass
    return sorted(said)


def test_under_load_requests_are_gathered_until_an_answer_comes_or_they_are_many() -> None:
    client = OrderingClient(Address("p"), {Topic(X): Address("n")}, replace(STAMP, gather_from=10, gather=13))

    def asked(effects: list[Effect]) -> list[tuple[int, int]]:
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        return [(item.first, item.count) for message in sent for item in message.items]

    def publish(first: int, count: int) -> list[tuple[int, int]]:
        events = tuple(Event("p", first + i, "x") for i in range(count))
        effects = client.handle(Publish(Topic(X), events, first), Micros(0))
        (payloads,) = [effect.message for effect in effects if isinstance(effect, Broadcast)]
        assert (payloads.request, payloads.events) == (first, events)  # payloads never wait
        return asked(effects)

    assert [publish(1, 4), publish(5, 4), publish(9, 4)] == [[(1, 4)], [(5, 4)], [(9, 4)]]
    assert [publish(13, 3), publish(16, 3)] == [[], []]
    answered = client.handle(Taken({Topic(X): 4}), Micros(1))
    assert asked(answered) == [(13, 6)]
    assert [publish(19, 4), publish(23, 9)] == [[], [(19, 13)]]
    accepted = [
        effect.item for effect in client.handle(Taken({Topic(X): 31}), Micros(1)) if isinstance(effect, Deliver)
    ]
    assert [(outcome.request, outcome.count) for outcome in accepted] == [
        (5, 4),
        (9, 4),
        (13, 3),
        (16, 3),
        (19, 4),
        (23, 9),
    ]


def test_part_of_a_row_may_be_taken() -> None:
    client = OrderingClient(Address("p"), {Topic(X): Address("n")}, STAMP)
    client.handle(Publish(Topic(X), tuple(Event("p", n, "x") for n in range(1, 6)), 71), Micros(0))
    taken = [client.handle(Taken({Topic(X): upto}), Micros(1)) for upto in (2, 2, 5)]
    assert taken == [[Deliver(Accepted(71, count=2))], [], [Deliver(Accepted(73, count=3))]]
    assert client.publisher.count_open(Topic(X), 5) == 0
