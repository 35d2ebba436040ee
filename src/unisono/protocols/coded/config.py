"""The choices of a coded node, each with its price; numbers are from the spec's measurements (sections 4 and 5)."""

from typing import Literal

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.coded.wire import ENVELOPE_BYTES, OVERHEAD_BYTES, PACKET_BYTES, ROWS_MAX, generation_bytes_max

GENERATIONS_MAX = 2**16 - 1
Style = Literal["none", "push", "pull", "push-pull", "need"]


class CodedConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One deployment's coding and recovery; all nodes of a topic share it."""

    # -- packets
    packet_bytes: int = PACKET_BYTES
    """The largest packet; the row size follows from it."""
    rows_max: int = 64
    """Rows of a generation; larger events have several. Each row costs one coefficient byte in every coded packet."""
    event_bytes_max: int = 4_000_000
    """Larger events are refused."""
    key: bytes = b""
    """Shared by the group: packets carry a keyed tag instead of a CRC. The digest stays what guards the content."""

    # -- dissemination
    coded: bool = True
    """Extras and repairs are combinations; off, they are copies, as in the thesis' plain protocol."""
    redundancy: int = 2
    """Extra packets per generation. 2 to 4 with need-driven recovery; alone against bursts it takes 11 and more."""
    adaptive: bool = False
    """Choose the extras from what receivers report, at least `redundancy` and at most `redundancy_max`."""
    redundancy_max: int = 16
    miss: float = 0.01
    """Adaptive: the share of events that may need repair."""
    percentile: float = 0.9
    """Adaptive: this share of the receivers shall do no worse than `miss`."""
    recode: bool = False
    """Interior nodes of a multicast tree run a `Forwarder`: the publisher's redundancy then has to last for one hop."""

    # -- recovery
    style: Style = "need"
    """`need`: the incomplete node asks. `push`, `pull`, `push-pull`: the complete node begins, as in the thesis."""
    fanout: int = 1
    """Partners per step."""
    fan_in: int = 3
    """How often a complete event is advertised, by `pull` and `need`."""
    extra: int = 1
    """Packets sent beyond the need, against the loss of one."""
    push_packets: int = 2
    """`push`: combinations sent to each partner; in plain mode it is the whole event."""
    quiet_us: Micros = Micros(20 * MILLISECOND)
    """An incomplete event that has been silent for so long (plus up to half of it again) is asked for."""
    ask_every_us: Micros = Micros(200 * MILLISECOND)
    """tau: a little over the longest round trip."""
    advert_every_us: Micros = Micros(1500 * MILLISECOND)
    adverts_max: int = 64
    """Entries per advert message."""
    deadline_us: Micros = Micros(5 * SECOND)
    """From the first sign of an event to its gap notice."""
    keep_us: Micros = Micros(10 * SECOND)
    """T_keep: complete events are kept to serve others; more than the life of their adverts and a round trip."""

    # -- partners
    seeds: tuple[Address, ...] = ()
    """Members known from the start."""
    view_max: int = 30
    """Members remembered per topic."""
    polarized: bool = True
    """Draw three partners and take the best by depth, service and loss; off: uniformly."""
    depth: int = 1
    """This node's distance from publishers in the multicast tree."""

    # -- bounds
    live_max: int = 1024
    """Incomplete generations held; beyond it the emptiest and oldest one ends in a gap."""
    live_per_publisher_max: int = 256
    kept_max: int = 1024
    """Complete generations kept; beyond it the oldest goes before its time."""
    behind_max: int = 64
    """Missing numbers before a new event that are asked for; those further back are a gap at once."""
    finished_max: int = 100_000
    """Identifiers remembered against delivering twice, for twice `keep_us`."""

    def __post_init__(self) -> None:
        if not 1 <= self.rows_max <= ROWS_MAX or self.packet_bytes < OVERHEAD_BYTES + 2 * self.rows_max:
            raise MisuseError(f"{self.rows_max} rows do not fit in packets of {self.packet_bytes} bytes")
        if self.generations_max > GENERATIONS_MAX:
            raise MisuseError(f"events of {self.event_bytes_max} bytes have more than {GENERATIONS_MAX} generations")
        if self.keep_us <= self.advert_life_us + 2 * self.ask_every_us:
            raise MisuseError(
                f"events are advertised for {self.advert_life_us} us but kept for {self.keep_us} us only: "
                "whoever asks late could not be served"
            )
        if min(self.fanout, self.ask_every_us, self.live_max, self.view_max, self.live_per_publisher_max) < 1:
            raise MisuseError("fanout, ask_every_us, view_max, live_max and live_per_publisher_max are at least 1")

    @property
    def generations_max(self) -> int:
        """Of one event."""
        return -(-(self.event_bytes_max + ENVELOPE_BYTES) // generation_bytes_max(self.packet_bytes, self.rows_max))

    @property
    def advert_life_us(self) -> int:
        return self.fan_in * self.advert_every_us if self.style in ("pull", "need") else 0


def local() -> CodedConfig:
    """One machine room: short waits."""
    return CodedConfig(
        quiet_us=Micros(3 * MILLISECOND), ask_every_us=Micros(10 * MILLISECOND), advert_every_us=Micros(SECOND // 4)
    )


def region() -> CodedConfig:
    """One region: round trips of some milliseconds."""
    return CodedConfig(
        quiet_us=Micros(10 * MILLISECOND), ask_every_us=Micros(50 * MILLISECOND), advert_every_us=Micros(SECOND // 2)
    )


def planet() -> CodedConfig:
    """Several continents: round trips up to 200 ms."""
    return CodedConfig(ask_every_us=Micros(300 * MILLISECOND))
