"""What a test, a campaign or a benchmark can depend on: the files it imports, those that these import, and so on.

An import counts wherever it stands, also in a function. So does the name of a module in a string, since processes are
started by name (`python -m tests.runtime.crash.worker`); a package that is named so may load any of its modules. A test
that says "unisono" may start any command; one that runs `unisono.cli.main` otherwise has to name its command's module.
Everything depends on files that are no Python (scenarios, golden files).
Mutants prove that nothing is forgotten: what a mutant changes is within reach of the tests that kill it
(tests/house/test_ledger.py).
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = {"unisono": "src", "tests": ".", "benchmarks": ".", "examples": "."}
"""First words of the names of modules, and where they lie."""
COMMAND, COMMANDS = "unisono", "src/unisono/cli/main.py"
DATA = ("src", "tests", "examples")
NO_DATA = ("tests/mutants/*.toml", "tests/budget.toml", "**/__pycache__/*", "src/*.egg-info/*")
"""Lists of other things: one more mutant changes the outcome of none that is there."""
_NAME = re.compile(rf"\b(?:{'|'.join(TOPS)})(?:\.\w+)+")
_STARTS = re.compile(rf"\b{COMMAND}\.(?:__main__|cli\.main)\b")
_PATH = re.compile(rf"\b(?:{'|'.join(TOPS)})/[\w/]+\.py\b")


@cache
def file_of(module: str, root: Path = ROOT) -> Path | None:
    """Where a module or package of ours lies; None if there is none."""
    top, *rest = module.split(".")
    if top not in TOPS:
        return None
    path = root / TOPS[top] / "/".join([top, *rest])
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.is_file():
            return found
    return None


@cache
def _names(file: Path, root: Path) -> tuple[Path, ...]:
    """The files that this one names itself."""
    package = _module(file, root).split(".")
    package = package if file.name == "__init__.py" else package[:-1]
    found: dict[Path, None] = {}
    tree = ast.parse(file.read_bytes())
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings only tell
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                modules = [base, *(f"{base}.{name.name}" for name in names)]
            case ast.Constant(value=str(text)) if node not in prose:
                modules = _NAME.findall(text)
                starts = (
                    (text == COMMAND or _STARTS.search(text))
                    and file.is_relative_to(root / "tests")
                    and file != Path(__file__)
                )
                packages = [*([] if file == root / COMMANDS else modules), *([COMMAND] if starts else [])]
                found |= {path: None for package in packages for path in _inside(package, root)}
                found |= {root / path: None for path in _PATH.findall(text) if (root / path).is_file()}
            case _:
                continue
        found |= {path: None for module in modules if (path := file_of(module, root)) is not None}
    return tuple(found)


def _inside(package: str, root: Path) -> list[Path]:
    """Every module of a package."""
    file = file_of(package, root)
    return sorted(file.parent.rglob("*.py")) if file is not None and file.name == "__init__.py" else []


def _module(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _fixtures(file: Path, root: Path) -> Iterator[Path]:
    """What pytest reads before a test."""
    for above in file.parents:
        if (above / "conftest.py").is_file():
            yield above / "conftest.py"
        if above == root:
            return


@cache
def reach(files: tuple[Path, ...], root: Path = ROOT) -> tuple[Path, ...]:
    """These files, and all they can depend on, sorted."""
    left = [*files, *(found for file in files for found in _fixtures(file, root))]
    seen = dict.fromkeys(left)
    while left:
        for file in _names(left.pop(), root):
            if file not in seen:
                seen[file] = None
                left.append(file)
    return tuple(sorted(seen))


@cache
def data(root: Path = ROOT) -> tuple[Path, ...]:
    """Everything that is no Python, sorted."""
    found: Iterable[Path] = (path for top in DATA for path in (root / top).rglob("*") if path.is_file())
    kept = [path for path in found if path.suffix != ".py" and not any(path.match(skip) for skip in NO_DATA)]
    return tuple(sorted([*kept, root / "pyproject.toml"]))
