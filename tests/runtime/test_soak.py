"""Nothing grows in an hour at half the maximum, whatever is restarted meanwhile, and nothing is told in two orders."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.soak import Compared, Grown, Sample, Soak, Soaked, growth

HOUR_S = 3600.0


@pytest.mark.campaign
def test_an_hour_at_half_the_maximum_leaves_nothing_and_reorders_nothing(tmp_path: Path) -> None:
    found = asyncio.run(Soak(tmp_path, HOUR_S).run())
    assert found.problems() == [], found
    assert found.restarts == 12
    assert found.compared > 0.9 * found.accepted


def test_what_grows_is_found_and_a_saw_is_not() -> None:
    saw = [Sample(float(at), (at % 10) << 20, 10, 0) for at in range(100)]
    assert growth(saw, "memory").per_hour == 0
    leak = [Sample(float(at), at << 20, 10 + at, 0) for at in range(100)]
    assert growth(leak, "memory").per_hour > 3000 << 20
    flat = Grown(10.0, 12.0, 0.0)
    grown = {"hub": {"memory": flat, "handles": flat, "log": flat}}
    row = Soaked(100.0, 10, 5, 100, 0, 100, 0, 0, {}, 0, 0, 0.0, 12, grown)
    assert row.problems() == []
    assert row._replace(grown={"hub": {"handles": Grown(10.0, 21.0, 0.0)}}).problems() == [
        "handles of hub grew from 10 to 21"
    ]
    assert row._replace(inversions=1, missing=2).problems() == ["1 inversions", "2 accepted events were not told"]
    assert row._replace(blocks=(100_000, 139_000)).problems() == []
    assert row._replace(blocks=(100_000, 141_000)).problems() == ["clients held 100000 blocks at rest, and then 141000"]
    assert row._replace(unfinished=("sessions are not closed",)).problems() == ["sessions are not closed"]


def test_two_orders_of_one_thing_are_found_and_what_will_not_come_is_no_order() -> None:
    seen = Compared()
    seen.waiting[0].extend([("a", 1), ("b", 1), ("a", 2)])
    seen.waiting[1].extend([("a", 1), ("a", 2)])
    assert seen.is_inverted
    seen.skip(1, "b", 1, 1)
    assert not seen.is_inverted
    assert seen.same == 2
    seen.waiting[0].extend([("a", 3), ("b", 2)])
    seen.waiting[1].extend([("b", 2), ("a", 3)])
    assert seen.is_inverted
