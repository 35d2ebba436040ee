"""Content over topics (paper 000, 3.3): cells are joined and left, the residual filter decides, order is kept."""

import pytest

from unisono.audit import judge
from unisono.experiments.baselines.unordered import UnorderedClient
from unisono.machine import (
    Broadcast,
    Deliver,
    Effect,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refused,
    Select,
    Selected,
    Subscribe,
    Unsubscribe,
)
from unisono.model.event import Event, Scalar
from unisono.model.grid import Axis, Cell, Grid
from unisono.model.ids import Topic
from unisono.model.journal import Journal
from unisono.model.predicate import EVERY_EVENT, parse
from unisono.model.time import Micros
from unisono.protocols.content.selector import Cells, Selector
from unisono.sim.scenario import load, play, with_options

TRADES, LOW, MIDDLE, HIGH, OTHER, QUOTES = (Topic(number) for number in (1, 10, 11, 12, 13, 2))
GRID = Grid([Axis("px", cuts=(50, 100))])
CELLS: dict[Cell, Topic] = {(0,): OTHER, (1,): LOW, (2,): MIDDLE, (3,): HIGH}
NOW = Micros(0)


def selector(where: str | None = None) -> Selector:
    made = Selector(UnorderedClient(), EVERY_EVENT if where is None else parse(where))
    made.know(TRADES, Cells(GRID, CELLS))
    return made


def event(**attributes: Scalar) -> Event:
    return Event("p", 1, "trades", b"", attributes)


def joined(effects: list[Effect]) -> list[Topic]:
    return [effect.topic for effect in effects if isinstance(effect, Join)]


def told(effects: list[Effect]) -> list[object]:
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def test_an_event_is_published_in_its_one_cell() -> None:
    machine = selector()
    for px, cell in ((49, LOW), (50, MIDDLE), (100.0, HIGH), ("x", OTHER)):
        [broadcast, _] = machine.handle(Publish(TRADES, event(px=px), 7), NOW)
        assert isinstance(broadcast, Broadcast)
        assert broadcast.topic == cell
    assert isinstance(machine.handle(Publish(QUOTES, event(px=1), 8), NOW)[0], Broadcast)


def test_an_event_no_filter_can_judge_is_refused() -> None:
    [effect] = selector().handle(Publish(TRADES, event(px=float("nan")), 7), NOW)
    assert isinstance(effect, Deliver)
    assert isinstance(effect.item, Refused)


def test_a_subscription_joins_the_cells_its_filter_meets_and_is_in_force_with_the_last() -> None:
    machine = selector("px >= 60 and px <= 120")
    assert joined(machine.handle(Subscribe((TRADES, QUOTES)), NOW)) == [MIDDLE, HIGH, QUOTES]
    assert told(machine.handle(Joined(MIDDLE), NOW)) == [Joined(MIDDLE)]
    assert told(machine.handle(Joined(HIGH), NOW)) == [Joined(HIGH), Joined(TRADES)]
    assert told(machine.handle(Joined(QUOTES), NOW)) == [Joined(QUOTES)]


def test_what_lies_in_the_cell_and_not_in_the_filter_is_dropped() -> None:
    machine = selector("px >= 60 and px <= 120")
    machine.handle(Subscribe((TRADES, QUOTES)), NOW)
    assert told(machine.handle(Heard(MIDDLE, event(px=55)), NOW)) == []
    assert told(machine.handle(Heard(MIDDLE, event(px=60)), NOW)) == [Heard(MIDDLE, event(px=60))]
    assert told(machine.handle(Heard(QUOTES, event(px=1)), NOW)) == []  # filtered without a grid, too
    row = tuple(event(px=px) for px in (60, 55, 61))
    assert told(machine.handle(Heard(MIDDLE, row, number=7), NOW)) == [
        Heard(MIDDLE, event(px=60), number=7),
        Heard(MIDDLE, event(px=61), number=9),
    ]
    assert told(machine.handle(Heard(MIDDLE, row[::2], number=7), NOW)) == [Heard(MIDDLE, row[::2], number=7)]


def test_a_new_filter_joins_before_it_leaves_and_decides_alone_when_all_is_in_force() -> None:
    machine = selector("px < 50")
    machine.handle(Subscribe((TRADES,)), NOW)
    machine.handle(Joined(LOW), NOW)
    effects = machine.handle(Select(parse("px >= 100")), NOW)
    assert joined(effects) == [HIGH]
    assert told(machine.handle(Heard(LOW, event(px=1)), NOW)) == [Heard(LOW, event(px=1))]
    effects = machine.handle(Joined(HIGH), NOW)
    assert [effect for effect in effects if isinstance(effect, Leave)] == [Leave(LOW)]
    assert told(effects) == [Joined(HIGH), Selected()]
    assert told(machine.handle(Heard(LOW, event(px=1)), NOW)) == []
    assert told(machine.handle(Heard(HIGH, event(px=100)), NOW)) == [Heard(HIGH, event(px=100))]


def test_a_filter_within_the_cells_joined_takes_over_at_once() -> None:
    machine = selector()
    machine.handle(Subscribe((QUOTES,)), NOW)
    assert told(machine.handle(Select(parse("px = 1")), NOW)) == [Selected()]
    assert told(machine.handle(Heard(QUOTES, event(px=2)), NOW)) == []


def test_leaving_a_topic_leaves_its_cells_and_ends_the_wait_for_them() -> None:
    machine = selector("px < 50")
    machine.handle(Subscribe((TRADES,)), NOW)
    machine.handle(Joined(LOW), NOW)
    machine.handle(Select(parse("px < 50 or px >= 100")), NOW)
    effects = machine.handle(Unsubscribe((TRADES,)), NOW)
    assert [effect for effect in effects if isinstance(effect, Leave)] == [Leave(LOW), Leave(HIGH)]
    assert told(effects) == [Selected()]


def test_a_cell_that_is_joined_after_its_topic_was_left_is_not_told() -> None:
    machine = selector("px < 50")
    machine.handle(Subscribe((TRADES,)), NOW)
    machine.handle(Unsubscribe((TRADES,)), NOW)
    assert told(machine.handle(Joined(LOW), NOW)) == []


def test_a_topic_left_while_its_cells_are_joined_owes_nothing() -> None:
    """The order inside makes one change after the other: a cell is joined long after its topic was left."""
    journal = play(load("content/churn"), 82)
    assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == []


@pytest.mark.parametrize("name", ["content/grid", "content/churn"])
@pytest.mark.parametrize("seed", range(8))
def test_scenarios_keep_order_and_lose_nothing_that_matches(name: str, seed: int) -> None:
    journal = play(load(name), seed)
    assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == []
    assert any(record.kind == "deliver" for record in journal.records)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["content/grid", "content/churn"])
def test_hundreds_of_seeds_keep_order_and_lose_nothing_that_matches(name: str) -> None:
    for seed in range(400):
        journal = play(load(name), seed)
        assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == [], seed


def test_the_grid_changes_what_is_heard_beneath_and_not_what_is_delivered() -> None:
    """Every subscriber gets the same set of events with the grid and without it."""
    scenario = load("content/grid")
    bare = with_options(scenario, {"deployment.topics": [{"name": name} for name in ("t0", "t1", "t2")]})

    def delivered(journal: Journal) -> list[tuple[str, str]]:
        return sorted((r.subscriber or "", r.event or "") for r in journal.records if r.kind == "deliver")

    with_grid, without = delivered(play(scenario, 3)), delivered(play(bare, 3))
    assert with_grid == without
    assert len(with_grid) > 20


def test_the_judge_sees_an_event_that_matched_and_never_came() -> None:
    journal = play(load("content/grid"), 1)
    lost = next(record for record in journal.records if record.kind == "deliver")
    journal.records.remove(lost)
    [verdict] = judge(journal, ["complete"])
    assert not verdict.holds
    assert str(lost.event) in (verdict.witness or "")
