"""Options that several commands share: where a deployment is, and how to be let in."""

from typing import Annotated

import typer

from unisono.cli.context import complete_where

Where = Annotated[
    str,
    typer.Argument(
        metavar="WHERE",
        help="unisono://host:port, a deployment file, or a context (`unisono context`).",
        autocompletion=complete_where,
    ),
]
Token = Annotated[str | None, typer.Option(help="The deployment's token.", envvar="UNISONO_TOKEN", show_default=False)]
Authority = Annotated[
    str | None,
    typer.Option(
        help="Speak TLS with whom this file (or 'system') trusts.", envvar="UNISONO_AUTHORITY", show_default=False
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for a node.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, in a stable shape.")]
