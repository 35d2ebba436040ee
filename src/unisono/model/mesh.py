"""The `[causal]` table of a deployment: how brokers and clients of a causal mesh order and gossip."""

from typing import Literal

from msgspec import Struct

from unisono.errors import FormatError

BROKERS_MAX = 128
ENTRIES_MAX = 512
"""Half of what a frame has room for: brokers that come back count twice for a while."""


class CausalSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the nodes with the role `causal` and their clients order and gossip. All who take part must agree on it."""

    preset: Literal["local", "region", "planet"] = "local"
    """Ticks of 10, 20 or 50 ms, and lives of 40 ticks; what follows here takes the place of the preset's."""
    tick_ms: float | None = None
    eps_ms: float | None = None
    """How far apart two clocks may be."""
    life_ms: float | None = None
    """The deadline of an event that has none of its own, and the least that one may have."""
    deadline_ms_max: float | None = None
    """The longest deadline of an event."""
    late: Literal["drop", "deliver"] = "drop"
    """What becomes of events that come after their deadline: a gap, or a notification that is marked as late."""
    groups: tuple[str, ...] = ()
    """Patterns of topics, each a group with vectors of its own; topics of no pattern share one."""
    multicast: str | None = None
    """`group:port` of IP multicast between brokers, like "239.255.42.7:7490"; None: by gossip alone."""
    view: int = 15
    """Members that each knows, at most."""
    fanout: int = 3
    """Partners per round of gossip."""
    drop: float = 0.0
    """This share of all datagrams is thrown away before it leaves, to rehearse a bad network."""


def check_mesh(how: CausalSpec, brokers: int) -> None:
    """Raises FormatError for what no frame has room for, no socket could do, and no clock shows."""
    if brokers > BROKERS_MAX:
        raise FormatError("nodes", f"a causal mesh has up to {BROKERS_MAX} brokers, not {brokers}")
    entries = brokers * (len(how.groups) + 1)
    if entries > ENTRIES_MAX:
        raise FormatError("causal.groups", f"{entries} pairs of broker and group: vectors have room for {ENTRIES_MAX}")
    host, _, port = (how.multicast or "239.0.0.1:1").rpartition(":")
    first = host.partition(".")[0]
    if not (first.isdecimal() and 224 <= int(first) <= 239 and port.isdecimal() and 0 < int(port) < 65_536):
        raise FormatError("causal.multicast", f'{how.multicast!r} is not like "239.255.42.7:7490"')
    if not 0 <= how.drop < 1:
        raise FormatError("causal.drop", f"{how.drop} is no share below 1")
    for name, count in (("view", how.view), ("fanout", how.fanout)):
        if count < 1:
            raise FormatError(f"causal.{name}", f"{count} is too few: 1 at least")
    spans = {"tick_ms": how.tick_ms, "life_ms": how.life_ms, "deadline_ms_max": how.deadline_ms_max}
    for name, span in spans.items():
        if span is not None and span <= 0:
            raise FormatError(f"causal.{name}", f"{span} is no span of time")
    if how.eps_ms is not None and how.eps_ms < 0:
        raise FormatError("causal.eps_ms", f"{how.eps_ms}: clocks are apart by 0 or more")
