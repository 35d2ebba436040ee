"""The planner of turns: durable before visible, quiet inputs held back, one acknowledgement, timers, confirmations."""

from typing import Any

from tests.runtime.toy import Add, Adder, Break, Later, Look, Never, Note
from unisono.machine import PERSIST, Broadcast, Deliver, Effect, Fired, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.structures.sessions import BroadcastsDone, Frame, Handled, Sessions
from unisono.turns import Logged, TurnBounds, TurnPlanner

PEER = Address("peer")


def planner(machine: Any = None, is_logged: bool = True, **bounds: int) -> TurnPlanner:
    return TurnPlanner(machine or Adder(), is_logged=is_logged, is_confirmed=True, bounds=TurnBounds(**bounds))


def turn(planner: TurnPlanner, *messages: Any, now: int = 1) -> tuple[list[Any], list[Effect]]:
    """The inputs that have to be durable, and what leaves then."""
    for message in messages:
        planner.post(message)
    commit = [logged.message for logged in planner.handle(Micros(now))]
    return commit, planner.release()


def test_inputs_of_one_turn_are_one_commit_at_one_moment() -> None:
    turns = planner()
    turns.post(Add(1))
    turns.post(Add(2))
    assert turns.handle(Micros(7)) == [Logged(Micros(7), Add(1)), Logged(Micros(7), Add(2))]
    assert turns.release() == [Deliver(1), Deliver(3)]
    assert turns.release() == [], "each effect leaves once"


def test_a_turn_takes_a_bounded_number_of_inputs() -> None:
    turns = planner(inputs_max=2, queue_max=4)
    assert turn(turns, Add(1), Add(1), Add(1), Add(1), Add(1))[0] == [Add(1), Add(1)]
    assert (turns.is_full, turns.is_roomy, len(turns.waiting)) == (False, False, 3)
    assert len(turn(turns)[0]) == 2
    assert turns.is_roomy


def test_what_shows_nothing_is_held_back_and_precedes_what_depends_on_it() -> None:
    turns = planner()
    assert turn(turns, Note(1)) == ([], [])
    assert turn(turns, Later("nobody sees a timer", 10)) == ([], [])
    assert turn(turns, Look()) == ([Note(1)], [Deliver(1)])
    assert turn(turns, Look()) == ([], [Deliver(1)])


def test_what_is_held_back_is_bounded() -> None:
    turns = planner(quiet_inputs_max=2)
    assert [turn(turns, Note(each))[0] for each in range(3)] == [[], [], [Note(0), Note(1), Note(2)]]


def test_a_machine_without_a_log_commits_nothing() -> None:
    assert turn(planner(is_logged=False), Add(1)) == ([], [Deliver(1)])


def test_time_does_not_go_back() -> None:
    turns = planner()
    turn(turns, Add(1), now=9)
    turn(turns, Add(1), now=3)
    assert turns.machine.times == [9, 9]  # type: ignore[attr-defined]


def test_of_the_acknowledgements_of_a_turn_the_last_says_it_all_and_leaves_last() -> None:
    me = Address("me")
    sessions = Sessions(Adder(), me, (PEER, Address("other")), Add, Add)
    frames = [Frame(PEER, number, Add(number)) for number in (1, 2, 3)]
    commit, effects = turn(planner(sessions), *frames, Frame(Address("other"), 1, Add(9)), Frame(PEER, 7, Add(1)))
    assert len(commit) == 4
    gone_back = Send(PEER, Handled(me, 3, resend=True))
    acknowledged = [Send(PEER, Handled(me, 3)), Send(Address("other"), Handled(me, 1))]
    assert effects == [Deliver(1), Deliver(3), Deliver(6), Deliver(15), gone_back, *acknowledged]


def test_a_timer_takes_its_place_after_what_waits_and_not_if_it_was_cancelled_or_moved() -> None:
    turns = planner()
    turn(turns, Later("a", 5), Later("b", 5), Later("c", 5), now=10)
    assert turns.alarm == 15
    turns.ring(Micros(14))
    assert not turns.waiting
    turns.post(Never("a"))
    turns.post(Later("b", 50))
    turns.ring(Micros(15))
    assert turn(turns, now=16)[1] == [Deliver("c")]
    assert turns.alarm == 66
    turns.ring(Micros(66))
    assert turn(turns, now=66)[1] == [Deliver("b")]


def test_places_of_moved_timers_are_cleared_away() -> None:
    turns = planner()
    for at in range(1000):
        turn(turns, Later("moved again and again", at), now=1)
    assert len(turns._heap) < 100


def test_a_timer_that_fires_is_logged_as_such() -> None:
    class Lasting(Adder):
        def handle(self, message: Any, now: Micros) -> list[Effect]:
            return [PERSIST, *super().handle(message, now)]

    turns = planner(Lasting())
    turn(turns, Later("x", 1), now=1)
    turns.ring(Micros(2))
    assert turn(turns, now=2) == ([Later("x", 1), Fired("x")], [Deliver("x")])


def test_broadcasts_are_done_when_the_last_item_of_their_turn_is() -> None:
    class Joining:
        """Every two broadcasts are one item."""

        def gather(self, inputs: list[Any]) -> list[Any]:
            return inputs

        def arrange(self, effects: list[Effect]) -> list[Effect]:
            return [effect for effect in effects if isinstance(effect, Broadcast)][::2]

    turns = TurnPlanner(Adder(broadcasts=True), is_logged=True, is_confirmed=True, arrangement=Joining())
    assert len(turn(turns, Add(1), Add(2), Add(3), Add(4))[1]) == 2
    assert len(turn(turns, Add(5))[1]) == 1
    assert [turns.confirmed(1), list(turns.waiting)] == [False, []]
    assert [turns.confirmed(1), turns.confirmed(1)] == [True, True]
    assert list(turns.waiting) == [BroadcastsDone(4), BroadcastsDone(1)]
    assert Broadcast(Topic(1), Add(1)) == Adder(broadcasts=True).handle(Add(1), Micros(0))[2]


def test_nothing_of_a_broken_turn_leaves() -> None:
    turns = planner()
    turns.post(Add(1))
    turns.post(Break())
    turns.post(Add(2))
    try:
        turns.handle(Micros(1))
    except Exception:
        turns.post(Look())
        assert turns.drop() == 1
    assert turns.release() == []
