"""The import rules hold, and would say so if they did not."""

import os
import re
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
    "Imports point down only": {"machine.py": "import unisono.cli.main"},
    "Rooms inside runtime": {"runtime/client/session.py": "import unisono.runtime.node.node"},
    "No cycle inside runtime": {
        "runtime/links/pace.py": "import unisono.runtime.links.links",
        "runtime/links/links.py": "from typing import TYPE_CHECKING as T\nif T:\n    import unisono.runtime.links.pace",
    },
    "Brokers do not know each other": {
        "runtime/brokers/nats/adapter.py": "import unisono.runtime.brokers.udp.adapter",
    },
    "No protocol imports another": {"protocols/second/__init__.py": "import unisono.protocols.first"},
    "Cores are sans-I/O": {"structures/sessions.py": "import time"},
}


def test_each_rule_can_say_no(tmp_path: Path) -> None:
    """A house with empty rooms, then with one import too many for each rule."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    home = tmp_path / "src" / "unisono"
    files = [path.relative_to(ROOT / "src/unisono") for path in (ROOT / "src/unisono").rglob("*.py")]
    for file in [*files, "protocols/first/__init__.py", "protocols/second/__init__.py"]:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    assert lint(tmp_path).returncode == 0
    for planted in PLANTED.values():
        for module, lines in planted.items():
            (home / module).write_text(f"{lines}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert [contract for contract in PLANTED if not re.search(f"{contract}.* BROKEN", done.stdout)] == []
