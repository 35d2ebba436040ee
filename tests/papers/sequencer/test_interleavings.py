"""All interleavings of small stars (spec sections 12 and 15, [X]), each space to its end: what goes wrong in any order
of arrival goes wrong here. `make campaign` explores the larger spaces.

That these checks can fail is shown by mutants: `tests/mutants/explored.toml` plants the weaker rules of the spec.
"""

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.stars import GIVE_UP, HOMES, STAR, Case, D, T, V, X, Y, explored
from unisono.machine import Subscribe, Unsubscribe
from unisono.protocols.sequencer.config import SequencerConfig

RULES = ("D1", "D4", "E2")

EARLY = SequencerConfig()
STAMP = replace(EARLY, early=False)
MODES = {
    "full": replace(STAMP, encoding="full"),
    "delta": STAMP,
    "full shared_subscriptions_min 1": replace(STAMP, encoding="full", shared_subscriptions_min=1),
    "delta shared_subscriptions_min 1": replace(STAMP, shared_subscriptions_min=1),
    "early full": replace(EARLY, encoding="full"),
    "early delta": EARLY,
    "early delta shared_subscriptions_min 1": replace(EARLY, shared_subscriptions_min=1),
}
PUBLISHED = {
    "stamp full": MODES["full"],
    "stamp delta": MODES["delta"],
    "early delta": EARLY,
}
STATES_MAX, CAMPAIGN_STATES_MAX = 20_000, 10_000_000

JOIN_X, JOIN_T, JOIN_BOTH, LEAVE_X = Subscribe((X,)), Subscribe((T,)), Subscribe((X, T)), Unsubscribe((X,))
THREE = HOMES | {D: "hub"}
FOUR = {T: "r1", Y: "r2", X: "r3", V: "hub"}
LINE: dict[str, str | None] = {"hub": None, "r1": "hub", "r2": "r1"}

SMALL = {
    "join": Case({"s": ((X,), [JOIN_T])}),
    "leave one, join the other": Case({"s": ((X,), [LEAVE_X, JOIN_T])}),
    "static": Case({}, "xxttd", ((X, T, D),) * 2, THREE),
    "join on a line": Case({"s": ((X,), [JOIN_T])}, tree=LINE),
}
LARGER = {
    "join both": Case({"s": ((), [JOIN_BOTH])}),
    "join, x x t": Case({"s": ((X,), [JOIN_T])}, "xxt"),
    "join, x t t": Case({"s": ((X,), [JOIN_T])}, "xtt"),
    "leave and come back": Case({"s": ((X, T), [LEAVE_X, JOIN_X])}),
    "leave and join both": Case({"s": ((X,), [LEAVE_X, JOIN_BOTH])}),
    "join beside two others": Case({"s": ((T,), [JOIN_X])}, "xxt", ((X, T),) * 2),
    "join with a third topic": Case({"s": ((X,), [JOIN_T])}, "xtd", ((X, T, D),), THREE),
    "join, leave, come back": Case({"s": ((X,), [JOIN_T, LEAVE_X, JOIN_X])}, "xxt"),
    "leave and come back on a line": Case({"s": ((X, T), [LEAVE_X, JOIN_X])}, tree=LINE),
    "crosswise joins": Case({"s": ((X,), [JOIN_T]), "r": ((T,), [JOIN_X])}),
    "one leaves, one joins": Case({"s": ((X,), [LEAVE_X, JOIN_T]), "z": ((X,), [JOIN_T])}, "xtt", ()),
    # E1: s is notified of t, whose entry of X is still missing, and leaves T; then y and x.
    "left while it climbs": Case(
        {"s": ((T, Y), [Unsubscribe((T,))])}, "tyx", ((T, X),) * 2 + ((Y, V),) * 2, FOUR, STAR | {"r3": "hub"}
    ),
    # E6: s joins the topic that was missing when it was notified.
    "joined while it climbs": Case({"s": ((T,), [JOIN_X])}, "tx", ((X, T),) * 2),
}
LARGEST = {
    "crosswise joins, x x t": Case({"s": ((X,), [JOIN_T]), "r": ((T,), [JOIN_X])}, "xxt"),
}


@pytest.mark.parametrize(
    "mode",
    ["full", "delta", "delta shared_subscriptions_min 1", "early delta", "early delta shared_subscriptions_min 1"],
)
@pytest.mark.parametrize("case", SMALL)
def test_every_order_of_arrival(case: str, mode: str) -> None:
    assert explored(SMALL[case], MODES[mode], STATES_MAX).is_complete


def published(case: Case) -> Case:
    """The same with publishers; at some moment everybody gives up waiting for payloads."""
    movers = {name: (topics, [*requests, GIVE_UP]) for name, (topics, requests) in case.movers.items()}
    return case._replace(movers=movers, voices=True)


@pytest.mark.parametrize("mode", ["stamp full", "stamp delta"])
def test_every_order_of_arrival_with_payloads_on_their_own(mode: str) -> None:
    assert explored(published(SMALL["join"]), PUBLISHED[mode], STATES_MAX).is_complete


@pytest.mark.campaign
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SMALL | LARGER)
def test_larger_spaces(case: str, mode: str) -> None:
    assert explored((SMALL | LARGER)[case], MODES[mode], CAMPAIGN_STATES_MAX).is_complete


@pytest.mark.campaign
@pytest.mark.parametrize(
    "mode", ["full", "delta", "full shared_subscriptions_min 1", "delta shared_subscriptions_min 1"]
)
def test_largest_space(mode: str) -> None:
    assert explored(LARGEST["crosswise joins, x x t"], MODES[mode], CAMPAIGN_STATES_MAX).is_complete


@pytest.mark.campaign
@pytest.mark.parametrize("mode", PUBLISHED)
@pytest.mark.parametrize("case", ["join", "leave one, join the other", "leave and come back"])
def test_larger_spaces_with_payloads_on_their_own(case: str, mode: str) -> None:
    assert explored(published((SMALL | LARGER)[case]), PUBLISHED[mode], CAMPAIGN_STATES_MAX).is_complete
