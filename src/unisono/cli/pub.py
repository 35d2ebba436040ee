"""`unisono pub`: publish from the shell."""

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, OpenTimeout, Token, Where
from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Accepted, Refused, Unknown
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
    timeout: OpenTimeout = 10.0,
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
    lines = iter(payload) if payload else (line.rstrip("\n") for line in sys.stdin)
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
) -> _Tally:
    tally = _Tally()
    async with connect(at.where, token=at.token, authority=at.authority, timeout=timeout) as session:
        looks = attributes is None and session.deployment.kind != "sequencer"
        if not as_json:
            publisher = await session.publisher(topic)
            for line in lines:
                try:
                    await publisher.send(line.encode(), _shown(line) if looks else attributes, deadline=deadline)
                except MisuseError as error:  # this line alone: too long for the broker, as a rule
                    tally.refused += 1
                    print(f"refused: {error}", file=sys.stderr)
            await publisher.drain()
            for failure in publisher.failures:
                print(f"{type(failure).__name__.lower()}: {failure.reason}", file=sys.stderr)
            return _Tally(publisher.accepted, tally.refused + publisher.refused, publisher.unknown)
        for line in lines:
            try:
                shown = _shown(line) if looks else attributes
                outcome = await session.publish(topic, line.encode(), shown, deadline=deadline)
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
