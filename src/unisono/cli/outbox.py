"""`unisono outbox`: rows that are committed in a table of PostgreSQL become events."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Token, Where
from unisono.runtime.driver.loop import run, unless_stopped

if TYPE_CHECKING:
    from unisono.outbox.relay import OutboxStatus

SAID_EVERY_S = 1.0


def outbox(
    where: Where,
    url: Annotated[str, typer.Argument(metavar="URL", help="The database: postgres://user@host/name.")],
    table: Annotated[str, typer.Option(help="The table whose rows become events.")],
    topic: Annotated[str | None, typer.Option(help="Where they go, if no column topic says so.")] = None,
    otherwise: Annotated[str | None, typer.Option(help="Where rows go whose column topic is no topic.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Whose events these are, for ever; of database and table, if not given.")
    ] = None,
    token: Token = None,
    authority: Authority = None,
    as_json: Json = False,
) -> None:
    """Relay rows to topics until interrupted: each once, in the order of the commits. Killed, it goes on where it was.

    Example: unisono outbox unisono://127.0.0.1:7474 postgres://app@127.0.0.1/shop --table outbox
    """
    run(unless_stopped(_relay(reach(where, token, authority), url, table, topic, otherwise, name, as_json)))


async def _relay(
    at: Destination,
    url: str,
    table: str,
    topic: str | None,
    otherwise: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    from unisono.outbox.relay import Outbox  # help is there without the extra `postgres`
    from unisono.postgres.address import place_of

    to: dict[str, Any] = {"topic": topic, "otherwise": otherwise, "name": name}
    async with Outbox(at.where, url, table, token=at.token, authority=at.authority, **to) as relay:
        print(f"rows of {table} at {place_of(url)} become events", file=sys.stderr, flush=True)
        relaying = asyncio.ensure_future(relay.run())
        told: OutboxStatus | None = None
        try:
            while not relaying.done():
                status = relay.status()
                if status != told:
                    told = status
                    sys.stdout.write(_line(status, as_json) + "\n")
                    sys.stdout.flush()
                await asyncio.wait([relaying], timeout=SAID_EVERY_S)
            relaying.result()
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])


def _line(status: "OutboxStatus", as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(status).decode()
    waits = f", waits: {status.waits_for}" if status.waits_for is not None else ""
    return f"{status.published} rows up to {status.upto}; the server keeps {status.kept_bytes} bytes{waits}"
