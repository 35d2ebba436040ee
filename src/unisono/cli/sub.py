"""`unisono sub`: subscribe from the shell."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, OpenTimeout, Token, Where
from unisono.errors import MisuseError, PeerError
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.position import numbers_of
from unisono.runtime.client.subscription.request import subscribe_request
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run, unless_stopped

SKIPPED = 1 << 40
"""A node that goes on without its data leaves out more numbers than it can have issued."""


def sub(
    where: Where,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names, or patterns like 'trades.*'.")],
    order: Annotated[
        Literal["fifo", "causal", "total", "realtime"], typer.Option(help="The order to promise.")
    ] = "total",
    tolerance: Annotated[
        str | None, typer.Option(help="With --order realtime: events this close may come in either order, like 5ms.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Report a gap instead of waiting longer than this for a missing event, like 500ms."),
    ] = None,
    select: Annotated[str | None, typer.Option("--where", help="Only events that match, like 'px > 100'.")] = None,
    start: Annotated[str, typer.Option(help="latest, earliest, or a position printed by --json.")] = "latest",
    reliable: Annotated[
        bool, typer.Option("--reliable", help="Lose nothing; needs JetStream or a node with the role archive.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Join this consumer group: one member is active, the others wait to take over.")
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="With --group: all members are active, and share the values of this attribute.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Remember the position under this name, and resume there; needs --state.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Directory where positions are kept.")] = None,
    region: Annotated[
        str | None, typer.Option(help="The region this client is in: it prefers the broker's server there.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Write what is delivered to a journal in this directory, for `unisono audit`.")
    ] = None,
    token: Token = None,
    authority: Authority = None,
    timeout: OpenTimeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print events as they are delivered, in the order promised. With --name or --group each is committed.

    Example: unisono sub unisono://127.0.0.1:7474 trades quotes --where "px > 100 and sym = 'IBM'" --count 10
    Example: unisono sub prod orders --group billing --start earliest --reliable
    Example: unisono sub prod orders --group billing --share key
    """
    options: dict[str, Any] = {
        "order": order,
        "tolerance": tolerance,
        "deadline": deadline,
        "where": select,
        "start": start,
        "reliability": "reliable" if reliable else "best-effort",
        "group": group,
        "share": share,
        "name": name,
    }
    subscribe_request(*topics, **options)  # what can be nowhere is told before anything is waited for
    if start not in ("latest", "earliest"):
        numbers_of(start)
    if name is not None and state is None:
        raise MisuseError(f"--name {name} resumes where it was, which is kept in a directory: add --state DIRECTORY")
    session = {"state": state, "region": region, "journal": journal, "timeout": timeout}
    commits = name is not None or group is not None
    at = reach(where, token, authority)
    run(unless_stopped(_subscribe(at, session, tuple(topics), options, count, commits, as_json)))


async def _subscribe(
    at: Destination,
    session_options: dict[str, Any],
    topics: tuple[str, ...],
    options: dict[str, Any],
    count: int | None,
    commits: bool,
    as_json: bool,
) -> None:
    async with connect(at.where, token=at.token, authority=at.authority, **session_options) as session:
        stream = session.subscribe(*topics, **options)
        await _read(stream, ", ".join(topics), options, count, commits, as_json)


async def _read(
    stream: EventStream, names: str, options: dict[str, Any], count: int | None, commits: bool, as_json: bool
) -> None:
    group = options["group"]
    if group is not None:
        print(f"waits for its turn in group {group}", file=sys.stderr, flush=True)
    async with stream:
        print(f"subscribed to {names} ({options['order']})", file=sys.stderr, flush=True)
        seen = 0
        async for event in stream:
            sys.stdout.write(_line(event) if as_json else f"{event.topic}\t{_text(event)}\n")
            sys.stdout.flush()
            if commits:
                await stream.commit(event.position)
            seen += event.event is not None
            if count is not None and seen >= count:
                return


def _text(event: Notification) -> str:
    """An event as it was published; what is not one, or not in order, in brackets."""
    if event.gap is not None:
        missing = event.gap.last - event.gap.first + 1
        events = (
            "1 event" if missing == 1 else f"{missing} events" if missing < SKIPPED else "nobody knows how many events"
        )
        return f"[gap: {events} will not come: {event.gap.reason}]"
    if event.stalled is not None:
        return f"[stalled: nothing of this topic can be delivered for now: {event.stalled.reason}]"
    if event.cut is not None:
        return f"[cut off: cannot be heard any more: {', '.join(name for name, _ in event.cut.publishers)}]"
    text = event.payload.decode(errors="replace")
    if event.out_of_order:
        return f"{text}\t[late: out of order, or of a publisher that does not use unisono]"
    return f"{text}\t[late: delivered after its own deadline]" if event.late else text


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
            fields |= {"id": event.id, "number": event.number, "late": event.late, "attributes": event.attributes}
            fields["data"] = event.data
        except PeerError:
            fields["data"] = None
        if isinstance(fields["data"], bytes):
            fields["data"] = event.payload.decode(errors="replace")
    return msgspec.json.encode(fields).decode() + "\n"
