"""Blocks of code on the pages: programs run, or carry a marker with its reason; deployments and settings are ones.

A block that is not run still has to be Python, and whatever it imports from unisono has to be there. Commands are
played by tests, or carry a marker, too; those that are not played have to be commands, with options that there are.
"""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from unisono.cli.main import COMMANDS, application
from unisono.model.deployment import check_deployment

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>[a-z]+)\n(?P<text>.*?)^```$", re.M | re.S)
OF_EXTENDING = ROOT / "docs" / "extending"
"""Its programs are built and run by `test_extending.py`."""
API = ROOT / "docs" / "reference" / "api.md"
"""Its parts of programs are run by `test_api_page.py`."""
OF_TUTORIALS = ROOT / "docs" / "tutorials"
"""Its programs and commands are played by `tests/runtime/test_hour.py`."""
TYPED = re.compile(r"^ {4}(?:\$ )?(?:\.venv/bin/)?(unisono [^\n]*)$", re.M)
SHELL = re.compile(
    r"(?:^<!-- (?P<mark>not run|run by): (?P<reason>[^\n]+) -->\n\n?)?(?P<text>(?:^ {4}[^\n]*\n)+)", re.M
)
"""A block of indented lines, and what is said of it."""
MARKED_COMMANDS = 14
"""Blocks of commands that no test types: they want machines, roots or services that are not there."""
MARKED = 17
"""Programs that are not run. A new one needs a reason, and this number; better is one that runs."""


NAMES = {command.name for command in COMMANDS}


class Block(NamedTuple):
    """A block, where it stands, and why it is not run."""

    where: str
    page: Path
    kind: str
    text: str
    reason: str | None


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            where = f"{page.relative_to(ROOT)}:{line}"
            yield Block(where, page, found["kind"], found["text"], found["reason"])


def of(kind: str) -> list[Block]:
    return [block for block in blocks() if block.kind == kind]


def missing_in(program: str) -> list[str]:
    """What it imports from unisono and is not there."""
    missing = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unisono":
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("unisono"):
                    missing.append(str(node.module))
                continue  # an extra that is not installed
            missing += [f"{node.module}.{name.name}" for name in node.names if not _has(module, name.name)]
    return missing


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name) or find_spec(f"{module.__name__}.{name}") is not None


def whole(raw: dict[str, Any]) -> dict[str, Any]:
    """A part of a deployment file, with what the page leaves out: its version, and nodes that others are beneath."""
    nodes = raw.get("nodes", [{"name": "n"}])
    parents = {node["parent"] for node in nodes if "parent" in node} - {node["name"] for node in nodes}
    return {"version": 1, **raw, "nodes": [*nodes, *({"name": parent} for parent in parents)]}


def commands() -> Iterator[tuple[str, Path, str | None, str | None, list[str]]]:
    """Where a block with commands stands, its page, its mark and reason, and the commands."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in SHELL.finditer(text):
            typed = TYPED.findall(found["text"])
            if typed:
                line = text.count("\n", 0, found.start("text")) + 1
                yield f"{page.relative_to(ROOT)}:{line}", page, found["mark"], found["reason"], typed


def test_commands_are_played_or_say_why_not_and_the_markers_are_counted() -> None:
    of_others = [*commands()]
    played = (OF_TUTORIALS, ROOT / "docs" / "first-hour.md", OF_EXTENDING)
    silent = [
        where for where, page, mark, _, _ in of_others if mark is None and not any(map(page.is_relative_to, played))
    ]
    assert silent == []
    assert sum(mark == "not run" for _, _, mark, _, _ in of_others) == MARKED_COMMANDS
    runners = [reason for _, _, mark, reason, _ in of_others if mark == "run by" and reason is not None]
    assert [reason for reason in runners if not (ROOT / reason).is_file()] == []


def test_commands_on_the_pages_have_options_that_there_are() -> None:
    wrong = [
        f"{where}: {line}: {option}"
        for where, _, _, _, typed in commands()
        for line in typed
        if not line.startswith("unisono experiment run")  # its options are those of the experiment
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", re.split(r" {3,}| #", line)[0])
        if option not in usage(*line.split()[1:3])
    ]
    assert wrong == []


@cache
def usage(name: str, second: str = "") -> str:
    """The help of a command, or of the command below it."""
    if name.startswith("-"):
        return f"{name} --version --install-completion"
    app, runner = application(name), CliRunner()
    deeper = runner.invoke(app, [name, second, "--help"], prog_name="unisono") if second.isalpha() else None
    if deeper is not None and deeper.exit_code == 0 and f"unisono {name} {second}" in deeper.output:
        return deeper.output
    return runner.invoke(app, [name, "--help"], prog_name="unisono").output


def test_every_program_on_a_page_is_python_and_imports_what_is_there() -> None:
    assert {block.where: missing for block in of("python") if (missing := missing_in(block.text))} == {}


def test_programs_run_or_say_why_not_and_the_markers_are_counted(tmp_path: Path) -> None:
    programs = of("python")
    assert sum(block.reason is not None for block in programs) == MARKED
    others = (OF_EXTENDING, OF_TUTORIALS, API)
    run = [block for block in programs if block.reason is None and not any(map(block.page.is_relative_to, others))]
    assert run, "the README has one"
    for block in run:
        command = [sys.executable, "-c", block.text]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{block.where}: {done.stderr}"


def test_settings_on_the_pages_are_settings() -> None:
    for block in of("toml"):
        try:
            raw = tomllib.loads(block.text)
            if "about" not in raw:  # that is a scenario
                check_deployment(whole(raw))
        except Exception as error:  # whatever it is, the page shows what cannot be
            pytest.fail(f"{block.where}: {error}")
    for block in of("json"):
        assert "…" in block.text or all(map(json.loads, block.text.splitlines())), block.where


def test_a_block_that_is_wrong_is_found() -> None:
    assert missing_in("from unisono import connect, disconnect") == ["unisono.disconnect"]
    assert missing_in("from unisono.nowhere import a") == ["unisono.nowhere"]
