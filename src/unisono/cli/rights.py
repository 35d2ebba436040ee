"""`unisono rights`: who may publish on and subscribe to what, and the same as permissions for nats-server."""

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from unisono.cli.options import Json
from unisono.cli.screen import screen
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment, load_deployment
from unisono.model.settings import Right


def rights(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The deployment file.")],
    nats: Annotated[
        bool, typer.Option("--nats", help="Print the section `authorization` of nats-server.conf.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the [[rights]] of a deployment, or make permissions for NATS from them.

    With --nats the tokens have to be there (in the variables and files that the deployment names), because logins are
    made from them; they are not printed: nats-server reads each password from the variable that stands in its place.

    Example: unisono rights deployment.toml --nats > authorization.conf
    """
    deployment = load_deployment(file)
    if nats:
        sys.stdout.write(_for_nats(deployment, file.parent))
    elif as_json:
        sys.stdout.write(msgspec.json.encode({"rights": deployment.rights}).decode() + "\n")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("right", "secret in", "may publish on", "may subscribe to"):
            table.add_column(column, overflow="fold")
        for right in deployment.rights:
            patterns = (", ".join(right.publish) or "nothing", ", ".join(right.subscribe) or "nothing")
            table.add_row(right.name, _place(right), *patterns)
        screen().print(table if deployment.rights else "no [[rights]]: whoever is let in may do everything")


def _place(right: Right) -> str:
    return f"${right.token_variable}" if right.token_variable is not None else f"file {right.token_file}"


def _for_nats(deployment: Deployment, base: Path) -> str:
    from unisono.runtime.brokers.deployed import nats_user
    from unisono.runtime.brokers.nats.permissions import authorization
    from unisono.runtime.links.security import tokens_of

    if deployment.broker.kind not in ("nats", "jetstream"):
        raise MisuseError(f"broker.kind is {deployment.broker.kind!r}: nodes check rights, there is no NATS to tell")
    security, tokens = deployment.security, tokens_of(deployment.security, base, deployment.rights)
    if not tokens.node:
        raise MisuseError("nodes need a token: security.node_token_variable or security.node_token_file")
    users: list[tuple[str, str, Right | None]] = [
        ("node", security.node_token_variable or security.token_variable or "UNISONO_NODE_TOKEN", None)
    ]
    if tokens.client and tokens.client != tokens.node:
        users.append((nats_user(tokens.client), security.token_variable or "UNISONO_TOKEN", None))
    for token, right in tokens.rights:
        variable = right.token_variable or f"UNISONO_{right.name.upper().replace('-', '_')}_TOKEN"
        users.append((nats_user(token), variable, right))
    missing = [variable for _, variable, _ in users if variable not in os.environ]
    if missing:
        screen(stderr=True).print(f"give nats-server these variables, from your files: {', '.join(missing)}")
    return authorization(deployment, users)
