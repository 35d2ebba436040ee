"""The numbers of the sequencer. Nodes and clients of a deployment share all that is above `resend_us`."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from unisono.errors import MisuseError
from unisono.model.time import MILLISECOND, SECOND, Micros


class SequencerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How timestamps are made and how long everybody waits; the defaults are `region()`."""

    early: bool = True
    """Tell each entry as soon as it is decided, so that subscribers wait for their own topics only.
    Costs one control message per deciding node instead of one per event."""
    encoding: Literal["delta", "full"] = "delta"
    """delta omits entries that have not changed since the topic's previous number; full repeats the whole group."""
    short_from: int = 16
    """Groups of so many topics, all at one home and heard by the same, are told in short: each event names the last
    of the group before it instead of all that have gone on since; 0: none are. Whoever can not tell what that stands
    for, because it has just joined or left a topic, asks the home: a round trip for those events. In smaller groups
    there is little to gain."""
    shared_subscriptions_min: Literal[1, 2] = 2
    """How many subscriptions must share a pair of topics before it is ordered. 2: no two subscribers disagree (total
    notification order). 1: one order explains all subscribers (decision 4), at the price of larger groups."""
    causal: bool = False
    """Publishers wait until their last event on another topic is complete, and whatever they were notified of: with
    `shared_subscriptions_min` 1 no effect is delivered before its cause. Costs a climb per change of topic."""

    resend_us: Micros = Micros(500 * MILLISECOND)
    """Clients repeat unanswered requests after this; a little over the longest round trip to a home and up its tree."""
    ask_us: Micros = Micros(500 * MILLISECOND)
    """A subscriber asks the home after waiting this long for a stamp; longer than a stamp's usual way."""
    mark_us: Micros = Micros(250 * MILLISECOND)
    """Homes tell their high-water mark this long after the last change, and again at intervals that double; bounds how
    late a lost last stamp is noticed. While a topic changes more often, each stamp is told by the next."""
    mark_repeats: int = 16
    """How many marks follow the last change, the last one after mark_us * 2^15 (hours). A tail is missed only if the
    stamp and all marks are lost."""
    payload_wait_us: Micros = Micros(5 * SECOND)
    """A numbered event whose payload has not come after this is skipped, with a Gap. Not shortened where everything is
    near: it says when something counts as lost, and a process that does not get to run loses nothing."""
    missed_wait_us: Micros = Micros(5 * SECOND)
    """The same where the broker has said that it may have lost some, however long payloads are waited for otherwise."""
    payload_keep_us: Micros = Micros(60 * SECOND)
    """A payload is dropped when its home, asked, has known nothing of it for this long."""
    stall_us: Micros = Micros(10 * SECOND)
    """A topic that waits this long for an answer is reported Stalled; it is never forced."""
    tag_stalled: bool = False
    """Subscribers: what a stalled topic holds back is delivered at once, marked as out of order, and not again when its
    number comes. The order of everything that is not marked stays as promised."""
    accept_us: Micros = Micros(10 * SECOND)
    """A publication not accepted by then has the outcome Unknown. It is still repeated."""
    subscriber_lease_us: Micros = Micros(0)
    """A subscriber that was silent for this long may be forgotten (`Forget`, by a node's driver); 0: none is. It renews
    the lease four times as often at every home, and notifies nothing of a topic whose home has not answered for three
    quarters of it. Price: two messages per home in a quarter of this."""

    window: int = 4_000
    """Requests of one publisher on one topic that may wait for their numbers; more are Refused. Throughput is at most
    this per round trip."""
    requests_max: int = 10_000
    """Homes: requests of one publisher on one topic that are taken at once, or kept because they overtook others. Every
    window fits into it, also that of a client who was told of other distances."""
    gather_from: int = 32
    """While so many requests of a publisher on a topic are under way, further ones wait for an answer: under load they
    travel, and are numbered and made durable, in larger runs. Costs part of a round trip when more than this is
    published in one."""
    gather: int = 1_000
    """So many do not wait, whatever is under way: the longest runs, where the home is far. Several of them have to fit
    into the window, or the way stands empty between two."""
    buffer_max: int = 100_000
    """Payloads and runs of a topic that a subscriber holds back. At it the topic waits for no payload any more that may
    be lost, which ends in a Gap; what arrives beyond counts as lost, and ends in one, too."""
    issued_max: int = 10_000
    """Numbers per topic whose timestamps the home keeps for Ask; older ones are told as forgotten."""
    parked_max: int = 1_000
    """Registrations per topic that wait for the proof of a number; more are refused and come again."""
    gone_max: int = 10_000
    """Clients that have said goodbye and are kept in mind, so that what is still under way of them registers nobody."""

    def __post_init__(self) -> None:
        if self.window > self.requests_max:
            raise MisuseError(f"a window of {self.window}, and homes take {self.requests_max} requests at once")


def ordered(config: SequencerConfig, order: Literal["pairwise", "global", "causal"]) -> SequencerConfig:
    """What `sequencing.order` of a deployment asks for (decision 4)."""
    return replace(config, shared_subscriptions_min=2 if order == "pairwise" else 1, causal=order == "causal")


def local() -> SequencerConfig:
    """One machine or one rack: round trips under a millisecond. Sooner to ask, not to give up."""
    return replace(
        region(),
        resend_us=Micros(50 * MILLISECOND),
        ask_us=Micros(50 * MILLISECOND),
        mark_us=Micros(25 * MILLISECOND),
        window=1_000,
        gather=256,
    )


def region() -> SequencerConfig:
    """Data centres of one continent: round trips of tens of milliseconds."""
    return SequencerConfig()


def planet() -> SequencerConfig:
    """All continents: round trips up to 400 ms, three of them before anybody should worry."""
    return replace(
        region(),
        resend_us=Micros(1_500 * MILLISECOND),
        ask_us=Micros(1_500 * MILLISECOND),
        mark_us=Micros(750 * MILLISECOND),
        payload_wait_us=Micros(10 * SECOND),
        missed_wait_us=Micros(10 * SECOND),
        stall_us=Micros(20 * SECOND),
        accept_us=Micros(20 * SECOND),
        window=8_000,
        gather=2_000,
    )
