"""Permissions for nats-server, made from the `[[rights]]` of a deployment: what nodes and the embedded broker refuse,
the server refuses too, to programs that speak to it without us.

Passwords are not written: they stand as `$VARIABLE`, which nats-server reads from its environment. The holder of a
token logs in under a name made from it (`brokers.deployed.nats_user`), so clients need nothing but the token.
"""

import json
from collections.abc import Iterable

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.interest import is_pattern
from unisono.model.settings import Right
from unisono.runtime.brokers.contract import RESERVED

NODES_ONLY = tuple(f"{RESERVED}.{rest}.>" for rest in ("*.ctl", "*.adopted", "log", "archive"))
"""Subjects on which only nodes may publish."""
OF_ALL = (f"{RESERVED}.mark.>", f"{RESERVED}.discover")
"""What every client publishes."""
HEARD_BY_ALL = (f"{RESERVED}.mark.>", "_INBOX.>")


def permissions(deployment: Deployment, right: Right) -> dict[str, object]:
    """Of one right, as nats-server reads them."""
    publish = [*_subjects(deployment, right.publish), *OF_ALL]
    subscribe = _subjects(deployment, right.subscribe)
    control = [f"{RESERVED}.{deployment.name}.{kind}.{name}" for kind in ("ctl", "adopted") for name in subscribe]
    if deployment.broker.kind == "jetstream":
        publish += _streams(deployment, right)
    return {"publish": {"allow": publish}, "subscribe": {"allow": [*subscribe, *control, *HEARD_BY_ALL]}}


def _subjects(deployment: Deployment, patterns: Iterable[str]) -> list[str]:
    """Topics, and the cells of those that are cut by a grid."""
    gridded = {topic.name for topic in deployment.topics if topic.grid}
    return [subject for each in patterns for subject in ((each, f"{each}.*") if each in gridded else (each,))]


def _streams(deployment: Deployment, right: Right) -> list[str]:
    """What a client asks JetStream. A stream is named by one word, so a pattern of topics is no pattern of streams."""
    api = ["$JS.API.STREAM.NAMES", "$JS.FC.>"]
    for name in dict.fromkeys((*right.publish, *right.subscribe)):
        if is_pattern(name):
            problem = f"rights.{right.name}: {name!r} cannot be given on JetStream, where every topic is a stream"
            raise MisuseError(f'{problem}: name the topics one by one, or take broker.kind = "nats"')
        stream = f"unisono-{deployment.name}={name.replace('.', '=')}"
        api += [f"$JS.API.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE")]
        if name in right.subscribe:
            api += [f"$JS.API.CONSUMER.CREATE.{stream}.>", f"$JS.API.STREAM.MSG.GET.{stream}"]
    return api


def authorization(deployment: Deployment, users: Iterable[tuple[str, str, Right | None]]) -> str:
    """The section `authorization` of nats-server.conf. `users`: login, the variable of its password, and its right;
    None for those that may publish and subscribe to everything but what only nodes say. Nodes are user `node`."""
    lines = ["authorization {", "  users = ["]
    for user, variable, right in users:
        if user == "node":
            lines.append(f"    {{ user: node, password: ${variable} }}")
            continue
        allowed = {"publish": {"deny": list(NODES_ONLY)}} if right is None else permissions(deployment, right)
        lines.append(f"    # {right.name if right is not None else 'everything that clients may'}")
        lines.append(f"    {{ user: {user}, password: ${variable}, permissions: {json.dumps(allowed)} }}")
    return "\n".join([*lines, "  ]", "}", ""])
