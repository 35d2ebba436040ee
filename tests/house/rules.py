"""The table of rules: each rule of docs/protocols with its module, the tests of tests/papers that cite it, its mutants.

A test cites rules by its name (`test_c07_d08_…`, `test_r_cut_…`) or by the constant `RULES` of its file, which speaks
for all tests of the file that name none. A mutant belongs to the rules that its tests cite. `python -m
tests.house.rules` writes docs/protocols/rules.md anew.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutants.runner import mutants

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "protocols"
TABLE = PAGES / "rules.md"
_ROW = re.compile(r"^\| \*\*([A-Z0-9-]+)\*\* \| (.+) \| (.+) \| `([^`]+)` \|$", re.M)
_CITED = re.compile(r"(?<!_r)_([cdehkptvw]\d{1,2})(?=[a-z]?_)")
_OF_REGIONS = re.compile(r"^test_(r_[a-z0-9]+)_")


class Rule(NamedTuple):
    """A row of a page."""

    page: str
    name: str
    says: str
    source: str
    module: str


@cache
def rules() -> dict[str, Rule]:
    found = [
        Rule(page.stem, *row)
        for page in sorted(PAGES.glob("*.md"))
        if page != TABLE
        for row in _ROW.findall(page.read_text(encoding="utf-8"))
    ]
    return {rule.name: rule for rule in found}


@cache
def aliases() -> dict[str, str]:
    """Names of counterexamples that stand in the text of another rule, and which one: D10 -> C16."""
    return {
        other: rule.name
        for rule in rules().values()
        for other in re.findall(r"\b([CDETVW]\d{1,2})\b", rule.says)
        if other not in rules()
    }


@cache
def citations() -> dict[str, tuple[str, ...]]:
    """Every test of tests/papers, as pytest names it, and the rules it cites."""
    cited: dict[str, tuple[str, ...]] = {}
    for path in sorted((ROOT / "tests" / "papers").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "RULES" for t in node.targets)
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named = [f"{word[0].upper()}{int(word[1:])}" for word in _CITED.findall(node.name)]
                named += [word.upper().replace("_", "-") for word in _OF_REGIONS.findall(node.name)]
                known = tuple(dict.fromkeys(aliases().get(name, name) for name in named))
                cited[f"{path.relative_to(ROOT)}::{node.name}"] = known or (own[0] if own else ())
    return cited


def mutants_of(tests: list[str]) -> list[str]:
    """Mutants that one of these tests has to kill."""
    wanted = {*tests, *(test.partition("::")[0] for test in tests)}
    return [
        name for name, mutant in mutants().items() if any(test.partition("[")[0] in wanted for test in mutant.tests)
    ]


def page() -> str:
    """The table as Markdown."""
    cited = citations()
    lines = [
        "# Rules, modules, tests, mutants",
        "",
        "Made by `python -m tests.house.rules` from the pages beside it and from `tests/papers`; not edited by hand.",
        "",
        "| rule | source | module | tests | mutants |",
        "|---|---|---|---|---|",
    ]
    for rule in rules().values():
        tests = [test for test, names in cited.items() if rule.name in names]
        files = sorted({test.partition("::")[0] for test in tests})
        shown = ", ".join(f"`{file}` ({sum(test.startswith(file + '::') for test in tests)})" for file in files)
        killers = mutants_of(tests)
        shown_mutants = ", ".join(f"`{name}`" for name in killers[:4]) + (
            f" and {len(killers) - 4} more" if len(killers) > 4 else ""
        )
        lines.append(
            f"| [{rule.name}]({rule.page}.md) | {rule.source} | `{rule.module}` | {shown} | {shown_mutants or '—'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
