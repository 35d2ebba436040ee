"""The import rules hold, and would say so if they did not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "NO_COLOR": "1"}
    return subprocess.run(
        [*command, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_imports_point_down_and_cores_do_no_io() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


PLANTED = {
    "Imports point down only": ("machine.py", "import unisono.cli.main"),
    "No protocol imports another": ("protocols/second/__init__.py", "import unisono.protocols.first"),
    "Cores are sans-I/O": ("structures/sessions.py", "import time"),
}


def test_each_rule_can_say_no(tmp_path: Path) -> None:
    """A house with empty rooms, then with one import too many for each rule."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    rooms = [path for path in (ROOT / "src/unisono").iterdir() if path.is_dir() and path.name != "__pycache__"]
    home = tmp_path / "src" / "unisono"
    names = ["", *(room.name for room in rooms), "protocols/first", "protocols/second"]
    files = [f"{name}/__init__.py".lstrip("/") for name in names]
    for file in [*files, "machine.py", "errors.py", "cli/main.py", "structures/sessions.py"]:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    assert lint(tmp_path).returncode == 0
    for module, line in PLANTED.values():
        (home / module).write_text(f"{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert [contract for contract in PLANTED if f"{contract} BROKEN" not in done.stdout] == []
