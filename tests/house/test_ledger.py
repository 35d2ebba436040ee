"""Campaigns go on where they were stopped, on the same sources only."""

from pathlib import Path

import pytest

from tests import ledger
from tests.ledger import Ledger


def test_what_passed_on_these_sources_is_known_to_the_next_run(tmp_path: Path) -> None:
    first = Ledger("mutants", tmp_path)
    first.add("a", True, 1.26)
    first.add("b", False, 2.0, "an inversion")
    again = Ledger("mutants", tmp_path)
    assert (again.has_passed("a"), again.has_passed("b"), again.has_passed("c")) == (True, False, False)
    assert again.summary().splitlines()[1] == "  b: an inversion"
    again.add("b", True, 2.0)
    assert Ledger("mutants", tmp_path).has_passed("b")


def test_what_passed_on_other_sources_is_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger("mutants", tmp_path).add("a", True, 1.0)
    monkeypatch.setattr(ledger, "sources", lambda: "others")
    assert not Ledger("mutants", tmp_path).has_passed("a")


def test_any_change_of_the_sources_counts_and_docs_do_not(tmp_path: Path) -> None:
    def digest() -> str:
        ledger.sources.cache_clear()
        return ledger.sources(tmp_path)

    try:
        (tmp_path / "src").mkdir()
        (tmp_path / "pyproject.toml").touch()
        source = tmp_path / "src" / "a.py"
        source.write_text("x = 1\n")
        before = digest()
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "page.md").write_text("words\n")
        assert digest() == before
        source.write_text("x = 2\n")
        assert digest() != before
    finally:
        ledger.sources.cache_clear()
