"""What cannot be judged is refused in one line that names the place, the same by every engine."""

import sys
from pathlib import Path

import pytest

from unisono.cli.main import main

pytest.importorskip("unisono.audit.columnar")
refused = pytest.importorskip("tests.audit.refused").REFUSED


@pytest.mark.parametrize("what", refused)
def test_what_is_refused_is_told_by_every_engine_in_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    make, words = refused[what]
    path = make(tmp_path)
    heard = set()
    for engine in ("python", "arrow", "auto"):
        monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(path), "--on", engine])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        heard.add(capsys.readouterr().err)
    (said,) = heard
    assert said.startswith(f"unisono: {path}")
    assert words in said
    assert said.count("\n") == 1
