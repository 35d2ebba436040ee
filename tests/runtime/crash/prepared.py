"""What a process of a crash run does before anything else: SIGUSR1 makes it say, on stderr, where it stands.

python -m tests.runtime.crash.stacks COMMAND...     the command line of unisono, so prepared
"""

import asyncio
import faulthandler
import os
import signal
import sys
from functools import partial
from types import FrameType

from msgspec.structs import replace

from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.planning.homes import HomesConfig
from unisono.protocols.sequencer import config, deployed
from unisono.runtime.driver.log import LogConfig

LEASE_VARIABLE = "UNISONO_CRASH_LEASE_US"
"""With it, clients are forgotten after so long: ten minutes are too long for a run."""
MOVES_VARIABLE = "UNISONO_CRASH_MOVES"
"""With it, nodes tell the root so often where topics are at home that these can be moved from the start."""
VIEWS_US = Micros(200 * MILLISECOND)
PAYLOAD_KEEP_US = Micros(15 * SECOND)
"""Instead of a minute; longer than anything in the menu is away."""
AHEAD_BYTES = 4096
"""A log that has more would not notice for a while that its disk is full."""


def prepare() -> None:
    """Call it before anything that knows how long clients may stay away is imported."""
    faulthandler.enable()
    signal.signal(signal.SIGUSR1, _show)
    deployed.local = lambda: replace(config.local(), payload_keep_us=PAYLOAD_KEEP_US)
    deployed.region = lambda: replace(config.region(), payload_keep_us=PAYLOAD_KEEP_US)
    if LEASE_VARIABLE in os.environ:
        deployed.CLIENT_LEASE_US = Micros(int(os.environ[LEASE_VARIABLE]))
    from unisono.runtime.client import ordering  # only now: it knows how long clients may stay away

    ordering.RELIABLE_WAIT_US = PAYLOAD_KEEP_US
    from unisono.runtime.node import node

    homes = HomesConfig(period_us=VIEWS_US) if MOVES_VARIABLE in os.environ else HomesConfig()
    config_of_nodes = partial(node.NodeConfig, homes=homes, log=LogConfig(ahead_bytes=AHEAD_BYTES))
    node.NodeConfig = config_of_nodes  # type: ignore[misc,assignment]


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
