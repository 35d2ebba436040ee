"""Which judges there are, which of them a journal has columns for, and one call for all."""

from collections.abc import Callable, Iterable, Mapping

from unisono.audit.causal import judge_causal
from unisono.audit.complete import judge_complete
from unisono.audit.deadline import judge_deadline
from unisono.audit.fifo import judge_fifo, judge_publisher_order
from unisono.audit.free import judge_free
from unisono.audit.kept import judge_kept
from unisono.audit.once import judge_exactly_once
from unisono.audit.order import judge_acyclic, judge_local, judge_pairwise
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, nothing
from unisono.errors import MisuseError
from unisono.model.journal import Journal

Judge = Callable[[Trace], Verdict | None]
"""A pure function over a trace; None says that the journal has no columns to judge this on."""

JUDGES: Mapping[str, Judge] = {
    "pairwise-order": judge_pairwise,
    "local-order": judge_local,
    "acyclic": judge_acyclic,
    "fifo": judge_fifo,
    "publisher-order": judge_publisher_order,
    "causal": judge_causal,
    "exactly-once": judge_exactly_once,
    "complete": judge_complete,
    "kept": judge_kept,
    "deadline": judge_deadline,
    "free": judge_free,
}

OF_NOTIFICATIONS = ("pairwise-order", "local-order", "acyclic", "fifo", "publisher-order", "causal", "exactly-once")
"""Judges of what subscribers were notified of: where nobody was, they have nothing to judge."""


def judge_trace(trace: Trace, names: Iterable[str] | None = None) -> list[Verdict]:
    """The verdicts of the named judges, or of all that the journal has columns for."""
    verdicts = []
    for name in JUDGES if names is None else names:
        if name not in JUDGES:
            raise MisuseError(f"there is no judge {name!r}; there are {', '.join(JUDGES)}")
        if trace.deliveries or name not in OF_NOTIFICATIONS:
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
