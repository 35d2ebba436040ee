"""What is known of an event is known from any of its rows: no judge needs it repeated in every subscriber's."""

from unisono.audit import judge, measure
from unisono.audit.trace import Trace
from unisono.model.journal import Header, Journal, Record


def verdicts(records: list[Record]) -> dict[str, int]:
    return {verdict.judge: verdict.violations for verdict in judge(Journal(Header(), records))}


def test_publisher_and_clock_told_at_one_subscriber_judge_the_others() -> None:
    told = [
        Record(subscriber="s", event="a", position=1, publisher="p", publisher_seq=1),
        Record(subscriber="s", event="b", position=2, publisher="p", publisher_seq=2, clock={"p": 1}),
    ]
    silent = [Record(subscriber="t", event="b", position=1), Record(subscriber="t", event="a", position=2)]
    found = verdicts([*told, *silent])
    assert (found["fifo"], found["causal"]) == (1, 1)


def test_topic_and_number_told_at_one_subscriber_count_for_the_others() -> None:
    told = [Record(subscriber="s", event=e, position=n, topic="T", number=n) for n, e in enumerate("abc", 1)]
    silent = [Record(subscriber="t", event=e, position=n) for n, e in enumerate("ac", 1)]
    assert verdicts([*told, *silent])["complete"] == 1
    assert verdicts([*told, *silent, Record("gap", subscriber="t", event="b")])["complete"] == 0


def test_the_moment_of_publication_told_once_times_every_delivery() -> None:
    rows = [
        Record(subscriber="s", event="a", position=1, published_us=100, delivered_us=150),
        Record(subscriber="t", event="a", position=1, delivered_us=400),
    ]
    metrics = measure(Trace(Journal(Header(), rows)))
    assert (metrics["latency_p50_us"], metrics["latency_p99_us"]) == (50, 300)
