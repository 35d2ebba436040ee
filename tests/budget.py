"""What the rooms of the suite may take (budget.toml), and how a run is told against it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

FILE = Path(__file__).parent / "budget.toml"


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Rooms that share so many seconds."""

    name: str
    seconds: int
    rooms: tuple[str, ...]


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """All groups, and the versions of Python that the suite was run on."""

    pythons: tuple[str, ...]
    group: tuple[Group, ...]


def budget() -> Budget:
    return msgspec.toml.decode(FILE.read_bytes(), type=Budget)


def told(spent: Mapping[str, float]) -> Iterator[str]:
    """A line per group that ran, with its rooms, and the sum."""
    groups = [(group, {room: spent[room] for room in group.rooms if room in spent}) for group in budget().group]
    ran = [(group, rooms) for group, rooms in groups if rooms]
    for group, rooms in ran:
        took = sum(rooms.values())
        over = f", {took - group.seconds:.0f} over" if took > group.seconds else ""
        parts = ", ".join(f"{room} {seconds:.1f}" for room, seconds in sorted(rooms.items(), key=lambda it: -it[1]))
        yield f"{took:8.1f} of {group.seconds:4d}  {group.name}{over}" + (f" ({parts})" if len(group.rooms) > 1 else "")
    took, allowed = sum(spent.values()), sum(group.seconds for group, _ in ran)
    yield f"{took:8.1f} of {allowed:4d}  together"
