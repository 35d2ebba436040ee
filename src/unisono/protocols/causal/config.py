"""The constants of a causal deployment: all who take part share them, and a change is a new deployment.

Time is counted in ticks. Stamps, deadlines and ages are ticks; an age has to fit one byte on the wire, which bounds
how far ahead a deadline may lie: longer deadlines need longer ticks.
"""

from math import ceil, log2
from typing import Literal

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.time import MILLISECOND, Micros, format_span
from unisono.structures.content import EventLimits

PAYLOAD_BYTES_MAX = 32 << 10
"""Of one event: a frame with it and its vector has to fit a datagram."""
EVENT_LIMITS = EventLimits(PAYLOAD_BYTES_MAX)
"""What filters can judge; clients refuse the rest, and so do brokers what no honest client sends."""
ENTRIES_MAX = 1024
"""Of a vector: with this many and a publication of the largest size a frame still fits a datagram."""
AGE_MAX = 254
"""The oldest entry of a vector that has a code (`wire`)."""


class CausalConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One deployment's clockwork, bounds and gossip."""

    # -- the order
    tick_us: Micros = Micros(10 * MILLISECOND)
    """T. A sender has one stamp per tick, so what is published meanwhile shares a frame: up to this much latency."""
    eps_ticks: int = 4
    """How far apart two clocks may be. Each tick is a tick of waiting after a subscription, and of knowledge kept."""
    life_ticks: int = 40
    """The deadline of an event that has none of its own. What is lost is waited for so long, and not longer."""
    spread_ticks: int = 20
    """L, `spread_of(members)`: so long gossip takes to reach everybody. No deadline is shorter; it is bounded by the
    life, and the rest of the life is there for the way to the broker."""
    deadline_ticks_max: int = 200
    """The longest deadline; with eps and delay it has to stay below 255."""
    delay_ticks: int = 20
    """How long a datagram may be under way after its last relay. Identities are remembered so much longer."""
    late: Literal["drop", "deliver"] = "drop"
    """What becomes of frames after their deadline. `deliver`: marked, if nothing they depend on is missing; vectors
    then keep entries until the horizon instead of their deadlines."""
    pending_max: int = 4096
    """Frames that wait for others at one member; beyond it the one with the latest deadline goes."""
    seen_max: int = 65_536
    """Identities that are remembered, 100 bytes each; beyond it new frames are turned away until old ones are
    forgotten."""

    # -- publishing
    publish_ticks: int = 10
    """X: a broker that could not emit a publication within this refuses it."""
    waiting_max: int = 1024
    """Publications that wait at a broker for their tick; more are refused."""

    # -- dissemination
    round_ticks: int = 2
    """A member gossips once in so many ticks."""
    idle_rounds: int = 10
    """Who holds nothing speaks once in so many rounds: it has nothing to offer but itself. A mesh at rest costs so much
    less; a clock that goes wrong at rest is noticed so much later."""
    fanout: int = 3
    """Partners per round. 2 costs 1.4 % of the deliveries at 30 % perturbation, 4 gives back 0.3 %."""
    view_max: int = 15
    sample: int = 2
    """Members told about per message, beside the sender."""
    far: float = 0.15
    """This share of the partners is drawn from other regions: bytes across regions against speed of spreading."""
    fade_ticks: int = 600
    """A member that nobody heard of for so long leaves the views."""
    request_max: int = 16
    """Frames asked for, and answered, in one go."""
    requests_per_round: int = 8
    """Answered per member and round; what is asked beyond it is counted and left alone."""
    held_max: int = 32_768
    """Frames held for others while they are on time; what comes beyond it is delivered, and not passed on."""
    push_max: int = 64
    """Frames of one gossip; the rest waits for the next round."""

    @property
    def horizon_ticks(self) -> int:
        """Stamps older than this cannot be delivered any more, whatever the policy."""
        return self.deadline_ticks_max + self.eps_ticks + self.delay_ticks

    @property
    def queue_ticks(self) -> int:
        """So long an event may wait at its client: for one publication before it that nobody answers."""
        return self.publish_ticks + 2 * self.eps_ticks + 2

    @property
    def publication_us(self) -> Micros:
        """The longest way from the call to the end of the last tick in which a subscriber may be told, without a
        deadline of its own: waiting, being emitted, living."""
        ticks = self.queue_ticks + self.publish_ticks + 2 * self.eps_ticks + self.life_ticks + 2
        return Micros(ticks * self.tick_us)

    @property
    def life_us(self) -> Micros:
        return Micros(self.life_ticks * self.tick_us)

    @staticmethod
    def local() -> "CausalConfig":
        """One machine or machine room: 10 ms ticks, a life of 0.4 s."""
        return CausalConfig()

    @staticmethod
    def region() -> "CausalConfig":
        """Data centres some milliseconds apart, clocks by NTP: a life of 0.8 s."""
        return CausalConfig(tick_us=Micros(20 * MILLISECOND))

    @staticmethod
    def planet() -> "CausalConfig":
        """Around the world, clocks by NTP over the internet: 50 ms ticks, a life of 2 s, deadlines up to 10 s."""
        return CausalConfig(tick_us=Micros(50 * MILLISECOND))


def spread_of(members: int, round_ticks: int = 1, alpha: int = 3) -> int:
    """L in ticks: ceil(log2 N) + alpha rounds."""
    return (ceil(log2(max(members, 2))) + alpha) * round_ticks


def check_causal(config: CausalConfig) -> CausalConfig:
    """Raises MisuseError for constants that contradict each other."""
    least = {"tick_us": 1, "eps_ticks": 0, "life_ticks": 1, "spread_ticks": 1, "pending_max": 1, "publish_ticks": 1}
    least |= {"seen_max": 1, "held_max": 1}
    least |= {
        "round_ticks": 1,
        "fanout": 1,
        "view_max": 1,
        "request_max": 1,
        "push_max": 1,
        "idle_rounds": 1,
        "waiting_max": 1,
    }
    for name, bound in least.items():
        if getattr(config, name) < bound:
            raise MisuseError(f"{name} is {getattr(config, name)}, and has to be at least {bound}")
    if not config.spread_ticks <= config.life_ticks <= config.deadline_ticks_max:
        raise MisuseError(
            f"spread_ticks <= life_ticks <= deadline_ticks_max does not hold: {config.spread_ticks},"
            f" {config.life_ticks}, {config.deadline_ticks_max}"
        )
    if config.horizon_ticks + config.eps_ticks > AGE_MAX:
        longest, apart = (
            format_span(Micros(n * config.tick_us)) for n in (config.deadline_ticks_max, config.eps_ticks)
        )
        raise MisuseError(
            f"deadlines of {longest} and clocks {apart} apart make ages of {config.horizon_ticks + config.eps_ticks}"
            f" ticks, and {AGE_MAX} fit a frame: take longer ticks (causal.tick_ms)"
        )
    return config
