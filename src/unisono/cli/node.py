"""`unisono node FILE NAME`: one node of a deployment, until it is told to stop."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from unisono.errors import InvariantError, UnisonoError
from unisono.model.deployment import load_deployment
from unisono.runtime.loop import run, stop_signal
from unisono.runtime.node import Node, NodeConfig, check_runnable


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
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what happens on links and at the broker.")] = False,
) -> None:
    """Run one node of a deployment. SIGTERM or Ctrl-C stops it cleanly, with a snapshot.

    Example: unisono node deployment.toml eu-1

    A node whose data was rolled back, cut or emptied stops. Put the newest data back; if there is none, go on without
    what is missing: numbers continue far above all that were issued, subscribers are told gaps, and publications
    without an outcome end as unknown. The flag is for one start.

    Example: unisono node deployment.toml eu-1 --new-incarnation
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    deployment = load_deployment(file)
    check_runnable(deployment, name)
    run(
        _serve(
            Node(
                deployment,
                name,
                file.parent,
                NodeConfig(journal=journal, standby=standby, new_incarnation=new_incarnation),
            )
        )
    )


def watch(loop: asyncio.AbstractEventLoop, served: Node) -> None:
    """Whatever breaks in a callback of the loop, and would only be a line in the log, ends the node; what the other end
    of a connection can break does not."""

    def broke(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        loop.default_exception_handler(context)
        if isinstance(error, Exception) and not isinstance(error, UnisonoError | OSError | EOFError):
            served.failed(error)

    loop.set_exception_handler(broke)


async def _serve(served: Node) -> None:
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
        roles = ", ".join(served.spec.roles)
        Console(stderr=True).print(f"{served.me} ({roles}) listens on port {served.port}", highlight=False)
        over = asyncio.ensure_future(served.wait())
        await asyncio.wait((over, stopped), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            over.result()
        over.cancel()
    except (UnisonoError, OSError):
        raise
    except Exception as error:  # task boundary: a mistake of ours ends the node like any other failure
        logging.getLogger(__name__).exception("%s", served.me)
        raise InvariantError(f"node {served.me} stopped over a mistake of its own: {error!r}") from error
    finally:
        stopped.cancel()
        await served.stop()
