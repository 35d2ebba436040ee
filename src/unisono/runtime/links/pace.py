"""How much of a node's time one client may take: what costs more than a message is counted, and the rest waits.

Everything a client says is handed over in slices, so that a frame of thousands of letters, or a thousand frames that
came together, do not keep others waiting. Questions whose answers cost more than they do (how a node is, which topics
match, what an archive holds, what is refused) are also charged, each with the share of a second that it may take. A
client that has used up its time is not read from until it has some again; those who wait for that share what there is
of it, so that many connections get no more than one. Nothing of what they said is lost.
"""

from msgspec import Struct

TURN_LETTERS_MAX = 32
"""Letters of one client that are handed over before others have their turn: some hundred microseconds."""
TURN_FRAMES_MAX = 64
"""Likewise of its frames, which may be empty."""
BACKLOG_MAX = 64
"""Letters of whoever has more to say wait while so many inputs of the node do: its turns stay short for the others."""
BACKLOG_S = 0.001
"""When to look again; and the pause between two slices while others speak, in which the loop sleeps: threads that
write to the disk for it wait long for an interpreter that never does."""
ALONE_S = 0.1
"""Who has been the only one to speak for so long need not pause."""

BEARING = 5
"""As many questions counts one that has a topic created while events are under way: archives and patterns follow it."""
SEALING = 50
"""Questions that one counts as which has the archive seal what it has heard: that is a file of its own."""
FETCHED = 200
"""Rows of an archive that an answer may hold before it counts as a further question, while events are under way."""
LISTED = 1_000
"""Topics that an answer may list before it counts as a further question."""
WORTH_S = 0.2
"""Who has used up its time goes on when it has so much again."""


class Pace(Struct):
    """The time that one client has left, in seconds; `burst_s` of it may be saved up, a newcomer has less."""

    burst_s: float = 0.5
    left_s: float = 0.05
    at: float = 0.0

    def spend(self, seconds: float, now: float, sharing: int = 1) -> bool:
        """Takes it, also if that is more than there is; tells whether anything is left. `sharing` get a second's worth
        in a second together."""
        self.left_s = min(self.burst_s, self.left_s + (now - self.at) / sharing) - seconds
        self.at = now
        return self.left_s > 0

    def wait_s(self, now: float, sharing: int = 1) -> float:
        """Until it is worth going on: answers to what is asked together cost less than as many answers."""
        return max(0.0, self.at + (WORTH_S - self.left_s) * sharing - now)
