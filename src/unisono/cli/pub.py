"""`unisono pub`: publish from the shell."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from unisono.errors import UnisonoError
from unisono.machine import Accepted
from unisono.runtime.connect import connect
from unisono.runtime.loop import run


def pub(
    where: Annotated[str, typer.Argument(metavar="WHERE", help="unisono://host:port or a deployment file.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    payload: Annotated[
        list[str] | None, typer.Argument(metavar="[PAYLOAD]...", help="Without any: lines of stdin.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="The deployment's token.", envvar="UNISONO_TOKEN")] = None,
    authority: Annotated[
        str | None, typer.Option(help="Speak TLS with whom this file (or 'system') trusts.", envvar="UNISONO_AUTHORITY")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to find the deployment and its broker.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per outcome.")] = False,
) -> None:
    """Publish each PAYLOAD, or each line of stdin. Exit 0 only if all were accepted.

    Example: unisono pub unisono://127.0.0.1:7474 trades '{"sym": "IBM", "px": 101.2}'
    """
    lines = iter(payload) if payload else (line.rstrip("\n") for line in sys.stdin)
    failed = run(_publish(where, topic, lines, token, authority, timeout, as_json))
    if failed:
        raise UnisonoError(f"{failed} events were not accepted")


async def _publish(
    where: str,
    topic: str,
    lines: Iterator[str],
    token: str | None,
    authority: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    failed = 0
    async with connect(where, token=token, authority=authority, timeout=timeout) as session:
        if not as_json:
            publisher = await session.publisher(topic)
            for line in lines:
                await publisher.send(line.encode())
            await publisher.drain()
            for failure in publisher.failures:
                print(f"{type(failure).__name__.lower()}: {failure.reason}", file=sys.stderr)
            return len(publisher.failures)
        for line in lines:
            outcome = await session.publish(topic, line.encode())
            if isinstance(outcome, Accepted):
                print(f'{{"outcome":"accepted","strength":"{outcome.strength}"}}')
            else:
                failed += 1
                print(f'{{"outcome":"{type(outcome).__name__.lower()}"}}')
    return failed
