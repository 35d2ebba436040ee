"""The choices of a hierarchy of brokers, each with its price."""

from msgspec import Struct

from unisono.model.predicate import FILTER_COST_MAX
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.structures.content import EventLimits


class RegionsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One deployment; brokers and clients use the same."""

    # -- streams
    ask_us: Micros = Micros(200 * MILLISECOND)
    """A stream that has no source is asked for anew this often. Above the round trip to the next broker."""
    recover_us: Micros = Micros(SECOND)
    """A publisher that does not answer is asked again after this, up to half of it more. Above the longest round trip,
    and more where many recover at once: each asks for what it misses."""
    gone_us: Micros = Micros(10 * SECOND)
    """A publisher that nobody has a link to for this long has gone, and subscribers are told; subscribers that are cut
    off themselves wait three times as long. Below it, crashes are repaired in silence."""
    tombstone_us: Micros = Micros(60 * SECOND)
    """How long a node knows how far it had come with a publisher that has gone: as long as logs remember."""
    tombstones_max: int = 10_000
    skew_us: Micros = Micros(SECOND)
    """By how much clocks may differ: whoever joined and has never heard of a publisher asks it for everything since."""
    log_max: int = 10_000
    """Items a publisher keeps. Those its root has not accepted are never dropped: above this many, it refuses. At least
    rate x (detection + re-attachment), or a crash ends in a gap."""
    log_bytes_max: int = 64 << 20
    """The same in bytes of payload."""
    replay_max: int = 500
    """Items in one part of an answer to somebody who recovers."""
    buffer_max: int = 20_000
    """Items a stream may have waiting in one node; at more they are dropped, and asked for again."""

    # -- direct connections
    wait_us: Micros = Micros(300 * MILLISECOND)
    """How long a target waits for the overlay to reach the point where the direct stream begins. Above a round trip."""
    connect_us: Micros = Micros(3 * SECOND)
    """A session that has been connecting or stopping for this long is dropped."""
    sessions_max: int = 1_000
    """Direct connections that a target takes."""

    # -- discovery
    closeness: float = 0.4
    """psi: the share of a publisher's events that whoever it connects to must want. Lower: more connections for less
    gain; with 40 subscribers 0.1 took 3.4 times the messages of 0.4 for 1 ms of 46 (specs: entourage, section 11)."""
    discovery_us: Micros = Micros(30 * SECOND)
    """How often a publisher counts anew; 0: it never connects directly."""
    count_gap_us: Micros = Micros(SECOND)
    """Never more often than this, whatever happens; a broker refuses a publisher that asks twice as often."""
    budget_us: Micros = Micros(2 * SECOND)
    """What an answer to COUNT may take; each level has four fifths of the one above."""
    entries_max: int = 1_000
    """Entries in one report; the deepest are put together first."""
    rounds_max: int = 10_000
    """Rounds that a broker works on at once; above, it refuses."""
    samples_max: int = 256
    """Events a publisher keeps to say what it publishes, where its advertisement has no measure."""

    # -- how many, and whom
    connections_max: int = 64
    """K_max: direct connections of one publisher."""
    bandwidth_bytes_per_s: float | None = None
    """W_p: what a publisher may send directly, all copies together; None: any amount."""
    cpu_share_max: float = 0.5
    """The share of one CPU that a publisher may spend on sending directly."""
    copy_us: float = 20.0
    """CPU time of one copy of one event until it has been measured."""
    hold_us: Micros = Micros(10 * SECOND)
    """A frontier is kept this long before a better one is moved to."""
    gain: float = 0.1
    """And it is moved to only if it is better by this share."""
    churn_us: Micros = Micros(60 * SECOND)
    """Joins and leaves are averaged over this."""

    # -- what clients may say
    filter_cost_max: int = FILTER_COST_MAX
    """Steps to see that a client's filter is in its normal form."""
    filter_weight_max: int = 2_000
    """Sides and bounds of a filter or an advertisement."""
    streams_max: int = 100_000
    """Streams that a broker knows; above, new publishers are refused."""
    limits: EventLimits = EventLimits()


def local() -> RegionsConfig:
    """All on one machine, or in a test: everything is near."""
    return RegionsConfig(
        ask_us=Micros(50 * MILLISECOND),
        recover_us=Micros(200 * MILLISECOND),
        wait_us=Micros(100 * MILLISECOND),
        connect_us=Micros(SECOND),
        budget_us=Micros(500 * MILLISECOND),
        gone_us=Micros(3 * SECOND),
    )


def region() -> RegionsConfig:
    """Data centres of one continent."""
    return RegionsConfig()


def planet() -> RegionsConfig:
    """Round trips of 300 ms, and detection that takes its time."""
    return RegionsConfig(
        ask_us=Micros(500 * MILLISECOND),
        recover_us=Micros(2 * SECOND),
        wait_us=Micros(SECOND),
        connect_us=Micros(6 * SECOND),
        budget_us=Micros(5 * SECOND),
        gone_us=Micros(20 * SECOND),
    )
