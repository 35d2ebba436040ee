"""`unisono story FILE EVENT`: one event's life, told from a journal."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from unisono.audit import Story, tell
from unisono.cli.screen import screen


def story(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A journal, or a folder of several machines' journals.")],
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event, as the journal names it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell one event's life from a journal: published, numbered, arrived, held, delivered where and when.

    Times are relative to the publication. Exit: 0 told, 2 the file cannot be read or does not know the event.

    Example: unisono story run.jsonl alice:17
    """
    told = tell(file, event)
    if as_json:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        _print(told)


def _print(told: Story) -> None:
    console = screen()
    number = f", number {told.number}" if told.number is not None else ""
    topic = f" on {told.topic}{number}" if told.topic is not None else ""
    author = f" by {told.publisher}" if told.publisher is not None else ""
    console.print(Text(f"{told.event}{topic}{author}: delivered {told.delivered}, tagged {told.tagged}", "bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for step in told.steps:
        table.add_row("" if step.after_us is None else f"{step.after_us / 1000:+.3f} ms", Text(step.text))
    console.print(table)
    for who, behind_us in told.behind_us.items():
        console.print(f"the clock of {who} is at least {behind_us / 1000:.3f} ms behind that of the publisher")
