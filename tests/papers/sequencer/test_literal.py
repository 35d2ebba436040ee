"""Where the papers' texts fail (spec section 11): the literal rule is played and must fail, ours must hold."""

from msgspec.structs import replace

from tests.papers.sequencer.literal import Chain, Listener
from tests.papers.sequencer.pump import STAMP, Deployment, Letter, but
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.inputs import Migrate

RULES = ("C1",)

FULL = replace(STAMP, encoding="full")


def line(topics: int) -> Deployment:
    tree = {f"n{i}": f"n{i - 1}" if i else None for i in range(topics)}
    return Deployment(tree, {i: f"n{i}" for i in range(topics)}, FULL)


def finish(world: Deployment) -> Deployment:
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []
    return world


def test_c01_equality_never_delivers_after_somebody_elses_subscription() -> None:
    chain = Chain(2)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 1)
    dummy = chain.subscribe("s3", 1)
    a = chain.publish(0, "a")
    assert a.ts == {0: 1, 1: 0}
    assert Listener(0, 1).hear(dummy, a).heard == []
    assert Listener(0, 1, rule="at most").hear(dummy, a).heard == ["a"]

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.client("s2", 0, 1)
    ours.client("s3", 1)
    ours.publish("p", 0, "a")
    assert finish(ours).order("s1") == "a"


def test_c01b_equality_never_delivers_after_somebody_elses_leaving() -> None:
    chain = Chain(2)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 1)
    chain.subscriptions[1]["s2"] = {1}  # s2 leaves T0, and only the manager of T1 knows
    b, a = chain.publish(1, "b"), chain.publish(0, "a")
    assert (b.ts, a.ts) == ({1: 1}, {0: 1, 1: 0})
    assert Listener(0, 1).hear(b, a).heard == ["b"]
    assert Listener(0, 1, rule="at most").hear(b, a).heard == ["b", "a"]

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.client("s2", 0, 1)
    ours.unsubscribe("s2", 0)
    ours.run(but(("Update", "n0")))
    ours.publish("p", 1, "b")
    ours.run(but(("Update", "n0")))
    ours.publish("p", 0, "a")
    ours.run(but(("Update", "n0")))
    assert sorted(finish(ours).order("s1").split(",")) == ["a", "b"]


def test_c02_a_path_that_changes_under_way_makes_a_cycle() -> None:
    chain = Chain(3)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 2)
    for name in ("s3", "s4"):
        chain.subscribed(name, 1, 2)
    e1 = chain.create(2, "e1")
    chain.hop(e1)
    chain.subscriptions[2]["s4"] = {2}
    e2 = chain.publish(2, "e2")
    f = chain.publish(0, "f")
    chain.finish(e1)
    assert Listener(0, 2, rule="at most").hear(e1, e2, f).heard == []

    ours = line(3)
    for name in ("s1", "s2"):
        ours.client(name, 0, 2)
    for name in ("s3", "s4"):
        ours.client(name, 1, 2)
    ours.publish("p", 2, "e1")
    slow = but(("Fill", "n0"))
    ours.run(slow)
    ours.unsubscribe("s4", 1)
    ours.run(slow)
    ours.publish("p", 2, "e2")
    ours.run(slow)
    ours.publish("p", 0, "f")
    ours.run(slow)
    assert len(finish(ours).log["s1"]) == 3


def test_c03_static_subscriptions_and_fifo_links_block_too() -> None:
    """Ours in the same situation: test_publication, test_c03_d09."""
    chain = Chain(4)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 2, 3)
    for name in ("s3", "s4"):
        chain.subscribed(name, 1, 2)
    x = chain.create(3, "x")
    chain.hop(x)  # at the manager of T2, then on the slow link to that of T0
    m = chain.publish(2, "m")
    t = chain.publish(0, "t")
    chain.finish(x)
    assert Listener(0, 2, 3, rule="at most").hear(x, m, t).heard == []


def test_c04_a_cycle_through_a_pair_of_one_subscriber() -> None:
    subscriptions = {"s1": (0, 1, 2, 3), "s2": (2, 3), "s3": (1, 2), "s4": (0, 1), "s5": (0, 3)}
    chain = Chain(4)
    for name, topics in subscriptions.items():
        chain.subscribed(name, *topics)
    x = chain.create(3, "x")
    chain.hop(x)
    y, m, t = chain.publish(2, "y"), chain.publish(1, "m"), chain.publish(0, "t")
    chain.finish(x)
    assert Listener(0, 1, 2, 3, rule="at most").hear(x, y, m, t).heard == []
    assert len(Listener(2, 3, rule="at most").hear(x, y, m, t).heard) == 2

    ours = line(4)
    for name, topics in subscriptions.items():
        ours.client(name, *topics)
    ours.publish("p", 3, "x")

    def slow(letter: Letter) -> bool:
        return letter.kind == "Fill" and letter.topic == 3 and letter.to == "n0"

    for topic, payload in ((2, "y"), (1, "m"), (0, "t")):
        ours.run(slow)
        ours.publish("p", topic, payload)
    ours.run(slow)
    assert len(finish(ours).log["s1"]) == 4


def test_c05_the_copies_of_a_dummy_wait_for_each_other_or_skip_events() -> None:
    chain = Chain(2)
    chain.subscribed("s1", 0, 1)
    a = chain.publish(1, "a")
    dummy = chain.subscribe("s2", 0, 1)
    assert dummy.ts == {1: 2, 0: 1}
    b = chain.publish(1, "b")
    assert Listener(0, 1, rule="at most", dummy="rule").hear(a, dummy, b).heard == ["a"]  # b waits for ever
    assert Listener(0, 1, rule="at most", dummy="merge").hear(dummy, a, b).heard == ["b"]  # a is lost
    assert Listener(0, 1, rule="at most", dummy="own").hear(dummy, a, b).heard == ["a", "b"]

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.publish("p", 1, "a")
    ours.run(but(("Stamps", "s1")))
    ours.subscribe("s2", 0, 1)
    ours.run(but(("Stamps", "s1")))
    ours.publish("p", 1, "b")
    assert finish(ours).order("s1") == "a,b"  # subscribing issues no number


def test_c06_the_subscription_timestamp_must_not_overwrite_old_clocks() -> None:
    """Ours in the same situation: test_subscriptions, test_c06."""
    chain = Chain(2)
    chain.subscribed("s1", 1)
    a = chain.publish(1, "a")
    reply = chain.subscribe("s1", 0, 1)
    s1 = Listener(1, rule="at most")
    s1.clock = dict(reply.ts)
    assert s1.hear(a).heard == []


def test_c15_timestamps_with_higher_topics_only_do_not_order_what_comes_after() -> None:
    chain = Chain(2, higher_only=True)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 1)
    x, t = chain.publish(1, "x"), chain.publish(0, "t")
    assert (x.ts, t.ts) == ({1: 1, 0: 0}, {0: 1})
    assert Listener(0, 1, rule="at most").hear(x, t).heard == ["x", "t"]
    assert Listener(0, 1, rule="at most").hear(t, x).heard == ["t", "x"]

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.client("s2", 0, 1)
    ours.publish("p", 1, "x")
    ours.run(but(("Stamps", "s2", 1)))
    ours.publish("p", 0, "t")
    ours.run(but(("Stamps", "s2", 1)))
    assert finish(ours).order("s2") == "x,t"


def test_c18a_a_swap_without_history_reorders() -> None:
    chain = Chain(2)
    for name in ("s1", "s2"):
        chain.subscribed(name, 0, 1)
    a = chain.publish(0, "a")
    chain.order = [1, 0]  # the swap reaches the manager of T1 first
    b = chain.publish(1, "b")
    assert (a.ts, b.ts) == ({0: 1, 1: 0}, {1: 1, 0: 0})
    assert Listener(0, 1, rule="at most").hear(a, b).heard == ["a", "b"]
    assert Listener(0, 1, rule="at most").hear(b, a).heard == ["b", "a"]

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.client("s2", 0, 1)
    ours.publish("p", 0, "a")
    late = but(("Stamps", "s2", 0))
    ours.run(late)
    ours.command("n0", Migrate(Topic(0), Address("n1")))
    ours.run(late)
    ours.command("n1", Migrate(Topic(1), Address("n0")))
    ours.run(late)
    ours.publish("p", 1, "b")
    ours.run(late)
    assert finish(ours).order("s2") == "a,b"


def test_c18b_a_discarded_request_leaves_a_hole() -> None:
    chain = Chain(2)
    chain.subscribed("s1", 0, 1)
    chain.create(1, "a")  # the managers above are in a new epoch and discard it
    again, b = chain.publish(1, "a"), chain.publish(1, "b")
    assert Listener(0, 1, rule="at most").hear(again, b).heard == []

    ours = line(2)
    ours.client("s1", 0, 1)
    ours.client("s2", 0, 1)
    ours.publish("p", 1, "a")
    ours.run(but(("Fill",)))
    ours.command("n0", Migrate(Topic(0), Address("n1")))
    ours.publish("p", 1, "b")
    assert finish(ours).order("s1") == "a,b"
