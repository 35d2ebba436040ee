"""Mutants: the lists fit the sources, and the runner tells dead from alive."""

from pathlib import Path

import pytest

from tests.mutants import runner
from tests.mutants.runner import Edit, Mutant, judge, mutants, stale


def test_every_mutant_can_still_be_planted() -> None:
    assert {name: problems for name, mutant in mutants().items() if (problems := stale(mutant))} == {}


@pytest.mark.parametrize(
    ("body", "dead", "words"),
    [
        ("def test_it():\n    assert 1 == 2\n", True, "killed"),
        ("def test_it():\n    assert no_such_name\n", True, "perhaps of itself"),
        ("def test_it():\n    assert 1 == 1\n", False, "SURVIVED"),
        ("import no_such_module\n", False, "could not run"),
    ],
)
def test_only_a_failing_test_kills(tmp_path: Path, body: str, dead: bool, words: str) -> None:
    (tmp_path / "test_it.py").write_text(body)
    killed, line = judge(tmp_path, ["test_it.py"])
    assert killed is dead
    assert words in line


def test_tests_that_hang_kill_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 2)
    (tmp_path / "test_it.py").write_text("import threading\ndef test_it():\n    threading.Event().wait(60)\n")
    killed, line = judge(tmp_path, ["test_it.py"])
    assert not killed
    assert "hang" in line


def test_a_mutant_that_does_not_fit_is_stale(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\ny = 2\n")
    (tmp_path / "test_a.py").touch()

    def problems(find: str, replace: str, test: str = "test_a.py::test_it") -> list[str]:
        return stale(Mutant("m", "nothing", [test], edits=[Edit("a.py", find, replace)]), tmp_path)

    assert problems("y = 2", "y = 3") == []
    assert "2 times" in problems("x = 1", "x = 2")[0]
    assert "0 times" in problems("z", "x")[0]
    assert "changes nothing" in problems("y = 2", "y = 2")[0]
    assert "not there" in problems("y = 2", "y = 3", "test_b.py::test_it")[0]
    assert problems("y = 2", "y = self.it") == ["a.py has no self.it"]
    assert problems("y = 2", "self.it = 2\ny = self.it") == []
    assert stale(Mutant("m", "nothing", []), tmp_path) == ["edits nothing", "names no tests"]
