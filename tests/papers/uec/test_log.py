"""Operations that arrive in any order stand in that of their keys; what that costs is counted (thesis, section 4.3)."""

from tests.papers.uec.net import Net
from unisono.model.time import Micros
from unisono.protocols.uec.config import UecConfig
from unisono.protocols.uec.log import KeyedLog

RULES = ("UEC-LOG", "UEC-HOLD", "UEC-SYNC")
SECOND = 1_000_000


def test_the_example_of_the_thesis_is_two_fifths_or_four_fifths() -> None:
    """R1: p2 numbers 2, 5, 8; then 3 of p3 and 1 of p1 arrive. What its example counts is not what it defines."""
    log: KeyedLog[tuple[int]] = KeyedLog()
    for number in (2, 5, 8, 3, 1):
        log.add((number,), str(number), Micros(0))
    counts = log.rollbacks
    assert log.applied == ["1", "2", "3", "5", "8"]
    assert (counts.arrivals, counts.with_undo, counts.undone, counts.undos) == (5, 2, 4, 6)


def test_the_least_of_the_keys_of_an_operation_is_its_place() -> None:
    log: KeyedLog[tuple[int]] = KeyedLog()
    for number, name in ((4, "a"), (6, "b"), (8, "a"), (9, "c"), (2, "c")):
        log.add((number,), name, Micros(0))
    assert log.applied == ["c", "a", "b"]
    assert log.rollbacks.arrivals == 3


def test_what_is_held_back_is_applied_in_order_and_costs_nothing() -> None:
    log: KeyedLog[tuple[int]] = KeyedLog(Micros(100), hold_max=3)
    for at, number in ((0, 5), (10, 3), (20, 4)):
        assert log.add((number,), str(number), Micros(at)) == []
    assert [change.operation for change in log.add((9,), "9", Micros(30))] == ["3"], "there are too many"
    assert [change.operation for change in log.release(Micros(100))] == ["4", "5"], (
        "all up to what was held long enough"
    )
    assert log.rollbacks.undos == 0


def share_that_takes_others_back(sync: bool, hold_us: int = 0) -> float:
    net = Net(2, 6, UecConfig(sync=sync, hold_us=Micros(hold_us)))
    for turn, at in enumerate(range(0, 10 * SECOND, 100_000)):
        net.publish(f"s{turn % 6}", at)
    net.run(30 * SECOND)
    counts = [site.log.rollbacks for site in net.sites.values()]
    return sum(each.with_undo for each in counts) / sum(each.arrivals for each in counts)


def test_counters_that_follow_each_other_roll_back_less() -> None:
    """Without, they drift apart like random walks, and the slower ones number what belongs before all others."""
    assert share_that_takes_others_back(sync=True) < share_that_takes_others_back(sync=False) / 2


def test_holding_back_helps_where_counters_follow_each_other() -> None:
    """R6: "a buffering technique is meaningless for UEC": with SYNC it is not, without it nothing helps."""
    assert share_that_takes_others_back(sync=True, hold_us=100_000) < share_that_takes_others_back(sync=True) / 2
    assert share_that_takes_others_back(sync=False, hold_us=100_000) > share_that_takes_others_back(sync=False) / 2


def test_timestamps_of_the_chain_are_compared_number_by_number() -> None:
    """R5: definition 3 cannot compare {T: n, T': 1} with {T: n+1}, so two replicas may apply them either way."""
    first: KeyedLog[tuple[int, ...]] = KeyedLog()
    second: KeyedLog[tuple[int, ...]] = KeyedLog()
    operations: list[tuple[tuple[int, ...], str]] = [((3,), "n"), ((3, 1), "n, 1"), ((4,), "n+1")]
    for log, order in ((first, operations), (second, operations[::-1])):
        for key, name in order:
            log.add(key, name, Micros(0))
    assert first.applied == second.applied == ["n", "n, 1", "n+1"]
