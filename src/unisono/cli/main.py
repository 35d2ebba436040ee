"""The frame of the command line: which commands there are, and what happens when one cannot run.

A command is one line in `COMMANDS` and a function (or a typer app) of the same name in its module, imported only
when it is the one asked for: `unisono --help` stays quick, and a missing extra concerns only those who need it.
"""

import inspect
import io
import os
import re
import sys
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

import typer

from unisono.errors import UnisonoError, said

CANNOT_RUN = 2
INTERRUPTED = 130
"""What shells say of a command that Ctrl-C has ended."""


class Command(NamedTuple):
    """A name on the command line, its module beneath `unisono.cli`, and what `--help` says of it."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("up", "up", "Try a deployment: regions in one process, with a live view."),
    Command("node", "node", "Run one node of a deployment."),
    Command("status", "status", "Ask every node of a deployment how it is."),
    Command("topics", "topics", "List topics: where each lives, its rate, its subscribers."),
    Command("move", "move", "Move a topic's home to another node."),
    Command("groups", "groups", "List consumer groups and their lag."),
    Command("init", "init", "Write a deployment file to start from."),
    Command("context", "context", "Give addresses short names."),
    Command("pub", "pub", "Publish events from the shell."),
    Command("sub", "sub", "Subscribe and print events."),
    Command("simulate", "measuring.simulate", "Play a scenario in virtual time over many seeds, and judge it."),
    Command("audit", "logs.audit", "Check a journal or a log of deliveries for broken promises."),
    Command("filter", "logs.filter", "Print the JSON lines that match a filter, like grep."),
    Command("story", "logs.story", "Tell one event's life from a journal."),
    Command("replica", "replica", "Keep databases in one order: serve, check, compare."),
    Command("outbox", "outbox", "Publish rows of a database table, once and in commit order."),
    Command("plan", "plan", "Plan groups, homes, leans and regions from subscriptions."),
    Command("experiment", "measuring.experiment", "Run a paper's figure again: table, picture, paper versus ours."),
    Command("bench", "measuring.bench", "Run a benchmark and compare with its last row."),
    Command("rights", "rights", "List who may publish and subscribe where; write NATS rules."),
    Command("doctor", "doctor", "Check what is installed, reachable, broken."),
)

EXTRA_OF_MODULE = {
    "deltalake": "lakehouse",
    "dns": "dns",
    "matplotlib": "experiments",
    "nats": "nats",
    "numba": "fast",
    "numpy": "fast",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "psycopg": "postgres",
    "pyarrow": "arrow",
    "pyroaring": "fast",
    "pyspark": "spark",
    "scipy": "plan",
    "uvloop": "fast",
}


def application(wanted: str | None) -> typer.Typer:
    """The typer application, with only the wanted command's module imported."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def unisono(  # pyright: ignore[reportUnusedFunction]
        show_version: bool = typer.Option(
            False, "--version", help="Print the version.", is_eager=True, callback=_version
        ),
    ) -> None:
        """Quality of service for publish/subscribe across regions.

        Exit status: 0 it holds, 1 it is violated or something is wrong, 2 the command could not run.
        """

    for command in COMMANDS:
        if command.name != wanted:
            app.command(command.name, help=command.help)(_not_imported)
            continue
        found = getattr(import_module(f"unisono.cli.{command.module}"), command.name)
        if isinstance(found, typer.Typer):
            _keep_examples(found)
            app.add_typer(found, name=command.name, help=command.help)
        else:
            app.command(command.name, help=_examples_whole(found.__doc__ or ""))(found)
    return app


def _keep_examples(group: typer.Typer) -> None:
    for each in group.registered_commands:
        each.help = _examples_whole(each.help or (each.callback.__doc__ if each.callback is not None else None) or "")


def _examples_whole(text: str) -> str:
    """Examples are copied from help: each stands on a line of its own, however long, which `\b` asks for."""
    return re.sub(r"(?m)((?:^Example: .*\n?)+)", "\b\n\\1\n", inspect.cleandoc(text))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"unisono {version('unisono')}")
        raise typer.Exit()


def _not_imported() -> None:
    """Stands in the list for a command that was not asked for."""


def completed_words() -> list[str]:
    """When a shell asks how a line may go on: its words so far, which are not those we were called with."""
    if "_UNISONO_COMPLETE" not in os.environ:
        return []
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _on_one_line(problem: str) -> str:
    """Without the line whose caret points at the line above."""
    return " ".join(" ".join(line.split()) for line in problem.splitlines() if line.strip() != "^")


def _stand_firm() -> None:
    """What is closed (`>&-`) is opened on nothing: the next file or socket would get its number. What is printed is
    UTF-8 and arguments are, whatever the locale: events and names are no words of a language."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.argv[1:] = [os.fsencode(word).decode(errors="surrogateescape") for word in sys.argv[1:]]


def main() -> None:
    """The entry point: whatever goes wrong on purpose is one line on stderr and exit 2, never a traceback."""
    _stand_firm()
    words = completed_words() or sys.argv[1:]
    wanted = next((argument for argument in words if not argument.startswith("-")), None)
    try:
        application(wanted)(prog_name="unisono")
        return
    except KeyboardInterrupt:  # while it was still being read
        sys.exit(INTERRUPTED)
    except UnisonoError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF_MODULE:
            raise
        problem = f"{module} is not installed; it comes with: pip install 'unisono[{EXTRA_OF_MODULE[module]}]'"
    except UnicodeEncodeError as error:
        problem = f"{error.object:.60} is not UTF-8"
    except (OSError, UnicodeDecodeError) as error:
        named = getattr(error, "filename", None)
        problem = f"{named}: {said(error)}" if named is not None else said(error)
    print("unisono: " + _on_one_line(problem), file=sys.stderr)
    sys.exit(CANNOT_RUN)
