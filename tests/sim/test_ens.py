"""The simulated ENS: what it promises, and how badly it may behave within that."""

import pytest

from unisono.machine import Broadcast, Deliver, Effect, Heard, Join, Joined, Leave, Publish, Subscribe, Unsubscribe
from unisono.model.time import Micros
from unisono.sim.ens import EnsSpec
from unisono.sim.links import Loss, Uniform
from unisono.sim.spec import Span
from unisono.sim.world import World


class Plain:
    """A client without any order: everything as it comes."""

    def handle(self, message: object, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner):
                return [Broadcast(topic, inner)]
            case Subscribe(topics=topics):
                return [Join(topic) for topic in topics]
            case Unsubscribe(topics=topics):
                return [Leave(topic) for topic in topics]
            case Heard() | Joined():
                return [Deliver(message)]
        return []


def population(spec: EnsSpec, seed: int = 5, clients: int = 3) -> World:
    world = World(seed, ens=spec)
    for i in range(clients):
        world.add(f"c{i}", lambda name: Plain())
    return world


def heard(world: World, subscriber: str) -> list[str]:
    return [r.event or "" for r in world.records if r.kind == "deliver" and r.subscriber == subscriber]


KINDS = [
    EnsSpec("direct", latency=Uniform(Span(0), Span(200_000))),
    EnsSpec("direct", latency=Uniform(Span(0), Span(200_000)), fifo=False),
    EnsSpec("reorder"),
    EnsSpec("scribe", nodes=40, latency=Uniform(Span(0), Span(200_000))),
]


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_published_after_joined_is_heard_once(spec: EnsSpec, seed: int) -> None:
    world = population(spec, seed)
    listener = world.host("c0")
    due = []

    def say(n: int) -> None:
        event = world.host(f"c{1 + n % 2}").publish("news")
        if listener.subscribed and event is not None:
            due.append(event.id)

    listener.subscribe("news")
    for n in range(100):
        world.at(n * 30_000, say, n)
    world.run()
    assert len(due) > 10
    assert [event for event in due if heard(world, "c0").count(event) != 1] == []


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.kind)
def test_after_leave_nothing_is_heard_not_even_what_was_under_way(spec: EnsSpec) -> None:
    world = population(spec)
    world.host("c0").subscribe("news")
    world.run()
    start = world.now
    for n in range(200):
        world.at(start + n * 1_000, world.host("c1").publish, "news")
    left = start + 100_000
    world.at(left, world.host("c0").unsubscribe, "news")
    world.run()
    times = [r.at_us for r in world.records if r.kind == "deliver"]
    assert times
    assert max(times) <= left


def test_a_crashed_host_is_no_member_any_more() -> None:
    world = population(EnsSpec("direct"))
    world.host("c0").subscribe("news")
    world.run()
    world.host("c0").crash()
    world.host("c0").restart()
    world.host("c1").publish("news")
    world.run()
    assert heard(world, "c0") == []


def order_of(spec: EnsSpec) -> list[str]:
    world = population(spec)
    world.host("c0").subscribe("news")
    world.run()
    for n in range(200):
        world.at(world.now + n * 1_000, world.host("c1").publish, "news")
    world.run()
    return heard(world, "c0")


def test_reordering_paths_reorder_and_fifo_paths_do_not() -> None:
    in_order = [f"c1:{n}" for n in range(1, 201)]
    assert order_of(KINDS[0]) == in_order
    for spec in KINDS[1:]:
        anyhow = order_of(spec)
        assert sorted(anyhow) == sorted(in_order)
        assert anyhow != in_order


def test_speeds_spread_over_decades() -> None:
    world = World(1, ens=EnsSpec("reorder"))
    delays = []
    for i in range(60):
        world.add(f"c{i}", lambda name: Plain())
        world.host(f"c{i}").subscribe("news")
    world.run()
    for _ in range(20):
        world.host("c0").publish("news")
    start = world.now
    world.run()
    delays = [r.at_us - start for r in world.records if r.kind == "deliver"]
    assert len(delays) == 1200
    assert sum(delay < 1_000 for delay in delays) > 100
    assert sum(delay > 100_000 for delay in delays) > 100


@pytest.mark.parametrize("kind", ["direct", "reorder", "scribe"])
def test_a_losing_service_loses_its_share_and_a_repeating_one_repeats(kind: str) -> None:
    losing = order_of(EnsSpec(kind, loss=Loss(0.3, 2.0)))  # type: ignore[arg-type]
    assert 60 < len(losing) < 180
    repeating = order_of(EnsSpec(kind, duplicate=0.5))  # type: ignore[arg-type]
    assert len(repeating) > 250
    assert len(set(repeating)) == 200
