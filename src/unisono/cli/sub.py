"""`unisono sub`: subscribe from the shell."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from unisono.errors import PeerError
from unisono.runtime.connect import connect
from unisono.runtime.loop import run, stop_signal
from unisono.runtime.notification import Notification
from unisono.runtime.stream import Stream


def sub(
    where: Annotated[str, typer.Argument(metavar="WHERE", help="unisono://host:port or a deployment file.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics or patterns like 'trades.*'.")],
    order: Annotated[Literal["fifo", "causal", "total"], typer.Option(help="What is promised.")] = "total",
    deadline: Annotated[str | None, typer.Option(help="The longest wait before a gap, like 500ms.")] = None,
    select: Annotated[str | None, typer.Option("--where", help="Only what matches, like 'px > 100'.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after so many events.")] = None,
    name: Annotated[str | None, typer.Option(help="Resume where this name was; needs --state.")] = None,
    state: Annotated[Path | None, typer.Option(help="Directory of committed positions.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Directory for a journal of what is delivered.")] = None,
    token: Annotated[str | None, typer.Option(help="The deployment's token.", envvar="UNISONO_TOKEN")] = None,
    authority: Annotated[
        str | None, typer.Option(help="Speak TLS with whom this file (or 'system') trusts.", envvar="UNISONO_AUTHORITY")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to find the deployment and its broker.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per notification.")] = False,
) -> None:
    """Print what is published on topics, in the order promised.

    Example: unisono sub unisono://127.0.0.1:7474 trades quotes --where "px > 100 and sym = 'IBM'" --count 10
    """
    options = {"token": token, "authority": authority, "state": state, "journal": journal, "timeout": timeout}
    run(_subscribe(where, tuple(topics), order, deadline, select, count, name, options, as_json))


async def _subscribe(
    where: str,
    topics: tuple[str, ...],
    order: Literal["fifo", "causal", "total"],
    deadline: str | None,
    select: str | None,
    count: int | None,
    name: str | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    stop = stop_signal()
    async with (
        connect(where, **options) as session,
        session.subscribe(*topics, order=order, deadline=deadline, name=name, where=select) as stream,
    ):
        print(f"subscribed to {', '.join(topics)} ({order})", file=sys.stderr, flush=True)
        printing = asyncio.ensure_future(_print(stream, count, name, as_json))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((printing, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if printing.done():
            printing.result()
        printing.cancel()


async def _print(stream: Stream, count: int | None, name: str | None, as_json: bool) -> None:
    seen = 0
    async for event in stream:
        sys.stdout.write(_line(event) if as_json else f"{event.topic}\t{_text(event)}\n")
        sys.stdout.flush()
        if name is not None:
            await stream.commit(event.position)
        seen += event.event is not None
        if count is not None and seen >= count:
            return


def _text(event: Notification) -> str:
    if event.gap is not None:
        return f"[gap {event.gap.first}-{event.gap.last}: {event.gap.reason}]"
    if event.stalled is not None:
        return f"[stalled: {event.stalled.reason}]"
    if event.cut is not None:
        return f"[cut off: {', '.join(f'{name} after {last}' for name, last in event.cut.publishers)}]"
    return event.payload.decode(errors="replace")


def _line(event: Notification) -> str:
    fields: dict[str, object] = {"topic": event.topic, "position": event.position}
    if event.gap is not None:
        fields["gap"] = [event.gap.first, event.gap.last]
        fields["reason"] = event.gap.reason
    elif event.stalled is not None:
        fields["stalled"] = event.stalled.reason
    elif event.cut is not None:
        fields["cut"] = dict(event.cut.publishers)
    else:
        try:
            fields |= {"id": event.id, "number": event.number, "late": event.late, "data": event.data}
        except PeerError:
            fields["data"] = None
        if isinstance(fields["data"], bytes):
            fields["data"] = event.payload.decode(errors="replace")
    return msgspec.json.encode(fields).decode() + "\n"
