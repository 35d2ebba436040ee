"""The import rules hold, and would say so if they did not."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
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


def test_a_module_of_a_protocol_is_a_door_or_closed_to_asyncio_code() -> None:
    """A door is imported by `runtime`; whatever is not yet imported there may not be without a decision."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (closed,) = [contract["forbidden_modules"] for contract in contracts if contract["id"] == "driver"]
    sources = ROOT / "src"
    imported = {
        door
        for path in (sources / "unisono" / "runtime").rglob("*.py")
        for door in re.findall(r"^\s*from (unisono\.protocols\.[\w.]+) import", path.read_text("utf-8"), re.M)
    }
    modules = [
        ".".join(path.relative_to(sources).with_suffix("").parts)
        for path in sorted((sources / "unisono" / "protocols").rglob("*.py"))
        if path.stem not in ("__init__", "config")
    ]
    assert imported
    assert [
        module
        for module in modules
        if module not in imported and not any(f"{module}.".startswith(f"{each}.") for each in closed)
    ] == []


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
