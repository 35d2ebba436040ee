"""`unisono pub`: publish from the shell."""

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Token, Where
from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Accepted, Refused
from unisono.model.content import attributes_of, check_attributes
from unisono.model.event import Scalar
from unisono.model.interest import check_topic_name
from unisono.model.time import parse_span
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run


def pub(
    where: Where,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic; it need not exist yet.")],
    payload: Annotated[
        list[str] | None, typer.Argument(metavar="[PAYLOAD]...", help="Without any: lines of stdin.")
    ] = None,
    attr: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE beside the payload, for filters; may be repeated.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="How long the event is of use, like 300ms; who is told later is told so.")
    ] = None,
    token: Token = None,
    authority: Authority = None,
    timeout: Annotated[float, typer.Option(help="Seconds to find the deployment and its broker.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Publish each PAYLOAD, or each line of stdin. Exit 0 only if all were accepted.

    VALUE is a number, true or false, or else text. Without --attr an overlay looks at the scalars of a JSON object.

    Example: unisono pub unisono://127.0.0.1:7474 trades '{"sym": "IBM", "px": 101.2}'
    Example: unisono pub unisono://127.0.0.1:7474 trades hello --attr sym=IBM --attr px=101.2
    """
    attributes = dict(_attribute(text) for text in attr) if attr else None
    check_attributes(attributes or {})
    check_topic_name(topic)
    if deadline is not None:
        parse_span(deadline, "--deadline")
    lines = iter(payload) if payload else (line.rstrip("\n") for line in sys.stdin)
    failed = run(_publish(reach(where, token, authority), topic, lines, attributes, deadline, timeout, as_json))
    if failed:
        raise UnisonoError(f"{failed} event{'s were' if failed > 1 else ' was'} not accepted")


def _attribute(text: str) -> tuple[str, Scalar]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise MisuseError(f"--attr {text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value, type=int | float | bool)
    except msgspec.DecodeError:
        return name, value


def _shown(line: str) -> dict[str, Scalar] | None:
    """What filters see of a line without --attr."""
    try:
        return attributes_of(msgspec.json.decode(line))
    except msgspec.DecodeError:
        return None


async def _publish(
    at: Destination,
    topic: str,
    lines: Iterator[str],
    attributes: dict[str, Scalar] | None,
    deadline: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    failed = 0
    async with connect(at.where, token=at.token, authority=at.authority, timeout=timeout) as session:
        looks = attributes is None and session.deployment.kind != "sequencer"
        if not as_json:
            publisher = await session.publisher(topic)
            for line in lines:
                try:
                    await publisher.send(line.encode(), _shown(line) if looks else attributes, deadline=deadline)
                except MisuseError as error:  # this line alone: too long for the broker, as a rule
                    failed += 1
                    print(f"refused: {error}", file=sys.stderr)
            await publisher.drain()
            for failure in publisher.failures:
                print(f"{type(failure).__name__.lower()}: {failure.reason}", file=sys.stderr)
            return failed + len(publisher.failures)
        for line in lines:
            try:
                shown = _shown(line) if looks else attributes
                outcome = await session.publish(topic, line.encode(), shown, deadline=deadline)
            except MisuseError as error:
                outcome = Refused(0, str(error))
            if isinstance(outcome, Accepted):
                print(f'{{"outcome":"accepted","strength":"{outcome.strength}"}}')
            else:
                failed += 1
                answer = {"outcome": type(outcome).__name__.lower(), "reason": outcome.reason}
                print(msgspec.json.encode(answer).decode())
    return failed
