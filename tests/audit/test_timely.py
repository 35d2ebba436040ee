"""`timely`: events have deadlines of their own, counted from their publication."""

from pathlib import Path

import pytest

from unisono.audit.engines import examine_file
from unisono.audit.judges.table import judge
from unisono.audit.verdict import Verdict
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record, encode_line


def journal(*records: Record, skew_us: int = 0) -> Journal:
    return Journal(Header(promises=("timely",), skew_us=skew_us), list(records))


PUBLISHED = Record("publish", 100, "p", event="p:1", published_us=100, deadline_us=600)
TOLD = Record("deliver", 0, "s", subscriber="s", event="p:1", position=1, delivered_us=600)
LATE = Record("deliver", 0, "s", subscriber="s", event="p:1", position=1, delivered_us=650)


def verdict(*records: Record, skew_us: int = 0) -> Verdict:
    (found,) = judge(journal(*records, skew_us=skew_us), ["timely"])
    return found


def test_who_is_told_in_time_is_told_in_time() -> None:
    assert verdict(PUBLISHED, TOLD) == Verdict("timely", holds=True)


def test_a_late_notification_is_a_violation() -> None:
    found = verdict(PUBLISHED, LATE)
    assert (found.holds, found.violations) == (False, 1)
    assert "50 us after its deadline of 600 us" in found.witness


def test_clocks_may_be_apart_by_what_the_journal_says() -> None:
    assert verdict(PUBLISHED, LATE, skew_us=50).holds
    assert not verdict(PUBLISHED, LATE, skew_us=49).holds
    assert "50 us apart" in verdict(PUBLISHED, LATE, skew_us=50).witness


def test_a_late_one_that_is_marked_or_told_of_is_none() -> None:
    tag = Record("tag", 0, "s", subscriber="s", event="p:1", position=1, delivered_us=900)
    gap = Record("gap", 900, "s", subscriber="s", event="p:1", note="late")
    on_time = Record("deliver", 0, "r", subscriber="r", event="p:1", position=1, delivered_us=300)
    assert verdict(PUBLISHED, tag, gap, on_time).holds


def test_nothing_is_judged_where_no_event_has_a_deadline() -> None:
    with pytest.raises(MisuseError, match="no columns"):
        verdict(Record("publish", 100, "p", event="p:1"), TOLD)
    assert not verdict(PUBLISHED).judged


@pytest.mark.parametrize("engine", ["python", "arrow"])
@pytest.mark.parametrize(("told", "holds"), [(TOLD, True), (LATE, False)])
def test_engines_agree(engine: str, told: Record, holds: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(map(encode_line, (journal().header, PUBLISHED, told))))
    report = examine_file(path, engine)[1]
    assert [found.holds for found in report.verdicts if found.judge == "timely"] == [holds]
