"""The habits of the house, as an ordinary test. Each rule says what it found and where; none has a list of exceptions
longer than its reason. Runs in the suite, and alone: `python -m pytest tests/tidy.py`.
"""

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
LINES_MAX = 650  # "around 300"; a protocol's transition function may stay in one file at 600, give or take
CORES = ("model", "structures", "machine.py", "protocols")
# Built from parts, so that this file does not name what it forbids.
HOSTS = ["pypi" + ".org", "python" + "hosted.org", "test.py" + "pi", "--index" + "-url", "--find" + "-links"]
MACHINE_PATHS = ["/wo" + "rk/", "/tm" + "p/", "/ho" + "me/", "/ro" + "ot/"]


@cache
def tracked() -> tuple[Path, ...]:
    """What git would commit: tracked files and new ones that are not ignored; in a plain copy, everything."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return tuple(path for name in answer.stdout.split("\0") if name and (path := ROOT / name).is_file())
    return tuple(p for part in ("src", "tests", "docs") for p in sorted((ROOT / part).rglob("*")) if p.is_file())


def python_files(*below: str) -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and any(p.is_relative_to(ROOT / part) for part in below)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def core_files() -> list[Path]:
    return python_files(*(f"src/unisono/{part}" for part in CORES))


def test_files_are_short_enough_to_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("src", "tests")}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > LINES_MAX] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("src", "tests", "benchmarks")
        if path.read_text(encoding="utf-8").strip() and ast.get_docstring(tree_of(path)) is None
    ]
    assert silent == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert [str(p.relative_to(ROOT)) for p in python_files("src", "tests") if drawers & {*p.parts, p.stem}] == []


def public_classes(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_a_public_class_name_exists_once() -> None:
    """Whoever reads a name, in a trace, a question or a search, knows which class it is."""
    places: dict[str, list[str]] = {}
    for path in python_files("src"):
        for name in public_classes(tree_of(path)):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def broad_catches(tree: ast.Module, lines: list[str]) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            broad = any(
                c is None or (isinstance(c, ast.Name) and c.id in {"Exception", "BaseException"}) for c in caught
            )
            passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if broad and not passes_on and "task boundary" not in lines[node.lineno - 1]:
                yield node.lineno


def test_broad_catches_are_task_boundaries() -> None:
    """Catch only what you can name and answer; the one place that may catch all says `# task boundary`."""
    found = [
        place(path, line)
        for path in python_files("src")
        for line in broad_catches(tree_of(path), path.read_text(encoding="utf-8").splitlines())
    ]
    assert found == []


def test_nothing_is_left_to_do_in_the_sources() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + r"Error(\(\))?\s*$")
    found = [
        place(path, number)
        for path in python_files("src", "tests", "benchmarks", "examples")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert found == []


def tags_by_class_name(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for keyword in node.keywords:
                if keyword.arg == "tag" and not (
                    isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
                ):
                    yield node.lineno


def test_tags_are_strings_that_outlive_the_names_of_classes() -> None:
    """Wires, logs and journals are read by other versions; a class may get a better name."""
    assert [
        place(path, line) for path in python_files("src", "tests") for line in tags_by_class_name(tree_of(path))
    ] == []


def test_the_tag_rule_sees_the_name_of_a_class() -> None:
    assert list(tags_by_class_name(ast.parse("class A(Struct, tag=True): ...\nclass B(Struct, tag=str.lower): ...")))


def is_set(node: ast.expr) -> bool:
    """An expression that is plainly a set: a display, a comprehension, a call, or an operator between two of them."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference" | "symmetric_difference")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return is_set(left) or is_set(right)
        case _:
            return False


def names_of_sets(tree: ast.Module) -> set[str]:
    """Names and attributes that are assigned or declared as sets somewhere in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value) if is_set(value):
                names |= {ast.unparse(target) for target in targets}
            case (
                ast.AnnAssign(target=target, annotation=annotation)
                | ast.arg(arg=target, annotation=ast.expr() as annotation)
            ) if re.match(r"(frozen)?set\b", ast.unparse(annotation)):
                names.add(target if isinstance(target, str) else ast.unparse(target))
            case _:
                pass
    return names


def set_iterations(tree: ast.Module) -> Iterator[int]:
    names = names_of_sets(tree)

    def disorderly(node: ast.expr) -> bool:
        return is_set(node) or ast.unparse(node) in names

    orderly = {"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance"}
    harmless = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in orderly
        for argument in node.args
    }
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=source) if disorderly(source):
                yield node.lineno
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if id(node) not in harmless:
                if any(disorderly(generator.iter) for generator in node.generators):
                    yield node.lineno
            case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "next" | "map"), args=[*_, last]):
                if disorderly(last):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]) if disorderly(owner):
                yield node.lineno
            case ast.Starred(value=value) if disorderly(value):
                yield node.lineno
            case _:
                pass


def test_cores_never_iterate_a_set() -> None:
    """The order of a set differs between hash seeds, and a machine must not."""
    assert [place(path, line) for path in core_files() for line in set_iterations(tree_of(path))] == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "a = set()\nfor x in a: pass",
        "class C:\n  def f(self):\n    self.a: set[int] = set()\n    return [x for x in self.a]",
        "def f(a: frozenset[int]):\n  return list(a)",
        "a = {1}\nb = [*a]",
        "a = {1}\nb = a.pop()",
        "a = {1}\nb = tuple(a | {2})",
    ],
)
def test_the_set_rule_sees_an_iteration(source: str) -> None:
    assert list(set_iterations(ast.parse(source)))


def test_the_set_rule_lets_order_pass() -> None:
    orderly = (
        "a = {1}\nb = sorted(a)\nc = sorted(x for x in a)\nd = all(x for x in a)\nfor x in {1: 2}: pass\ne = 1 in a"
    )
    assert list(set_iterations(ast.parse(orderly))) == []


def test_cores_roll_no_dice_of_their_own() -> None:
    """`random.Random` may be named as a type; the module's own functions are one hidden global die."""
    found = []
    for path in core_files():
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Attribute(value=ast.Name(id="random"), attr=attribute) if attribute != "Random":
                    found.append(place(path, node.lineno))
                case ast.ImportFrom(module="random", names=names) if any(name.name != "Random" for name in names):
                    found.append(place(path, node.lineno))
                case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr="Random"), args=[]):
                    found.append(place(path, node.lineno))
                case _:
                    pass
    assert found == []


def test_times_are_microseconds_by_name() -> None:
    """Inside, a time is an integer of microseconds and its name ends in `_us`; a file for people may have floats."""
    wrong = re.compile(r"_(ms|msec|millis|sec|secs|usec|micros)$")
    found = []
    for path in core_files():
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.arg(arg=name, annotation=unit) | ast.AnnAssign(target=ast.Name(id=name), annotation=unit):
                    if wrong.search(name) and unit is not None and "float" not in ast.unparse(unit):
                        found.append(f"{place(path, node.lineno)} {name}")
                case _:
                    pass
    assert found == []


def test_no_file_names_a_registry_or_somebodys_machine() -> None:
    found = [
        f"{place(path, number)}: {word}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for word in (*HOSTS, *MACHINE_PATHS)
        if word in line
    ]
    assert found == []


def modules_with_all() -> list[str]:
    return [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in python_files("src")
        if any(isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__" for n in tree_of(path).body)
    ]


def test_all_is_the_truth() -> None:
    """Every name in `__all__` is there, once, and a package's `__all__` has every public name that it imports."""
    for name in modules_with_all():
        module = importlib.import_module(name)
        check_all(module)


def check_all(module: ModuleType) -> None:
    listed = list(module.__all__)
    assert sorted(set(listed)) == sorted(listed), module.__name__
    assert [missing for missing in listed if not hasattr(module, missing)] == [], module.__name__
    if hasattr(module, "__path__"):
        tree = tree_of(Path(str(module.__file__)))
        froms = [
            node for node in tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unisono")
        ]
        imported = {alias.asname or alias.name for node in froms for alias in node.names}
        assert sorted(n for n in imported - set(listed) if not n.startswith("_")) == []


def asserts_something(function: ast.FunctionDef | ast.AsyncFunctionDef, tree: ast.Module) -> bool:
    """An assert, `raises`, `suppress` (all other errors fail), or a call of something that has one or says so.

    A hypothesis property may also say only that nothing is raised, whatever comes.
    """
    if any("given" in ast.unparse(decorator) for decorator in function.decorator_list):
        return True
    local = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(function):
        match node:
            case ast.Assert():
                return True
            case ast.Call(func=func):
                name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                if re.match(r"raises$|fail$|suppress$|assert_|check|expect|until|wait_for|run_state_machine", name):
                    return True
                if name in local and local[name] is not function and asserts_something(local[name], tree):
                    return True
            case _:
                pass
    return False


def test_every_test_can_fail() -> None:
    empty = [
        place(path, node.lineno)
        for path in python_files("tests")
        if path.name.startswith("test_") or path.name == "tidy.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not asserts_something(node, tree_of(path))
    ]
    assert empty == []


def test_tests_wait_for_conditions_not_for_time() -> None:
    """A bare sleep is a guess; `sleep(0)` gives way, and a pause inside a loop is waiting for a condition."""
    found = []
    for path in (path for path in python_files("tests") if path.name.startswith("test_")):
        loops = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.While | ast.For | ast.AsyncFor)]
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
                    name = ast.unparse(call.func)
                    sleeps = name in {"time.sleep", "asyncio.sleep", "sleep"} and ast.unparse(call.args[0]) != "0"
                    if sleeps and not any(node in ast.walk(loop) for loop in loops):
                        found.append(place(path, node.lineno))
                case _:
                    pass
    assert found == []
