"""Debts of subscriptions by content: what a filter selects is owed, what a cut covers is excused, and nothing more."""

import pytest

from unisono.audit import Verdict, judge
from unisono.model.journal import Header, Journal, Record


def verdict(*records: Record) -> Verdict:
    (found,) = judge(Journal(Header(), [*records, Record("end")]), ("complete",))
    return found


def subscribed(where: str | None = None, topic: str = "t") -> Record:
    return Record("subscribe", who="s", subscriber="s", topic=topic, number=0, note=where)


def published(number: int, note: str | None = None, publisher: str = "p") -> Record:
    event = f"{publisher}:{number}"
    return Record("publish", event=event, topic="t", publisher=publisher, publisher_seq=number, note=note)


def delivered(number: int, publisher: str = "p") -> Record:
    event = f"{publisher}:{number}"
    return Record(
        "deliver", subscriber="s", event=event, position=number, topic="t", publisher=publisher, publisher_seq=number
    )


def cut(**last: int) -> Record:
    return Record("cut", who="s", subscriber="s", clock=last)


def test_only_what_the_filter_selects_is_owed() -> None:
    events = (published(1, '{"px": 5}'), published(2, '{"px": 50}'), published(3), published(4, '{"px": "5"}'))
    assert verdict(subscribed("px > 10"), *events, delivered(2)).holds
    lost = verdict(subscribed("px > 10"), *events)
    assert (lost.violations, "p:2" in lost.witness) == (1, True)


def test_without_a_filter_everything_is_owed() -> None:
    assert verdict(subscribed(), published(1, '{"px": 5}'), published(2)).violations == 2


def test_a_new_filter_owes_from_its_own_record_on() -> None:
    again = (Record("unsubscribe", who="s", subscriber="s", topic="t"), subscribed("px < 10"))
    records = (subscribed("px > 10"), published(1, '{"px": 50}'), *again, published(2, '{"px": 50}'))
    assert not verdict(*records).is_violated
    assert verdict(*records, published(3, '{"px": 1}')).violations == 1


def test_a_pattern_owes_every_topic_it_covers() -> None:
    assert verdict(subscribed(topic="*"), published(1)).violations == 1
    assert not verdict(subscribed(topic="u.*"), published(1)).is_violated


def test_attributes_that_cannot_be_read_excuse_nobody() -> None:
    assert verdict(subscribed("px > 10"), published(1, "{")).violations == 1


@pytest.mark.parametrize(
    ("records", "missing"),
    [
        ((published(1), delivered(1), cut(p=1), published(2), published(3)), 0),
        ((published(1), published(2), cut(p=2)), 2),  # the notice says that both could be heard
        ((published(1), delivered(1), published(2), cut(p=1), published(3), delivered(3)), 0),
        ((published(1), cut(p=0), published(2), delivered(2), published(3)), 1),  # heard again, then lost
        ((cut(p=0), published(1), delivered(1), published(2), cut(p=1), published(3)), 0),
        ((cut(q=5), published(1), published(2)), 0),  # nobody could name it when the link was lost
        ((cut(q=5), published(1), published(2), delivered(2)), 1),  # but before it was heard
        ((cut(q=5), published(1), cut(p=0), published(2), delivered(2)), 0),
        ((cut(q=5), published(1), delivered(1), published(2)), 1),
        ((published(1),), 1),
    ],
)
def test_a_cut_excuses_what_could_not_be_heard_until_it_could_again(records: tuple[Record, ...], missing: int) -> None:
    assert verdict(subscribed(), *records).violations == missing
