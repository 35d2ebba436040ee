"""One question to every node of a deployment, side by side."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import typer

from unisono.cli.context import Destination
from unisono.cli.screen import screen
from unisono.errors import MisuseError, PeerError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.runtime.client.finding import find_deployment
from unisono.runtime.links.questions import ask_node
from unisono.runtime.links.security import client_context, token_of

T = TypeVar("T")


def check_homes(deployment: Deployment, what: str) -> None:
    """Raises MisuseError where nobody sequences: then there is nothing to ask for."""
    if not any("sequencer" in node.roles for node in deployment.nodes):
        raise MisuseError(
            f"deployment {deployment.name} has no {what}: nodes of kind {deployment.kind} do not sequence topics. "
            "How its nodes are: unisono status WHERE"
        )


def shown(letter: Any) -> dict[str, Any]:
    """A node's answer as `--json` prints it: without the name that it has on the wire."""
    fields: dict[str, Any] = msgspec.to_builtins(letter)
    del fields["type"]
    return fields


def end_if_silent(silent: dict[str, str], kept: str) -> None:
    """Names the nodes that have not answered, with why, and what of theirs is not in the answer; exit 1."""
    for name, why in silent.items():
        screen(stderr=True).print(f"node {name} does not answer, and {kept} are not shown: {why}")
    if silent:
        raise typer.Exit(1)


async def ask_all(
    at: Destination, timeout_s: float, question: Callable[[Address], Any], answer: type[T]
) -> tuple[Deployment, dict[str, T | TransportError]]:
    """The deployment, and per node its answer, or why there is none."""
    deployment, base = await find_deployment(at.where, at.token or "", timeout_s, at.authority)
    secret = at.token if at.token is not None else token_of(deployment.security, base)
    tls = client_context(deployment.security, base)

    async def ask(where: str) -> T | TransportError:
        try:
            return await ask_node(where, secret, question, answer, timeout_s, tls, deployment)
        except TransportError as error:
            return error
        except PeerError as error:
            if error.code != "deployment":
                raise
            return TransportError(str(error))

    answers = await asyncio.gather(*(ask(node.reached_at) for node in deployment.nodes))
    return deployment, {node.name: found for node, found in zip(deployment.nodes, answers, strict=True)}
