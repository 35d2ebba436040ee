"""`unisono groups`: the consumer groups of a deployment, who is active, and how far each is behind."""

import sys
from functools import partial

import msgspec
from rich.table import Table

from unisono.cli.asking import ask_all, check_homes, end_if_silent
from unisono.cli.context import reach
from unisono.cli.options import Authority, Json, Timeout, Token, Where
from unisono.cli.screen import screen
from unisono.errors import TransportError
from unisono.runtime.driver.loop import run
from unisono.runtime.links.control import Survey, Surveyed

NOTHING = "_unisono.none"
"""A pattern that no topic matches."""


def groups(
    where: Where, token: Token = None, authority: Authority = None, timeout: Timeout = 2.0, as_json: Json = False
) -> None:
    """List consumer groups: the active member, how many wait, and the lag in events and seconds.

    A group lives at the archive; its lag is what the archive has and the group has not committed.
    Exit 0 if all nodes answer, 1 if not.

    Example: unisono groups deployment.toml
    """
    deployment, answers = run(
        ask_all(reach(where, token, authority), timeout, partial(Survey, pattern=NOTHING), Surveyed)
    )
    check_homes(deployment, "consumer groups")
    silent = {name: str(answer) for name, answer in answers.items() if isinstance(answer, TransportError)}
    found = {name: answer.groups for name, answer in answers.items() if not isinstance(answer, TransportError)}
    if as_json:
        rows = [{"archive": name, **msgspec.to_builtins(group)} for name, seen in found.items() for group in seen]
        sys.stdout.write(msgspec.json.encode({"groups": rows, "silent": silent}).decode() + "\n")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("group", "archive", "active", "members", "lag events", "lag s"):
            table.add_column(column, justify="right" if column.startswith(("lag", "members")) else "left")
        for name, seen in found.items():
            for group in seen:
                lag = (str(group.lag_events), f"{group.lag_s:.1f}")
                table.add_row(group.name, name, group.active or "nobody", str(group.members), *lag)
        if any(found.values()):
            screen().print(table)
        elif not silent:
            screen(stderr=True).print("no consumer groups: subscribe(…, group=) makes one")
    end_if_silent(silent, "its groups")
