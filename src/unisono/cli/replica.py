"""`unisono replica`: a database that follows the order of its topics, and what can be asked about its file."""

import asyncio
import sys
from typing import Annotated, Any

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Token, Where
from unisono.replicas.comparing import Difference, ReplicaFile, differences, read_replica
from unisono.replicas.opening import name_of
from unisono.replicas.replica import Replica, ReplicaStatus
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run, unless_stopped

SAID_EVERY_S = 1.0

replica = typer.Typer(no_args_is_help=True, help="Databases that follow one order of operations.")
Place = Annotated[
    str, typer.Argument(metavar="FILE|URL", help="A replica's SQLite file, or postgres://user@host/name.")
]


@replica.callback()
def _replica() -> None:
    """Databases that follow one order of operations."""


@replica.command()
def serve(
    where: Where,
    place: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="An SQLite file, made if it is not there, or postgres://user@host/name."
        ),
    ],
    topic: Annotated[list[str], typer.Option(help="A topic that carries operations; may be given several times.")],
    name: Annotated[str | None, typer.Option(help="How other replicas call this one.")] = None,
    token: Token = None,
    authority: Authority = None,
    as_json: Json = False,
) -> None:
    """Keep a database up to date until interrupted; other programs may read it meanwhile.

    Example: unisono replica serve unisono://127.0.0.1:7474 app.db --topic stock
    """
    run(unless_stopped(_serve(reach(where, token, authority), place, topic, name, as_json)))


async def _serve(at: Destination, place: str, topics: list[str], name: str | None, as_json: bool) -> None:
    async with (
        connect(at.where, token=at.token, authority=at.authority) as session,
        Replica(session, place, topics, name=name) as served,
    ):
        print(f"{name_of(place)} follows {', '.join(topics)}", file=sys.stderr, flush=True)
        told: ReplicaStatus | None = None
        while True:
            status = served.status()
            if status != told:
                told = status
                sys.stdout.write(_line(status, as_json) + "\n")
                sys.stdout.flush()
            served.check_alive()
            await asyncio.sleep(SAID_EVERY_S)


def _line(status: ReplicaStatus, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(status).decode()
    waits = f", waits: {status.waits_for}" if status.waits_for is not None else ""
    return f"{status.operations} operations{waits}"


@replica.command()
def check(place: Place, as_json: Json = False) -> None:
    """Whose database it is, how far it is, the hash of its state, and whether it is whole.

    Example: unisono replica check app.db
    """
    found = read_replica(place)
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        typer.echo(_described(found))
        for problem in found.problems:
            typer.echo(f"damaged: {problem}")
    raise typer.Exit(1 if found.problems else 0)


@replica.command()
def compare(first: Place, second: Place, as_json: Json = False) -> None:
    """Whether two databases hold the same; if not, the first difference in every table. Exit 1: they differ.

    Example: unisono replica compare eu.db us.db
    """
    files = [read_replica(first), read_replica(second)]
    found = list(differences(first, second)) if files[0].hash != files[1].hash else []
    is_same = files[0].hash == files[1].hash
    if as_json:
        typer.echo(msgspec.json.encode({"same": is_same, "files": files, "differences": found}))
    else:
        for one in files:
            typer.echo(_described(one))
        if not is_same and files[0].operations != files[1].operations:
            typer.echo("they stand at different places of the order: let both catch up, then compare again")
        for difference in found:
            typer.echo(_told(difference))
        typer.echo("the same" if is_same else "different")
    raise typer.Exit(0 if is_same else 1)


def _described(found: ReplicaFile) -> str:
    return f"{found.file}: {found.operations} operations of {found.topics}, state {found.hash[:16]}"


def _told(difference: Difference) -> str:
    first, second = _side(difference.first), _side(difference.second)
    return f"{difference.table}: {first} in the first, {second} in the second"


def _side(row: list[Any] | None) -> str:
    if row is None:
        return "nothing"
    return str(row) if row else "the table"
