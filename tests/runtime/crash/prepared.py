"""What a process of a crash run does before anything else: SIGUSR1 makes it say, on stderr, where it stands.

python -m tests.runtime.crash.stacks COMMAND...     the command line of unisono, so prepared
"""

import asyncio
import faulthandler
import os
import signal
import sys
from types import FrameType

from msgspec.structs import replace

from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer import config
from unisono.runtime import sequencing

LEASE_VARIABLE = "UNISONO_CRASH_LEASE_US"
"""With it, clients are forgotten after so long: ten minutes are too long for a run."""
PAYLOAD_KEEP_US = Micros(15 * SECOND)
"""Instead of a minute; longer than anything in the menu is away."""


def prepare() -> None:
    """Call it before anything that knows how long clients may stay away is imported."""
    faulthandler.enable()
    signal.signal(signal.SIGUSR1, _show)
    sequencing.local = lambda: replace(config.local(), payload_keep_us=PAYLOAD_KEEP_US)
    sequencing.region = lambda: replace(config.region(), payload_keep_us=PAYLOAD_KEEP_US)
    if LEASE_VARIABLE in os.environ:
        sequencing.CLIENT_LEASE_US = Micros(int(os.environ[LEASE_VARIABLE]))


def _show(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs here
        return
    for task in tasks:
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()


if __name__ == "__main__":
    prepare()
    from unisono.cli.main import main

    main()
