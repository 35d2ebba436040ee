"""`unisono context`: addresses are typed once, and called by a name wherever one goes.

    unisono context add prod unisono://eu.example.com:7474,us.example.com:7474 --authority ca.pem
    unisono sub prod trades quotes

Contexts stand in one TOML file of the user's; it names addresses, files and variables, never a secret.
"""

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from unisono.cli.screen import screen
from unisono.errors import FormatError, MisuseError, said

NAME = re.compile(r"[A-Za-z0-9_-]+")

context = typer.Typer(no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class Context(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A deployment, as this user reaches it."""

    where: str
    authority: str | None = None
    token_variable: str | None = None


class Destination(Struct, frozen=True):
    """What an address on the command line stands for, and what to be let in with."""

    where: str
    token: str | None
    authority: str | None


def contexts_file() -> Path:
    """`UNISONO_CONTEXTS`, or where the user keeps configuration."""
    given = os.environ.get("UNISONO_CONTEXTS")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "unisono" / "contexts.toml"


def read_contexts() -> dict[str, Context]:
    file = contexts_file()
    try:
        return msgspec.convert(tomllib.loads(file.read_text()), dict[str, Context])
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise FormatError(str(file), f"{error}; mend the file or remove it") from None
    except UnicodeDecodeError as error:
        raise FormatError(str(file), f"{said(error)}; mend the file or remove it") from None


def reach(where: str, token: str | None = None, authority: str | None = None) -> Destination:
    """What a command's WHERE means: a plain word is a context, unless there is a file of that name."""
    if NAME.fullmatch(where) is None or Path(where).exists():
        return Destination(where, token, authority)
    found = read_contexts().get(where)
    if found is None:
        raise MisuseError(
            f"{where!r} is neither an address, nor a file here, nor a context: write unisono://host:port or "
            f"deployment.toml, or name it with: unisono context add {where} unisono://host:port"
        )
    if token is None and found.token_variable is not None:
        token = os.environ.get(found.token_variable)
        if token is None:
            raise MisuseError(f"context {where}: set the environment variable {found.token_variable} to its token")
    return Destination(found.where, token, authority or found.authority)


def complete_where(incomplete: str) -> list[str]:
    """Names of contexts, for the shell; files it knows itself."""
    try:
        return [name for name in read_contexts() if name.startswith(incomplete)]
    except (FormatError, OSError):
        return []


@context.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One word.")],
    where: Annotated[str, typer.Argument(metavar="WHERE", help="unisono://host:port or a deployment file.")],
    authority: Annotated[str | None, typer.Option(help="Speak TLS with whom this file, or 'system', trusts.")] = None,
    token_variable: Annotated[
        str | None, typer.Option(help="The environment variable that has the token; the token itself is not kept.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give an address a short name. A name that exists gets the new address.

    Example: unisono context add prod unisono://eu.example.com:7474
    """
    if NAME.fullmatch(name) is None:
        raise MisuseError(f"{name!r}: a context's name is one word of letters, digits, _ and -")
    if "://" not in where:
        if not Path(where).is_file():
            raise MisuseError(f"{where} is no file here; an address is unisono://host:port")
        where = str(Path(where).absolute())
    else:
        from unisono.runtime.client.finding import check_address  # completion asks this module, and has to be quick

        check_address(where)
    if authority not in (None, "system"):
        if not Path(authority).is_file():
            raise MisuseError(f"--authority {authority}: no such file")
        authority = str(Path(authority).absolute())
    made = Context(where, authority, token_variable)
    _write(read_contexts() | {name: made})
    if as_json:
        sys.stdout.write(msgspec.json.encode({name: made}).decode() + "\n")
    else:
        screen(stderr=True).print(f"{name} is {where}")


@context.command("list")
def list_(as_json: AsJson = False) -> None:
    """Print all contexts.

    Example: unisono context list --json
    """
    known = read_contexts()
    if as_json:
        sys.stdout.write(msgspec.json.encode(known).decode() + "\n")
        return
    for name, each in sorted(known.items()):
        print(f"{name}\t{each.where}")
    if not known:
        screen(stderr=True).print("none yet: unisono context add NAME unisono://host:port")


@context.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The context.", autocompletion=complete_where)],
    as_json: AsJson = False,
) -> None:
    """Remove a context.

    Example: unisono context remove prod
    """
    known = read_contexts()
    removed = known.pop(name, None)
    if removed is None:
        raise MisuseError(f"no context {name!r}; there are: {', '.join(sorted(known)) or 'none'}")
    _write(known)
    if as_json:
        sys.stdout.write(msgspec.json.encode({name: removed}).decode() + "\n")


def _write(known: dict[str, Context]) -> None:
    """Replaced as a whole: who reads it meanwhile sees the old one or the new one."""
    file = contexts_file()
    lines = []
    for name, each in sorted(known.items()):
        lines.append(f"[{name}]")
        fields = msgspec.to_builtins(each)
        lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("\n".join(lines) + "\n" if lines else "")
        beside.replace(file)
    except OSError as error:
        todo = "name another file by the variable UNISONO_CONTEXTS"
        raise MisuseError(f"contexts cannot be kept in {file}: {said(error)}; {todo}") from None
