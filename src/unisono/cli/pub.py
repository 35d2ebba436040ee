"""`unisono pub`: publish from the shell."""

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Token, Where
from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Accepted, Refused, Unknown
from unisono.model.content import attributes_of, check_attributes
from unisono.model.event import Scalar
from unisono.model.interest import check_topic_name
from unisono.model.time import parse_span
from unisono.runtime.client.session import Session
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run

T = TypeVar("T")

OPEN_S = 10.0
TOLD_IF_S = 3.0
"""Who would wait longer than this is told."""
CHUNK_BYTES = 1 << 16
"""Read from stdin at once."""


def pub(
    where: Where,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic; it need not exist yet.")],
    payload: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="What to publish; without any, each line of stdin is one."),
    ] = None,
    attr: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An attribute, for filters; may be repeated.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="How long the event is of use, like 300ms; delivered later it is marked late.")
    ] = None,
    token: Token = None,
    authority: Authority = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Give up connecting after this many seconds (10 if not given), and then waiting for outcomes.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish each PAYLOAD, or each line of stdin. Exit 0 only if all were accepted.

    VALUE is a number, true, false, or else text. Without --attr, overlays filter by the fields of a JSON payload.

    Example: unisono pub unisono://127.0.0.1:7474 trades '{"sym": "IBM", "px": 101.2}'
    Example: unisono pub unisono://127.0.0.1:7474 trades hello --attr sym=IBM --attr px=101.2
    """
    attributes = dict(_attribute(text) for text in attr) if attr else None
    check_attributes(attributes or {})
    check_topic_name(topic)
    if deadline is not None:
        parse_span(deadline, "--deadline")
    lines = _given(payload) if payload else _typed()
    tally = run(_publish(reach(where, token, authority), topic, lines, attributes, deadline, timeout, as_json))
    if tally.refused or tally.unknown:
        raise UnisonoError(tally.told(topic))
    if not as_json:
        print(tally.told(topic), file=sys.stderr)


class _Tally(msgspec.Struct):
    """What became of the events: definite and indefinite outcomes are never counted together."""

    accepted: int = 0
    refused: int = 0
    unknown: int = 0

    def told(self, topic: str) -> str:
        counts = {
            "accepted": self.accepted,
            "refused": self.refused,
            "may or may not have been published": self.unknown,
        }
        words = [f"{count} {what}" for what, count in counts.items() if count]
        return f"{topic}: {', '.join(words) or 'nothing to publish'}"


def _attribute(text: str) -> tuple[str, Scalar]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise MisuseError(f"--attr {text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value, type=int | float | bool)
    except msgspec.DecodeError:
        return name, value


async def _settled(session: Session, topic: str, waiting: Awaitable[T], timeout: float | None) -> T:
    """Outcomes can take a while where the home of the topic is away; whoever waits is told for what. After the time
    that was given they are unknown."""
    settling = asyncio.ensure_future(waiting)
    try:
        first = TOLD_IF_S if timeout is None else min(timeout, TOLD_IF_S)
        done, _ = await asyncio.wait([settling], timeout=first)
        if not done and first == TOLD_IF_S:
            print(f"waits for the node where {topic} lives: it has not answered yet", file=sys.stderr)
        if not done and timeout is not None:
            done, _ = await asyncio.wait([settling], timeout=timeout - first)
            if not done:
                session.give_up(f"no answer within {timeout:g} s (--timeout)")
        return await settling
    finally:
        settling.cancel()


async def _given(payloads: list[str]) -> AsyncIterator[bytes]:
    for payload in payloads:
        yield payload.encode(errors="surrogateescape")  # bytes as they were typed


async def _typed() -> AsyncIterator[bytes]:
    """The lines of stdin, each as soon as it is there: whoever waits for the next one keeps no other waiting.

    The thread that reads can be left where it waits, and the file beneath the buffer has no lock that it would hold.
    """
    loop, file = asyncio.get_running_loop(), sys.stdin.buffer
    read = file.raw.read if isinstance(file, io.BufferedReader) else file.read
    chunks: asyncio.Queue[bytes] = asyncio.Queue(1)

    def hand_over() -> None:
        with suppress(RuntimeError, CancelledError):  # the loop is closed: nobody reads any more
            while asyncio.run_coroutine_threadsafe(put(read(CHUNK_BYTES)), loop).result():
                pass

    async def put(chunk: bytes) -> bool:
        await chunks.put(chunk)
        return bool(chunk)

    if sys.stdin.isatty():
        print("each line that you type is an event; Ctrl-D ends", file=sys.stderr)
    threading.Thread(target=hand_over, daemon=True).start()
    begun: list[bytes] = []
    while chunk := await chunks.get():
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield (b"".join([*begun, line])).removesuffix(b"\r")
            begun.clear()
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def _shown(line: bytes) -> dict[str, Scalar] | None:
    """What filters see of a line without --attr."""
    try:
        return attributes_of(msgspec.json.decode(line))
    except msgspec.DecodeError:
        return None


async def _publish(
    at: Destination,
    topic: str,
    lines: AsyncIterator[bytes],
    attributes: dict[str, Scalar] | None,
    deadline: str | None,
    timeout: float | None,
    as_json: bool,
) -> _Tally:
    tally = _Tally()
    async with connect(at.where, token=at.token, authority=at.authority, timeout=timeout or OPEN_S) as session:
        looks = attributes is None and session.deployment.kind != "sequencer"
        if not as_json:
            publisher = await session.publisher(topic)
            async for line in lines:
                try:
                    await publisher.send(line, _shown(line) if looks else attributes, deadline=deadline)
                except MisuseError as error:  # this line alone: too long for the broker, as a rule
                    tally.refused += 1
                    print(f"refused: {error}", file=sys.stderr)
            await _settled(session, topic, publisher.drain(), timeout)
            for failure in publisher.failures:
                print(f"{type(failure).__name__.lower()}: {failure.reason}", file=sys.stderr)
            return _Tally(publisher.accepted, tally.refused + publisher.refused, publisher.unknown)
        async for line in lines:
            try:
                shown = _shown(line) if looks else attributes
                publishing = session.publish(topic, line, shown, deadline=deadline)
                outcome = await _settled(session, topic, publishing, timeout)
            except MisuseError as error:
                outcome = Refused(0, str(error))
            match outcome:
                case Accepted(strength=strength):
                    tally.accepted += 1
                    print(f'{{"outcome":"accepted","strength":"{strength}"}}', flush=True)
                case Refused(reason=reason) | Unknown(reason=reason):
                    tally.refused += isinstance(outcome, Refused)
                    tally.unknown += isinstance(outcome, Unknown)
                    answer = {"outcome": type(outcome).__name__.lower(), "reason": reason}
                    print(msgspec.json.encode(answer).decode(), flush=True)
    return tally
