"""How much of a node's time one client may take: what costs more than a message is counted, and the rest waits.

Everything a client says is handed over in slices, so that a frame of thousands of letters does not keep others waiting.
Questions whose answers cost more than they do (how a node is, which topics match, what an archive holds) are also
charged, each with the share of a second that it may take; a client that has used up its time is not read from until it
has some again. Nothing of what it said is lost.
"""

from msgspec import Struct

TURN_LETTERS_MAX = 256
"""Letters of one client that are handed over before others have their turn: a pause of about a millisecond."""


class Pace(Struct):
    """The time that one client has left, in seconds; `burst_s` of it may be saved up."""

    burst_s: float = 1.0
    left_s: float = 1.0
    at: float = 0.0

    def spend(self, seconds: float, now: float) -> bool:
        """Takes it, also if that is more than there is; tells whether anything is left."""
        self.left_s = min(self.burst_s, self.left_s + now - self.at) - seconds
        self.at = now
        return self.left_s > 0

    def wait_s(self, now: float) -> float:
        """Until something is left."""
        return max(0.0, self.at - self.left_s - now)
