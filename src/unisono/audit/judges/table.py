"""Which judges there are, which of them a journal has columns for, and one call for all."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from unisono.audit.judges.causal import judge_causal
from unisono.audit.judges.complete import judge_complete
from unisono.audit.judges.deadline import judge_deadline
from unisono.audit.judges.fifo import judge_fifo, judge_publisher_order
from unisono.audit.judges.free import judge_free
from unisono.audit.judges.kept import judge_kept
from unisono.audit.judges.linearizable import judge_linearizable
from unisono.audit.judges.once import judge_exactly_once
from unisono.audit.judges.order import judge_acyclic, judge_local, judge_pairwise
from unisono.audit.judges.realtime import judge_realtime
from unisono.audit.judges.timely import judge_timely
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, nothing
from unisono.errors import MisuseError
from unisono.model.journal import Journal


class Judge(Struct, frozen=True):
    """A judge, and what an engine has to know of it: `JUDGES["fifo"](trace)`.

    `judge` is a pure function over a trace; None says that the journal has no columns to judge this on.
    """

    judge: Callable[[Trace], Verdict | None]
    columns: tuple[str, ...] = ()
    """Each must be told by some row, else the judge has nothing to say, and need not be asked."""
    kinds: tuple[str, ...] = ()
    """Of each there must be a record, likewise."""
    of_notifications: bool = False
    """Whether it judges what subscribers were notified of: where nobody was, there is nothing to judge."""
    by_subscriber: bool = False
    """Whether in a log of notifications every violation shows in those of one subscriber, once all of them tell what
    any of them tells of their events: an engine may then ask about some subscribers at a time, and add up.
    """

    def __call__(self, trace: Trace) -> Verdict | None:
        return self.judge(trace)


JUDGES: Mapping[str, Judge] = {
    "pairwise-order": Judge(judge_pairwise, of_notifications=True),
    "local-order": Judge(judge_local, of_notifications=True),
    "acyclic": Judge(judge_acyclic, of_notifications=True),
    "fifo": Judge(judge_fifo, ("publisher", "publisher_seq"), of_notifications=True, by_subscriber=True),
    "publisher-order": Judge(
        judge_publisher_order, ("topic", "publisher", "publisher_seq"), of_notifications=True, by_subscriber=True
    ),
    "causal": Judge(judge_causal, of_notifications=True, by_subscriber=True),
    "exactly-once": Judge(judge_exactly_once, of_notifications=True, by_subscriber=True),
    "complete": Judge(judge_complete),
    "kept": Judge(judge_kept),
    "deadline": Judge(judge_deadline, ("deadline_us",), by_subscriber=True),
    "realtime": Judge(judge_realtime, kinds=("publish", "outcome"), of_notifications=True, by_subscriber=True),
    "timely": Judge(judge_timely, ("deadline_us",), ("publish",)),
    "free": Judge(judge_free, ("clock",), ("timestamp", "subscribe")),
    "linearizable": Judge(judge_linearizable, kinds=("call",)),
}
"""One door for all engines (docs/reference/audit.md, "A further judge")."""


def judge_trace(trace: Trace, names: Iterable[str] | None = None) -> list[Verdict]:
    """The verdicts of the named judges, or of all that the journal has columns for."""
    verdicts = []
    for name in JUDGES if names is None else names:
        if name not in JUDGES:
            raise MisuseError(f"there is no judge {name!r}; there are {', '.join(JUDGES)}")
        if trace.deliveries or not JUDGES[name].of_notifications:
            verdict = JUDGES[name](trace)
        else:
            verdict = nothing(name, "nobody was notified of anything")
        if verdict is not None:
            verdicts.append(verdict)
        elif names is not None:
            raise MisuseError(f"the journal has no columns to judge {name!r} on")
    return verdicts


def judge(journal: Journal, names: Iterable[str] | None = None) -> list[Verdict]:
    """`judge(read("run.jsonl"))`: one verdict per judge the journal has columns for.

    A named judge that cannot work on the journal is an error, and a promise that the journal shows no case of does not
    hold (`judged` tells it from a violated one): an unjudged promise must not look kept.
    """
    return judge_trace(Trace(journal), names)
