"""What members of a consumer group and its coordinator say to each other.

A group's work is cut into shares: one, then one member is active and the others wait; or `SHARES`, over which keys are
spread. A share is its holder's `since` an epoch, and who names another epoch speaks of a holding that is over.
"""

from msgspec import Struct

from unisono.model.ids import Address
from unisono.model.numbers import Number, Request

SHARES = 64
"""Of a keyed group: so many members can work at once."""


class Portion(Struct, frozen=True):
    """Shares of one member that are done with the same numbers."""

    since: dict[Request, Number]
    """Per share the epoch in which it became the member's."""
    done: dict[str, Number] | None = None
    """Per topic the last number that is done with; None if nobody has ever said."""


class Enlist(Struct, frozen=True, tag="Enlist"):
    """A member is there; one that is silent for the lease is given up."""

    client: Address
    request: Request
    group: str
    member: str
    shares: Request = 1
    """In how many the group is cut: all members say the same."""
    epoch: Number = 0
    """What the member knows of: of this epoch it need not be told again."""


class Commit(Struct, frozen=True, tag="Commit"):
    """The member has processed these shares so far."""

    client: Address
    request: Request
    group: str
    member: str
    portions: tuple[Portion, ...]


class Release(Struct, frozen=True, tag="Release"):
    """The member gives these shares back: it is done with all that it was shown of them."""

    client: Address
    request: Request
    group: str
    member: str
    portions: tuple[Portion, ...]


class Resign(Struct, frozen=True, tag="Resign"):
    """The member leaves."""

    client: Address
    request: Request
    group: str
    member: str


class Enlisted(Struct, frozen=True, tag="Enlisted"):
    """The answer to all of them: what the member holds, and what it is asked to give back."""

    request: Request
    member: str
    epoch: Number = 0
    portions: tuple[Portion, ...] | None = None
    """All that the member holds; None if that is what it knows."""
    wanted: tuple[Request, ...] = ()
    refused: str = ""


ToGroups = Enlist | Commit | Release | Resign
