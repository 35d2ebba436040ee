"""What is asked of every crash run: the judges' questions, and those that only a run of real processes can be asked."""

import re

from tests.runtime.crash.harness import Run
from unisono.audit import Trace, judge_trace
from unisono.model.journal import Journal, Record

AT_ANY_TIME = ("pairwise-order", "acyclic", "publisher-order", "exactly-once")
JUDGES = (*AT_ANY_TIME, "complete", "kept")
AWAY = "published while this subscription was away"
LEFT_ALONE = re.compile(r"Traceback \(most recent|Exception in callback|exception was never retrieved|Unclosed|Fatal")


def judge(run: Run, kept: list[Record]) -> list[str]:
    """Everything that is wrong with a run that came to its end, in words."""
    journal = run.journals.journal(JUDGES, *kept)
    return [*_broken(journal, JUDGES), *broken_promises(run, journal)[:3]]


def judge_stopped(run: Run) -> list[str]:
    """The same of a run that was stopped on its way: what had not come yet might still have."""
    return _broken(run.journals.journal(AT_ANY_TIME), AT_ANY_TIME)


def _broken(journal: Journal, judges: tuple[str, ...]) -> list[str]:
    verdicts = {verdict.judge: verdict for verdict in judge_trace(Trace(journal))}
    return [f"{name}: {verdicts[name].witness}" for name in judges if not verdicts[name].holds]


def broken_promises(run: Run, journal: Journal) -> list[str]:
    """Events that a subscriber, subscribed before they were published and living to the end, was told it will not get,
    and did not get, although the broker keeps them. By clock a gap of one stamper names a span of numbers in which
    events of others lie, that come."""
    if run.plan.broker != "jetstream":
        return []
    records = journal.records
    down = {record.who: None for record in records if record.kind == "crash"}
    kept = {r.event: None for r in records if r.kind == "kept"}
    published = {r.event: r.at_us for r in records if r.kind == "publish" and r.event in kept}
    numbers: dict[str | None, dict[int, str | None]] = {}
    for record in records:
        if record.kind == "timestamp" and record.number is not None:
            numbers.setdefault(record.topic, {})[record.number] = record.event
    since = {(r.subscriber, r.topic): (r.at_us, r.who) for r in records if r.kind == "subscribe"}
    heard = {(record.subscriber, record.event) for record in records if record.kind == "deliver"}
    broken = []
    for gap in records:
        if gap.kind != "gap" or gap.note == AWAY or gap.topic in run.emptied:
            continue
        began, who = since[gap.subscriber, gap.topic]
        if who in down:
            continue
        first, last = gap.number or 0, gap.last_number or gap.number or 0  # an incarnation skips 2**52 numbers
        for number, event in numbers.get(gap.topic, {}).items():
            is_lost = first <= number <= last and (gap.subscriber, event) not in heard
            if is_lost and published.get(event, 0) > began:
                broken.append(f"{event} is kept by the broker, and {gap.subscriber} was told: {gap.note}")
    return broken


def silent_errors(run: Run) -> list[str]:
    """An error is never only a line in a log."""
    found = []
    for path in sorted(run.directory.glob("*.log")):
        text = path.read_text(errors="replace")
        match = LEFT_ALONE.search(text)
        if match is not None:
            found.append(f"{path.stem} only logs: {' | '.join(text[match.start() :].splitlines()[:40])[-600:]}")
    return found
