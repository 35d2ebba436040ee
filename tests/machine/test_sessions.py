"""Link sessions: FIFO, exactly once, whatever the links lose, repeat and reorder, and whenever either end crashes."""

import pytest

from tests.machine.toys import Counting
from unisono.errors import InvariantError
from unisono.machine import Broadcast, Deliver, Fired, Machine, Publish, Restarted, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.sim.faults import Crash, schedule_faults
from unisono.sim.links import LinkSpec, Loss, Uniform
from unisono.sim.spec import Span
from unisono.sim.world import World
from unisono.structures.sessions import (
    BroadcastsDone,
    Forgotten,
    Frame,
    Handled,
    LinkFree,
    LinkFull,
    Reconnected,
    Sessions,
    SessionsConfig,
)

A, B, T = Address("a"), Address("b"), Topic(0)
BAD_LINK = LinkSpec(Uniform(Span(100), Span(300_000)), fifo=False, loss=Loss(0.2, 3.0), duplicate=0.2)
CONFIG = SessionsConfig(resend_after_us=Micros(100_000), window_frames_max=4)


def two_ends(world: World, snapshot_every: int = 0) -> None:
    for me, peer in ((A, B), (B, A)):
        world.add(
            me,
            lambda name, me=me, peer=peer: Sessions(Counting(peer), me, (peer,), int, int, CONFIG),
            snapshot_every=snapshot_every,
        )


def counting(world: World, address: Address) -> Counting:
    machine: Machine = world.host(address).machine
    assert isinstance(machine, Sessions)
    assert isinstance(machine.inside, Counting)
    return machine.inside


def check_both_ways(world: World) -> None:
    """Each end has, in order and once, exactly what the other remembers having sent."""
    for here, there in ((A, B), (B, A)):
        assert counting(world, there).received == list(range(1, counting(world, here).sent + 1))


@pytest.mark.parametrize("seed", range(40))
def test_fifo_exactly_once_over_bad_links_and_crashes(seed: int) -> None:
    world = World(seed, links=BAD_LINK)
    two_ends(world, snapshot_every=seed % 3 * 5)
    for i in range(30):
        world.at(20_000 * i, world.host(A).tell, Publish(T, i))
        world.at(20_000 * i + 5_000, world.host(B).tell, Publish(T, i))
    schedule_faults(world, (Crash(within=Span(600_000), times=6, down=Span(50_000)),))
    world.run(until=120_000_000)
    assert world.is_idle
    assert counting(world, A).sent > 10
    assert sum(record.kind == "crash" for record in world.records) >= 2
    check_both_ways(world)


@pytest.mark.parametrize("victim", [A, B])
def test_a_crash_between_any_two_effects_loses_and_repeats_nothing(victim: Address) -> None:
    def play(crash_at: int | None) -> World:
        world = World(1, links=LinkSpec(Uniform(Span(100), Span(2_000)), fifo=False))
        two_ends(world)
        for i in range(4):
            world.at(1_000 * i, world.host(A).tell, Publish(T, i))
            world.at(1_000 * i, world.host(B).tell, Publish(T, i))
        host = world.host(victim)
        host.crash_at = crash_at
        host.on_crash = lambda: world.after(700, host.restart)
        world.run(until=60_000_000)
        assert world.is_idle
        return world

    effects = play(None).host(victim).effects
    assert effects > 25
    for index in range(1, effects + 1):
        world = play(index)
        assert any(record.kind == "crash" for record in world.records)
        check_both_ways(world)


def test_broadcasts_leave_at_least_once_and_in_order() -> None:
    """What was numbered before the crash is broadcast again after it unless it was confirmed."""
    machine = Sessions(Counting(B), A, (B,), int, int)
    log = [(Publish(T, "x"), Micros(0)), (Publish(T, "y"), Micros(1)), (BroadcastsDone(1), Micros(2))]
    for message, now in log:
        machine.handle(message, now)
    again = Sessions(Counting(B), A, (B,), int, int)
    again.restore(machine.snapshot())
    for restarted in (machine, again):
        broadcasts = [e for e in restarted.handle(Restarted(), Micros(9)) if isinstance(e, Broadcast)]
        assert broadcasts == [Broadcast(T, 2)]


def test_a_confirmation_nobody_waits_for_is_our_own_mistake() -> None:
    with pytest.raises(InvariantError):
        Sessions(Counting(B), A, (B,), int, int).handle(BroadcastsDone(1), Micros(0))


def test_the_machine_inside_is_told_when_its_link_is_full_and_free_again() -> None:
    told = []

    class Watching(Counting):
        def handle(self, message, now):  # type: ignore[no-untyped-def]
            if isinstance(message, LinkFull | LinkFree):
                told.append(message)
            return super().handle(message, now)

    machine = Sessions(Watching(B), A, (B,), int, int, SessionsConfig(outbox_max=4))
    for n in range(6):
        machine.handle(Publish(T, n), Micros(n))
    assert told == [LinkFull(B)]
    machine.handle(Handled(B, 3), Micros(10))
    assert told == [LinkFull(B)]
    machine.handle(Handled(B, 4), Micros(11))
    assert told == [LinkFull(B), LinkFree(B)]


def test_a_restart_remembers_that_a_link_is_full() -> None:
    """Otherwise the machine inside, which remembers it too, would never hear that it is free again."""
    told = []

    class Watching(Counting):
        def handle(self, message, now):  # type: ignore[no-untyped-def]
            if isinstance(message, LinkFull | LinkFree):
                told.append(message)
            return super().handle(message, now)

    config = SessionsConfig(outbox_max=4)
    before, after = (Sessions(Watching(B), A, (B,), int, int, config) for _ in range(2))
    for n in range(6):
        before.handle(Publish(T, n), Micros(n))
    after.restore(before.snapshot())
    assert told == [LinkFull(B)]
    after.handle(Publish(T, 6), Micros(10))
    after.handle(Handled(B, 7), Micros(11))
    assert told == [LinkFull(B), LinkFree(B)]


def test_a_frame_out_of_turn_is_asked_for_again_and_not_kept() -> None:
    machine = Sessions(Counting(B), A, (B,), int, int)
    assert machine.handle(Frame(B, 2, 20), Micros(0)) == [Send(B, Handled(A, 0, resend=True))]
    machine.handle(Frame(B, 1, 10), Micros(1))
    machine.handle(Frame(B, 2, 20), Micros(2))
    assert machine.handle(Frame(B, 1, 10), Micros(3)) == [Send(B, Handled(A, 2))]
    assert isinstance(machine.inside, Counting)
    assert machine.inside.received == [10, 20]


def test_a_peer_that_comes_back_is_fed_by_its_acknowledgements_a_window_at_a_time() -> None:
    machine = Sessions(Counting(B), A, (B,), int, int, SessionsConfig(window_frames_max=4))

    def frames(message: object) -> list[int]:
        effects = machine.handle(message, Micros(0))
        return [e.message.number for e in effects if isinstance(e, Send) and isinstance(e.message, Frame)]

    left = [number for n in range(10) for number in frames(Publish(T, n))]
    assert left == [1, 2, 3, 4]
    assert frames(Handled(B, 0, resend=True)) == [1, 2, 3, 4]
    assert frames(Handled(B, 0, resend=True)) == [], "the same question twice is one question"
    assert frames(Handled(B, 3)) == [5, 6, 7]
    assert frames(Handled(B, 7)) == [8, 9, 10]
    assert frames(Handled(B, 10)) == []
    assert frames(Publish(T, 11)) == [11]


def test_the_timer_sends_again_only_when_acknowledgements_have_stopped() -> None:
    machine = Sessions(Counting(B), A, (B,), int, int)
    for n in range(3):
        machine.handle(Publish(T, n), Micros(0))

    def frames(message: object) -> list[int]:
        effects = machine.handle(message, Micros(0))
        return [e.message.number for e in effects if isinstance(e, Send) and isinstance(e.message, Frame)]

    frames(Handled(B, 1))
    assert frames(Fired("session b")) == []
    assert frames(Fired("session b")) == [2, 3]
    frames(Handled(B, 2))
    assert frames(Reconnected(B)) == [3], "a new connection does not wait"


def test_a_peer_that_knows_more_of_us_than_we_do_says_so() -> None:
    """A node that lost its log, and one that lost only what it had handled; each hears it at its next connection."""

    def talk(ends: dict[Address, Sessions], first: Send) -> list[object]:
        """Hands letters over until nobody says anything more; returns what was delivered to drivers."""
        letters, delivered = [first], []
        for _ in range(100):
            if not letters:
                return delivered
            letter = letters.pop(0)
            for effect in ends[letter.to].handle(letter.message, Micros(1)):
                letters += [effect] if isinstance(effect, Send) else []
                delivered += [effect.item] if isinstance(effect, Deliver) else []
        return delivered

    ends = {me: Sessions(Counting(peer), me, (peer,), int, int) for me, peer in ((A, B), (B, A))}
    for n in range(3):
        (frame,) = [e for e in ends[A].handle(Publish(T, n), Micros(0)) if isinstance(e, Send)]
        assert not [item for item in talk(ends, frame) if isinstance(item, Forgotten)]
    for forgetful, knowing in ((A, B), (B, A)):
        lost = {**ends, forgetful: Sessions(Counting(knowing), forgetful, (knowing,), int, int)}
        (stand, *_) = lost[knowing].handle(Reconnected(forgetful), Micros(2))
        assert isinstance(stand, Send)
        assert [type(item) for item in talk(lost, stand)] == [Forgotten]
