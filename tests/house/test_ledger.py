"""Campaigns go on where they were stopped, and repeat what a change may have changed, only."""

from pathlib import Path

import pytest

from tests import ledger
from tests.ledger import ROOT, Ledger
from tests.mutants.runner import mutants
from tests.reach import reach

OF = ("tests/ledger.py",)


def test_what_passed_on_these_sources_is_known_to_the_next_run(tmp_path: Path) -> None:
    first = Ledger("mutants", tmp_path)
    first.add("a", OF, True, 1.26)
    first.add("b", OF, False, 2.0, "an inversion")
    again = Ledger("mutants", tmp_path)
    assert (again.has_passed("a"), again.has_passed("b"), again.has_passed("c")) == (True, False, False)
    assert again.summary().splitlines()[1] == "  b: an inversion"
    again.add("b", OF, True, 2.0)
    assert Ledger("mutants", tmp_path).has_passed("b")


def test_what_passed_on_other_sources_is_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger("mutants", tmp_path).add("a", OF, True, 1.0)
    monkeypatch.setattr(ledger, "sources", lambda of: "others")
    assert not Ledger("mutants", tmp_path).has_passed("a")


FILES = {
    "pyproject.toml": "",
    "src/unisono/__init__.py": "from unisono.a import x\n",
    "src/unisono/a.py": "x = 1\n",
    "src/unisono/b.py": "def f():\n    from unisono import a\n",
    "src/unisono/apart.py": "x = 1\n",
    "src/unisono/many/__init__.py": "",
    "src/unisono/many/one.py": "",
    "tests/conftest.py": "import tests.shared\n",
    "tests/shared.py": "",
    "tests/test_b.py": "from unisono.b import f\n",
    "tests/test_started.py": 'start("-m", "unisono.b")\n',
    "tests/test_loaded.py": 'load(f"unisono.many.{name}")\n',
    "tests/test_commands.py": 'start("-m", "unisono")\n',
    "tests/test_told.py": '"""It is about unisono.a."""\n',
}


@pytest.mark.parametrize(
    ("test", "changed", "counts"),
    [
        ("tests/test_b.py", "tests/test_b.py", True),
        ("tests/test_b.py", "src/unisono/a.py", True),
        ("tests/test_b.py", "tests/shared.py", True),
        ("tests/test_b.py", "src/unisono/apart.py", False),
        ("tests/test_b.py", "tests/test_told.py", False),
        ("tests/test_started.py", "src/unisono/a.py", True),
        ("tests/test_loaded.py", "src/unisono/many/one.py", True),
        ("tests/test_commands.py", "src/unisono/apart.py", True),
        ("tests/test_told.py", "src/unisono/a.py", False),
        ("tests/test_told.py", "pyproject.toml", True),
        ("tests/test_told.py", "src/unisono/new.toml", True),
        ("tests/test_told.py", "docs/page.md", False),
    ],
)
def test_a_change_counts_for_what_it_can_reach(tmp_path: Path, test: str, changed: str, counts: bool) -> None:
    digests = []
    for root, files in (("before", FILES), ("after", FILES | {changed: FILES.get(changed, "") + "# changed\n"})):
        for name, text in files.items():
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        digests.append(ledger.sources((test,), tmp_path / root))
    assert (digests[0] != digests[1]) == counts


def test_what_a_mutant_changes_is_within_reach_of_the_tests_that_kill_it() -> None:
    """Else a ledger would believe it dead after a change that brought it back to life."""
    missed = [
        f"{name}: {edit.file}"
        for name, mutant in mutants().items()
        for within in [reach(tuple(sorted({ROOT / test.partition("::")[0] for test in mutant.tests})))]
        for edit in mutant.all_edits()
        if ROOT / edit.file not in within
    ]
    assert missed == []
