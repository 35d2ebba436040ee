"""The numbers of the clock protocol. Stampers and clients of a deployment share all of them."""

from msgspec import Struct

from unisono.model.time import MILLISECOND, SECOND, Micros


class ClockConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How often clocks are told, how long everybody waits, and how much is kept."""

    beat_us: Micros = Micros(5 * MILLISECOND)
    """While anybody may wait for its promise a stamper tells its clock this often. Adds up to this to the latency of an
    event that waits for another stamper; costs one message to every other stamper in this time."""
    awake_us: Micros = Micros(1 * SECOND)
    """And for this long after the last event that those may wait with for it who listen elsewhere: the next event then
    waits for one way, not for the way there and back. Price: so many ticks after every event that is alone."""
    idle_beat_us: Micros = Micros(1 * SECOND)
    """When nobody waits it tells its clock this often: tails that were lost are noticed, and leases last."""
    warm_up_us: Micros = Micros(1 * SECOND)
    """A stamper that has started listens to the others' clocks for this long before it promises anything, or until it
    has heard all of them; and longer, until it knows by more than half of the clocks which time it is."""
    alone_us: Micros = Micros(6 * SECOND)
    """It begins with what it knows after this: the others are away. Has to be above what it takes after a start until
    links are there, and the idle beat. Price: a deployment most of whose stampers are away starts that much later; and
    one that starts so with a clock that is a day ahead holds up its topics for a day once the others are back."""
    ceiling_us: Micros = Micros(2 * SECOND)
    """How far ahead of its clock a stamper writes down what it may promise, twice in that time. After a restart it
    promises nothing lower, so it may stand still for this long. Price: two log entries in this time."""
    skew_max_us: Micros = Micros(5 * SECOND)
    """A stamper whose clock is further than this from the median of all puts itself right: forward by a jump, backward
    by standing still. Has to be above the idle beat and the longest way together."""
    lease_us: Micros = Micros(2 * SECOND)
    """How far, in stamps, a keeper lets others stamp on its topics ahead of its own clock. A stamper that dies holds up
    subscribers of those topics for about this long."""
    idle_lane_us: Micros = Micros(60 * SECOND)
    """A stamper that has stamped nothing on another's topic for this long closes its lane there: subscribers wait for
    nobody who is silent. Opening it again costs three ways, and for two of them all that its publisher says next."""
    keeper_wait_us: Micros = Micros(8 * SECOND)
    """What waits for a keeper that does not answer is Refused after this, so that whatever its publisher asked for
    since goes on. Has to be above what a node takes to be back; below `accept_us`, else it is Unknown before that."""
    resend_us: Micros = Micros(300 * MILLISECOND)
    """Clients repeat what is not answered after this; a little over the longest round trip."""
    accept_us: Micros = Micros(10 * SECOND)
    """A publication that is not answered by then has the outcome Unknown. It is still repeated."""
    payload_wait_us: Micros = Micros(5 * SECOND)
    """A stamped event whose payload has not come after this is skipped, with a Gap."""
    missed_wait_us: Micros = Micros(5 * SECOND)
    """The same where the broker has said that it may have lost some, however long payloads are waited for otherwise."""
    hole_wait_us: Micros = Micros(5 * SECOND)
    """Entries of a lane that are missing for this long are given up, with a Gap; those of a keeper's own lane never
    are: its topic is joined anew."""
    stall_us: Micros = Micros(10 * SECOND)
    """A subscriber that waits this long for a stamper's promise is told Stalled."""

    tolerance_us: Micros = Micros(0)
    """Real-time order: whoever publishes more than this after another's event was accepted is heard after it. A stamper
    stamps only while its clock is within half of this of the others'. 0: it stamps however wrong its clock may be."""

    is_realtime: bool = False
    """Of one subscriber: it is told when a clock is too far off for real-time order."""

    leaves_stalled: bool = False
    """Of one subscriber: a topic that stalls is left, the others go on, and it is joined again when it can be: what was
    published meanwhile is a gap. Otherwise all wait."""

    causal: bool = True
    """An event comes after all that its publisher has heard of and published, on any topic. Without it only each
    publisher's order within a topic is kept. Price: whoever publishes on a lane that leans ahead has all of its lanes
    lean ahead as far, so leans bring latency near the bound only without it."""

    window: int = 4_000
    """Requests of one publisher that may wait for their keys; more are Refused."""
    waiting_max: int = 10_000
    """Clients whose requests may wait at a stamper for a lane to open or a lease to be renewed."""
    kept_max: int = 10_000
    """Entries per lane that a stamper keeps for those who missed them; older ones are told as gone."""
    held_max: int = 100_000
    """Entries and payloads that a subscriber holds back, each. At it nothing waits for a payload any more, which ends
    in a Gap; payloads beyond it count as lost, the oldest first."""
    listeners_max: int = 10_000
    """Clients that a node tells what it hears of clocks."""
