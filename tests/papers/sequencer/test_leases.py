"""Leases of subscribers (spec section 5): a home may forget who was silent, and who may be forgotten stops notifying.

s and z have X and T, which live in different regions of a star. The links between s and the nodes are cut, the broker
is not, and after the lease the nodes forget s: X and T need no order any more, since z alone has both.
"""

from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, Letter
from unisono.machine import Heard, Stalled
from unisono.model.ids import Address
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.structures.hosting import Forget

RULES = ("LEASE",)

X, T = 1, 2
LEASE = Micros(40 * SECOND)
LEASED = replace(STAMP, subscriber_lease_us=LEASE)


def is_cut(letter: Letter) -> bool:
    return "s" in (letter.source, letter.to) and not isinstance(letter.message, Heard)


def is_slow(letter: Letter) -> bool:
    """The stamp of x takes its time on the way to z."""
    return is_cut(letter) or (letter.kind, letter.to, letter.topic) == ("Stamps", "z", X)


def both(config: SequencerConfig) -> Deployment:
    world = Deployment({"hub": None, "r1": "hub", "r2": "hub"}, {X: "r1", T: "r2"}, config)
    world.client("s", X, T)
    world.client("z", X, T)
    return world


def silent_for_a_lease(config: SequencerConfig) -> Deployment:
    world = both(config)
    if config.subscriber_lease_us:
        world.until(lambda: world.now >= LEASE, is_cut)
    else:
        world.now = LEASE
    return world


def forget_and_publish(world: Deployment) -> None:
    world.letters = [letter for letter in world.letters if not is_cut(letter)]
    for node in world.nodes:
        world.command(node, Forget(Address("s")))
    publish(world)


def publish(world: Deployment) -> None:
    world.publish("p", X, "x")
    world.publish("p", T, "t")
    world.run(is_slow)
    world.run(is_cut)


def test_without_leases_a_forgotten_subscriber_disagrees() -> None:
    world = silent_for_a_lease(STAMP)
    forget_and_publish(world)
    assert (world.order("s"), world.order("z")) == ("x,t", "t,x")


def test_a_subscriber_that_may_be_forgotten_notifies_nothing() -> None:
    world = silent_for_a_lease(LEASED)
    forget_and_publish(world)
    assert (world.order("s"), world.order("z")) == ("", "t,x")
    assert [(who, n.topic) for who, n in world.notices if isinstance(n, Stalled)] == [("s", X), ("s", T)]


def test_it_stops_before_it_can_be_forgotten_though_no_timer_has_told_it() -> None:
    """A process that did not run for a while: what waits for it comes before its timers."""
    world = both(LEASED)
    world.now = Micros(LEASE - 1)
    publish(world)
    assert world.order("s") == ""


def test_a_lease_runs_from_the_question_however_late_the_answer() -> None:
    world = both(LEASED)
    world.until(lambda: any(x.kind == "Renewed" for x in world.letters), lambda letter: letter.kind == "Renewed")
    asked = world.now
    world.now = Micros(asked + LEASE // 2)
    world.run()
    world.now = Micros(asked + LEASE - 1)
    publish(world)
    assert world.order("s") == ""


def test_a_subscriber_that_was_not_forgotten_goes_on_when_its_homes_answer() -> None:
    world = silent_for_a_lease(LEASED)
    publish(world)
    assert world.order("s") == ""
    world.run()
    assert world.order("s") == world.order("z") != ""


def test_a_subscriber_that_was_forgotten_never_notifies_again() -> None:
    world = silent_for_a_lease(LEASED)
    forget_and_publish(world)
    world.until(lambda: len(world.refusals) == 2, lambda letter: False)
    world.until(lambda: world.now >= 3 * LEASE, lambda letter: False)
    assert world.order("s") == ""
    assert all("forgotten" in reason for _, reason in world.refusals)
    assert sum(notice.ends for _, notice in world.notices if isinstance(notice, Stalled)) == 2


def test_a_lease_that_is_renewed_stops_nobody() -> None:
    world = both(LEASED)
    world.until(lambda: world.now >= 3 * LEASE, lambda letter: False)
    publish(world)
    world.run()
    assert world.order("s") == world.order("z") != ""
    assert not any(isinstance(notice, Stalled) for _, notice in world.notices)
