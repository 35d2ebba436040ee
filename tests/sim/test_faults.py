"""Faults: they happen when, where and as often as the scenario says."""

import pytest

from unisono.errors import MisuseError
from unisono.model.journal import Record
from unisono.sim import scenario


def played(seed: int = 2, **fault: object) -> list[Record]:
    options = {"faults": [fault], "workload.churn_per_s": 0.0}
    return scenario.play(scenario.with_options(scenario.load("fifo/lossy"), options), seed).records


def test_a_crash_happens_at_its_time_and_the_host_is_back_after_its_time_down() -> None:
    records = played(kind="crash", who="c3", at="2500ms", effect=1, down="700ms")
    [crash] = [record for record in records if record.kind == "crash"]
    [restart] = [record for record in records if record.kind == "restart"]
    assert crash.who == "c3"
    assert 2_500_000 <= crash.at_us < 3_000_000  # at its next effect, with a hundred events a second under way
    assert restart.at_us - crash.at_us == 700_000
    meanwhile = [r for r in records if r.who == "c3" and crash.at_us < r.at_us < restart.at_us]
    assert meanwhile == []


def test_a_crash_without_return_is_for_good() -> None:
    records = played(kind="crash", who="c3", at="2500ms", back=False)
    assert [record.kind for record in records if (record.who or "").startswith("c3")][-1] == "crash"


def test_faults_repeat_at_random_moments_within_their_time() -> None:
    crashes = [r for r in played(kind="crash", at="2s", within="3s", times=6, down="10ms") if r.kind == "crash"]
    assert len(crashes) >= 4  # two may meet at the same host
    assert len({record.who for record in crashes}) > 1
    assert max(r.at_us for r in crashes) - min(r.at_us for r in crashes) > 500_000


def test_seeds_choose_other_victims() -> None:
    victims = {next(r.who for r in played(seed, kind="crash", at="2s") if r.kind == "crash") for seed in range(10)}
    assert len(victims) > 2


def test_a_paused_host_is_silent_and_then_goes_on() -> None:
    records = played(kind="pause", who="c1", at="3s", lasts="600ms")
    mine = [r.at_us for r in records if r.who == "c1" and r.kind in ("deliver", "gap")]
    assert [time for time in mine if 3_000_000 < time < 3_600_000] == []
    assert [time for time in mine if time == 3_600_000]


def test_clocks_are_off_by_their_own_amounts() -> None:
    notes = [r.note for r in played(kind="skew", by="1s") if r.kind == "fault"]
    assert len(notes) == len(set(notes)) == 5


@pytest.mark.parametrize("how", ["set back", "cut", "lost"])
def test_data_is_set_back_cut_or_lost_and_a_person_lets_the_node_go_on(how: str) -> None:
    fault = {"kind": "rollback", "who": "n*", "how": how, "at": "4s", "age": "1s", "down": "300ms"}
    found = scenario.with_options(scenario.load("sequencer/forgotten"), {"faults": [fault], "options.nodes_max": 1})
    records = scenario.play(found, 1).records
    [crash] = [record for record in records if record.kind == "crash"]
    [restart] = [record for record in records if record.kind == "restart"]
    assert 5_000_000 <= crash.at_us == restart.at_us - 300_000
    assert restart.note == f"with data that was {how}"
    numbers = [r.number for r in records if r.kind == "deliver" and r.number is not None and r.at_us > restart.at_us]
    assert max(numbers) > 2**30, "numbers go on where no earlier life can have been"


def test_what_keeps_no_data_cannot_lose_it() -> None:
    with pytest.raises(MisuseError, match="no data that could be set back"):
        played(kind="rollback", who="c3", at="2s")


@pytest.mark.parametrize("kind", ["partition", "clog", "swizzle-clog", "pause", "skew"])
def test_every_fault_is_in_the_journal(kind: str) -> None:
    [*_, last] = [record for record in played(kind=kind, who="c[01]", at="2s") if record.kind == "fault"]
    assert last.at_us == 2_000_000
    assert last.note
