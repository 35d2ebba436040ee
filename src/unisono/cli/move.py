"""`unisono move`: a topic's home goes where a person wants it."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from unisono.cli.asking import check_homes, shown
from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Timeout, Token, Where
from unisono.errors import MisuseError, TransportError
from unisono.model.ids import Address
from unisono.runtime.client.finding import find_deployment
from unisono.runtime.driver.loop import run
from unisono.runtime.links.control import MoveOrdered, MoveTopic
from unisono.runtime.links.questions import ask_node
from unisono.runtime.links.security import client_context, token_of

T = TypeVar("T")


def move(
    where: Where,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its new home.")],
    token: Token = None,
    authority: Authority = None,
    timeout: Timeout = 5.0,
    as_json: Json = False,
) -> None:
    """Move a topic's home to another node, while it is used.

    Homes move by themselves to where their topics are used, unless the file says placement = "fixed" or names the home.
    What a person moves stays for half a minute at least; name its home in the file if it is to stay for ever.

    Example: unisono move deployment.toml trades eu-1
    """
    answer = run(ask_root(reach(where, token, authority), timeout, lambda me: MoveTopic(me, topic, node), MoveOrdered))
    if answer.problem is not None:
        raise MisuseError(answer.problem)
    if as_json:
        sys.stdout.write(msgspec.json.encode(shown(answer)).decode() + "\n")
    elif answer.at == node:
        print(f"{topic} is at home at {node}")
    else:
        print(f"{topic} moves from {answer.at} to {node}")


async def ask_root(at: Destination, timeout_s: float, question: Callable[[Address], Any], answer: type[T]) -> T:
    """One question to the root of a deployment: it knows all topics, and moves them."""
    deployment, base = await find_deployment(at.where, at.token or "", timeout_s, at.authority)
    check_homes(deployment, "homes of topics")
    secret = at.token if at.token is not None else token_of(deployment.security, base)
    tls = client_context(deployment.security, base)
    root = deployment.root
    try:
        return await ask_node(root.reached_at, secret, question, answer, timeout_s, tls, deployment)
    except TransportError as error:
        raise TransportError(f"node {root.name}, the root, moves homes, and does not answer: {error}") from None
