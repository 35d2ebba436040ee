"""`unisono node FILE NAME`: one node of a deployment, until it is told to stop."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unisono.cli.screen import screen
from unisono.errors import InvariantError, UnisonoError
from unisono.model.address import endpoint
from unisono.model.deployment import load_deployment
from unisono.model.homes import unknown_distances
from unisono.runtime.driver.descriptors import allow_many_files, open_files_max
from unisono.runtime.driver.loop import run, stop_signal
from unisono.runtime.node.bounds import connections_max
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.node.runnable import check_runnable
from unisono.runtime.saying import Loudness, Shape, begin_saying, say

logger = logging.getLogger(__name__)

FEW_CONNECTIONS = 1_000
"""Who can have fewer, and was to have more, is told; a system that allows a few less than the default is no news."""
DRAIN_S = 20.0
"""How long a node that is told to stop may take to finish what has arrived."""
COLLECTED = (20_000, 20, 20)
"""Garbage in cycles is looked for after so many allocations, and older things after so many of these looks. Messages
make none; with Python's thresholds looking for it takes a sixth of a node's time in groups of 500 topics."""


def node(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The deployment file.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which of its nodes to be.")],
    journal: Annotated[
        Literal["off", "deliveries", "all"], typer.Option(help="What to write into the node's journal.")
    ] = "deliveries",
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the node that works is gone, then take over.")
    ] = False,
    new_incarnation: Annotated[
        bool,
        typer.Option("--new-incarnation", help="Go on although its data is older than what it has told others."),
    ] = False,
    observe: Annotated[
        str | None, typer.Option(help="host:port of /healthz, /readyz and /metrics, or off.", show_default=False)
    ] = None,
    log_level: Annotated[Loudness, typer.Option(help="What to log: from this level on.")] = "info",
    log_format: Annotated[Shape, typer.Option(help="Lines for people, or JSON for machines.")] = "text",
) -> None:
    """Run one node of a deployment. SIGTERM or Ctrl-C stops it cleanly, with a snapshot.

    Example: unisono node deployment.toml eu-1 --log-format json

    Every change of a neighbour, of the broker's servers, of the disk and the clock is one line on stderr; the same is
    at /readyz and /metrics, on loopback, 1000 above the node's port (nodes.observe in the file, or --observe),
    a standby's 1000 above the standby's.

    A node whose data was rolled back, cut or emptied stops. Put the newest data back; if there is none, go on without
    what is missing: numbers continue far above all that were issued, subscribers are told gaps, and publications
    without an outcome end as unknown. The flag is for one start.

    Example: unisono node deployment.toml eu-1 --new-incarnation
    """
    deployment = load_deployment(file)
    check_runnable(deployment, name)
    begin_saying(deployment.name, name, log_level, log_format)
    allow_many_files()
    most = connections_max(deployment.limits)
    if most < min(deployment.limits.connections_max, FEW_CONNECTIONS):
        text = f"only {most} connections fit here: this process may have {open_files_max()} files open (ulimit -n)"
        say(logger, logging.WARNING, text, event="few-files")
    spec = deployment.node(name)
    for a, b in unknown_distances(deployment):
        text = f'nobody has said how far {a} is from {b} (round_trip_ms."{a} {b}"): it will be measured'
        say(logger, logging.WARNING, text, event="distance-unknown")
    at = spec.standby_observed_at if standby else spec.observed_at
    if observe is not None:
        at = None if observe == "off" else observe
        if at is not None:
            endpoint(at)
    config = NodeConfig(journal=journal, standby=standby, new_incarnation=new_incarnation, observe=at)
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    run(_serve(Node(deployment, name, file.parent, config), log_format))


def watch(loop: asyncio.AbstractEventLoop, served: Node) -> None:
    """Whatever breaks in a callback of the loop, and would only be a line in the log, ends the node; what the other end
    of a connection can break does not."""

    def broke(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        loop.default_exception_handler(context)
        if isinstance(error, Exception) and not isinstance(error, UnisonoError | OSError | EOFError):
            served.failed(error)

    loop.set_exception_handler(broke)


def _tell_serving(served: Node, shape: Shape) -> None:
    """Whatever is logged, whoever has started a node is told when it works."""
    text = f"{served.me} ({', '.join(served.spec.roles)}) listens on port {served.port}"
    if served.pages.port:
        text += f"; health and metrics on port {served.pages.port}"
    if shape == "text":
        screen(stderr=True).print(text)
    else:
        say(logging.getLogger(__name__), logging.INFO, text, event="serving", port=served.port)


async def _drain(served: Node) -> None:
    """What has arrived is finished, a snapshot taken; whoever keeps us from it does so for a while only. What was
    acknowledged is in the log by then."""
    try:
        async with asyncio.timeout(DRAIN_S):
            await served.stop()
    except TimeoutError:
        text = f"stopped without a snapshot: it was not done within {DRAIN_S:g} s"
        say(logging.getLogger(__name__), logging.WARNING, text, event="not-drained")


async def _serve(served: Node, shape: Shape) -> None:
    watch(asyncio.get_running_loop(), served)
    stop = stop_signal()
    starting, stopped = asyncio.ensure_future(served.start()), asyncio.ensure_future(stop.wait())
    try:
        # A standby may wait for ever; it is stopped like any other.
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        starting.result()
        _tell_serving(served, shape)
        over = asyncio.ensure_future(served.wait())
        await asyncio.wait((over, stopped), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            over.result()
        over.cancel()
    except (UnisonoError, OSError, ModuleNotFoundError):  # of the last it is known what brings it
        raise
    except Exception as error:  # task boundary: a mistake of ours ends the node like any other failure
        logging.getLogger(__name__).exception("%s", served.me)
        raise InvariantError(f"node {served.me} stopped over a mistake of its own: {error!r}") from error
    finally:
        stopped.cancel()
        await _drain(served)
