"""`unisono pub`: publish from the shell."""

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Accepted, Refused
from unisono.model.event import Scalar
from unisono.runtime.connect import connect
from unisono.runtime.content import attributes_of, check_attributes
from unisono.runtime.loop import run


def pub(
    where: Annotated[str, typer.Argument(metavar="WHERE", help="unisono://host:port or a deployment file.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    payload: Annotated[
        list[str] | None, typer.Argument(metavar="[PAYLOAD]...", help="Without any: lines of stdin.")
    ] = None,
    attr: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE beside the payload, for filters; may be repeated.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="The deployment's token.", envvar="UNISONO_TOKEN")] = None,
    authority: Annotated[
        str | None, typer.Option(help="Speak TLS with whom this file (or 'system') trusts.", envvar="UNISONO_AUTHORITY")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to find the deployment and its broker.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per outcome.")] = False,
) -> None:
    """Publish each PAYLOAD, or each line of stdin. Exit 0 only if all were accepted.

    VALUE is a number, true or false, or else text. Without --attr an overlay looks at the scalars of a JSON object.

    Example: unisono pub unisono://127.0.0.1:7474 trades '{"sym": "IBM", "px": 101.2}'
    Example: unisono pub unisono://127.0.0.1:7474 trades hello --attr sym=IBM --attr px=101.2
    """
    attributes = dict(_attribute(text) for text in attr) if attr else None
    check_attributes(attributes or {})
    lines = iter(payload) if payload else (line.rstrip("\n") for line in sys.stdin)
    failed = run(_publish(where, topic, lines, attributes, token, authority, timeout, as_json))
    if failed:
        raise UnisonoError(f"{failed} events were not accepted")


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
    where: str,
    topic: str,
    lines: Iterator[str],
    attributes: dict[str, Scalar] | None,
    token: str | None,
    authority: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    failed = 0
    async with connect(where, token=token, authority=authority, timeout=timeout) as session:
        looks = attributes is None and session.deployment.is_overlay
        if not as_json:
            publisher = await session.publisher(topic)
            for line in lines:
                try:
                    await publisher.send(line.encode(), _shown(line) if looks else attributes)
                except MisuseError as error:  # this line alone: too long for the broker, as a rule
                    failed += 1
                    print(f"refused: {error}", file=sys.stderr)
            await publisher.drain()
            for failure in publisher.failures:
                print(f"{type(failure).__name__.lower()}: {failure.reason}", file=sys.stderr)
            return failed + len(publisher.failures)
        for line in lines:
            try:
                outcome = await session.publish(topic, line.encode(), _shown(line) if looks else attributes)
            except MisuseError as error:
                outcome = Refused(0, str(error))
            if isinstance(outcome, Accepted):
                print(f'{{"outcome":"accepted","strength":"{outcome.strength}"}}')
            else:
                failed += 1
                print(f'{{"outcome":"{type(outcome).__name__.lower()}"}}')
    return failed
