"""Rankings (thesis, chapter 3; spec section 16): when and where to move homes."""

import pytest

from tests.papers.sequencer.pump import STAMP, Deployment
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.ranking import ClimbCost, DeploymentView, Popularity, Ranking

RULES = ("RANK",)

LINE = {Address("n0"): None, Address("n1"): Address("n0"), Address("n2"): Address("n1")}
STAR = {Address("hub"): None} | {Address(f"r{i}"): Address("hub") for i in (1, 2, 3)}


def view(
    parent: dict[Address, Address | None], homes: dict[int, str], issued: dict[int, int], **more: object
) -> DeploymentView:
    return DeploymentView(
        parent=parent,
        homes={Topic(t): Address(n) for t, n in homes.items()},
        issued={Topic(t): n for t, n in issued.items()},
        groups=more.pop("groups", {}),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def applied(ranking: Ranking, seen: DeploymentView, rounds: int = 20) -> DeploymentView:
    """Plays the moves until nothing more is worth moving."""
    for _ in range(rounds):
        moves = ranking(seen)
        if not moves:
            return seen
        homes = seen.homes | {move.topic: move.to for move in moves}
        seen = DeploymentView(seen.parent, homes, seen.issued, seen.groups, seen.up_us, seen.asked)
    raise AssertionError("the moves never end")


def test_popularity_is_the_function_of_the_thesis() -> None:
    rank = Popularity(alpha=0.1)
    assert rank.worth(9) == pytest.approx(0.36787944)
    assert rank.worth(99) == pytest.approx(0.90483742)
    assert rank.worth(10**9) == pytest.approx(1.0)
    assert Popularity(alpha=0.5).worth(9) > rank.worth(9)  # a larger alpha settles sooner


def test_busy_topics_rise_to_the_root_and_stay_there() -> None:
    seen = view(LINE, {0: "n0", 1: "n1", 2: "n2"}, {0: 1, 1: 10, 2: 100})
    settled = applied(Popularity(), seen)
    assert [settled.homes[Topic(t)] for t in (2, 1, 0)] == ["n0", "n1", "n2"]


def test_small_differences_move_nothing() -> None:
    assert Popularity()(view(LINE, {0: "n0", 1: "n1"}, {0: 100, 1: 110})) == []


def test_a_sudden_change_of_popularity_turns_the_order_over() -> None:
    homes = {0: "n0", 1: "n1", 2: "n2"}
    calm = view(LINE, homes, {0: 100, 1: 10, 2: 1})
    assert Popularity()(calm) == []
    changed = applied(Popularity(), view(LINE, homes, {0: 1, 1: 10, 2: 100}))
    assert changed.homes[Topic(2)] == "n0"


def test_a_home_follows_the_topics_it_is_subscribed_with() -> None:
    """T is published at r1 but subscribed with X and Y of r2, which climb for it: it should not stay at r1."""
    groups = {Topic(0): (Topic(1), Topic(2)), Topic(1): (Topic(0),), Topic(2): (Topic(0),)}
    up = {Address(f"r{i}"): Micros(10_000) for i in (1, 2, 3)}
    asked = {Topic(0): {Address("r1"): 10}, Topic(1): {Address("r2"): 100}, Topic(2): {Address("r2"): 100}}
    seen = view(STAR, {0: "r1", 1: "r2", 2: "r2"}, {0: 10, 1: 100, 2: 100}, groups=groups, up_us=up, asked=asked)
    rank = ClimbCost()
    settled = applied(rank, seen)
    assert settled.homes[Topic(0)] == settled.homes[Topic(1)] == settled.homes[Topic(2)] == "r2"
    assert rank(settled) == []


def test_a_home_without_companions_goes_to_its_publishers() -> None:
    asked = {Topic(0): {Address("r3"): 10, Address("r1"): 1}}
    settled = applied(ClimbCost(), view(STAR, {0: "r1"}, {0: 11}, asked=asked))
    assert settled.homes[Topic(0)] == "r3"


def test_rankings_move_real_homes() -> None:
    world = Deployment({"n0": None, "n1": "n0", "n2": "n1"}, {0: "n0", 1: "n1", 2: "n2"}, STAMP)
    world.client("s", 0, 1, 2)
    world.client("z", 0, 1, 2)
    issued = {0: 1, 1: 5, 2: 40}
    for topic, count in issued.items():
        for i in range(count):
            world.publish("p", topic, f"{topic}.{i}")
    world.settle()
    homes = {0: "n0", 1: "n1", 2: "n2"}
    for _ in range(4):
        for move in Popularity()(view(LINE, homes, issued)):
            world.command(move.at, Migrate(move.topic, move.to))
            homes[move.topic] = move.to
        world.run()
    assert 2 in world.nodes["n0"].hosted
    world.publish("p", 2, "last")
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []
