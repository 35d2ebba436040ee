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
Token = Annotated[
    str | None, typer.Option(help="The token that lets clients in.", envvar="UNISONO_TOKEN", show_default=False)
]
Authority = Annotated[
    str | None,
    typer.Option(
        help="Use TLS, and trust the certificates that this file, or 'system', vouches for.",
        envvar="UNISONO_AUTHORITY",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option(min=0.01, help="Give up on a node after this many seconds.")]
OpenTimeout = Annotated[float, typer.Option(min=0.01, help="Give up connecting after this many seconds.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port of the first node; 0 takes free ones.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, in a stable shape.")]
