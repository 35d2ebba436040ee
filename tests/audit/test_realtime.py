"""The judge `realtime`: moments of calls, a tolerance, and a journal that breaks it."""

from unisono.audit import judge
from unisono.model.journal import Header, Journal, Record
from unisono.model.time import Micros


def told(*events: str, accepted: dict[str, int], published: dict[str, int], header: Header) -> Journal:
    records = [Record("publish", Micros(at), who="p", event=event) for event, at in published.items()]
    records += [
        Record("outcome", Micros(at), who="p", event=event, note="accepted ordered") for event, at in accepted.items()
    ]
    records += [
        Record("deliver", Micros(900_000), who="s", subscriber="s", event=event, position=place)
        for place, event in enumerate(events, 1)
    ]
    return Journal(header, records)


TIMES = {"accepted": {"a:1": 1_000, "b:1": 9_000}, "published": {"a:1": 0, "b:1": 7_001}}


def test_who_publishes_long_after_an_answer_is_heard_after_it() -> None:
    header = Header(tolerance_us=6_000)
    (kept,) = judge(told("a:1", "b:1", header=header, **TIMES), ["realtime"])
    assert kept.holds
    (broken,) = judge(told("b:1", "a:1", header=header, **TIMES), ["realtime"])
    assert not broken.holds
    assert broken.violations == 1
    assert "s was notified of b:1 before a:1, which had been accepted 6001 us before" in broken.witness


def test_what_is_near_together_may_come_in_either_order_and_clocks_may_differ() -> None:
    for header in (Header(tolerance_us=6_001), Header(tolerance_us=5_001, skew_us=1_000)):
        (verdict,) = judge(told("b:1", "a:1", header=header, **TIMES), ["realtime"])
        assert verdict.holds


def test_a_journal_without_a_tolerance_promises_no_such_order() -> None:
    assert [v for v in judge(told("b:1", "a:1", header=Header(), **TIMES)) if v.judge == "realtime"] == []
