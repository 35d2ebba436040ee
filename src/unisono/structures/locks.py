"""A lock on an open file, held until the file is closed or its process ends, however it ends.

Data directories of nodes, archives and live audits are each held by one process; what they say to the second one is
their own.
"""

import fcntl


def lock_file(file: int) -> bool:
    """Whether it is ours now; False: another process, or another open file of this one, has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
