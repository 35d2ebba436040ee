"""What all connections of a node hold together: frames that are not whole, letters that wait for their turn, and what
others do not read.

Each of them has bounds of its own, and ten thousand times these are more than any machine has. At the bound of them all
the client that holds most is closed, then the next.
"""

from typing import Protocol

from unisono.errors import PeerError

LITTLE_BYTES = 65_536
"""Who never holds so much need not tell."""


class Holder(Protocol):
    """A connection."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def is_of_a_client(self) -> bool: ...

    def refuse(self, error: PeerError) -> None:
        """After this it holds nothing."""


class Holding:
    """The sum, as connections told it when it grew; what has become less since is looked up at the bound."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}

    def note(self, holder: Holder, held: int) -> None:
        """It holds so much now."""
        self.bytes += held - self._held.get(holder, 0)
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)
        if self.bytes > self._bytes_max:
            self._close_some()

    def forget(self, holder: Holder) -> None:
        self.bytes -= self._held.pop(holder, 0)

    def _close_some(self) -> None:
        self._held = {holder: holder.held_bytes for holder in self._held}
        self.bytes = sum(self._held.values())
        while self.bytes > self._bytes_max:
            most = max(self._held, key=lambda holder: (holder.is_of_a_client, self._held[holder]))
            held = self._held[most]
            self.forget(most)
            reason = f"all connections hold {self.bytes + held} bytes, and this one {held}, more than any other"
            most.refuse(PeerError(reason, "bytes"))
