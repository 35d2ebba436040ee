"""How many files a process may have open, and how many of them may be connections of others.

Whoever takes them all keeps a node from its own files, and it stops as it does over a full disk. So connections leave
some free, and what the system allows this process at most is asked for when it starts.
"""

import resource
from contextlib import suppress

OURS = 400
"""Files that connections leave free: those of the node, and those of whom two doors have accepted in one turn (100
each) and not yet turned away."""


def open_files_max() -> int:
    """How many this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def allow_many_files() -> None:
    """Asks for as many as an administrator allows; often that is far more than what is given at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_room(doors: int) -> int:
    """How many connections each of so many doors may accept."""
    most = open_files_max()
    return max(1, (most - min(OURS, most // 2)) // doors)
