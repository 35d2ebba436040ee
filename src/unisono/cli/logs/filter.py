"""`unisono filter EXPR [FILE ...]`: print the JSON lines that match, like grep."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from unisono.errors import FormatError, MisuseError
from unisono.model.predicate import Filter, flatten, parse

MATCHED, NOT_MATCHED, TROUBLE = 0, 1, 2
_SHOWN_CHARS = 200

_decoder = msgspec.json.Decoder(dict[str, object])


class _Tally(msgspec.Struct):
    """What one run saw; `--json` prints it as its last line."""

    lines: int = 0
    matched: int = 0
    bad: int = 0


def filter(
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="For example: \"px > 100 and sym = 'IBM'\".")],
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE.jsonl", help="'-' is standard input.")] = None,
    invert: Annotated[bool, typer.Option("--invert-match", "-v", help="Print the lines that do not match.")] = False,
    count: Annotated[bool, typer.Option("--count", "-c", help="Print only how many lines match.")] = False,
    number: Annotated[bool, typer.Option("--line-number", "-n", help="Print each line's number before it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print {file, line, event} per match, then a tally.")] = False,
) -> None:
    """Print the JSON lines that match a filter, like grep.

    Lines come out unchanged and in order. A line that is not a JSON object is reported on standard error with its
    number, and the rest goes on. Exit: 0 something matched, 1 nothing did, 2 trouble (a bad filter, file or line).

    Example: unisono filter "px between 100 and 200 and sym in ('IBM', 'SAP')" trades.jsonl
    """
    try:
        wanted = parse(expression)
    except FormatError as error:
        typer.echo(f"unisono filter: {error}", err=True)
        raise typer.Exit(TROUBLE) from None
    if wanted.is_empty:
        typer.echo("unisono filter: this filter contradicts itself: no line can match", err=True)
    paths = files or ["-"]
    tally, out = _Tally(), sys.stdout.buffer
    unreadable = 0
    for path in paths:
        with ExitStack() as stack:
            source = _open(path, stack)
            if source is None:
                unreadable += 1
                continue
            name = "(standard input)" if path == "-" else path
            shown = f"{name}:".encode() if len(paths) > 1 else b""
            for line_number, line in _matching(wanted, invert, source, name, tally):
                if as_json and not count:
                    row = {"file": name, "line": line_number, "event": msgspec.Raw(line.strip())}
                    out.write(msgspec.json.encode(row) + b"\n")
                elif not count:
                    place = b"%d:" % line_number if number else b""
                    out.write(shown + place + (line if line.endswith(b"\n") else line + b"\n"))
    if as_json:
        out.write(msgspec.json.encode(tally) + b"\n")
    elif count:
        out.write(b"%d\n" % tally.matched)
    out.flush()
    raise typer.Exit(TROUBLE if tally.bad or unreadable else MATCHED if tally.matched else NOT_MATCHED)


def _open(path: str, stack: ExitStack) -> BinaryIO | None:
    if path == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(path).open("rb"))
    except OSError as error:
        typer.echo(f"unisono filter: {path}: {error.strerror}", err=True)
        return None


def _matching(
    wanted: Filter, invert: bool, source: Iterable[bytes], name: str, tally: _Tally
) -> Iterable[tuple[int, bytes]]:
    for line_number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        tally.lines += 1
        try:
            matches = wanted.matches(flatten(_decoder.decode(line)))
        except (msgspec.DecodeError, MisuseError, RecursionError) as error:
            tally.bad += 1
            text = line.decode("utf-8", "replace").strip()
            short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
            typer.echo(f"{name}:{line_number}: {error}: {short}", err=True)
            continue
        if matches != invert:
            tally.matched += 1
            yield line_number, line
