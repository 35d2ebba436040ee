"""The core installs and imports alone, from its lock, with nothing of the extras around."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Modules that are the door to an extra; everything else must import without any.
DOORS = {
    "unisono.archive": "pyarrow",
    "unisono.protocols.sequencer.topic_manager.bulk": "numpy",
    "unisono.protocols.sequencer.topic_manager.changes": "numpy",
    **{f"unisono.audit.{name}": "pyarrow" for name in ("columns", "tables")},
    "unisono.audit.columnar": "numpy pyarrow scipy",
    "unisono.experiments.picture": "matplotlib",
    **{f"unisono.runtime.archiving.{name}": "pyarrow" for name in ("archivist", "store", "streamed")},
    "unisono.runtime.brokers.nats.adapter": "nats",
    "unisono.runtime.links.srv": "dns",
    **{f"unisono.structures.matching.{name}": "numpy pyroaring" for name in ("kernels", "packed", "pairs", "roaring")},
    **{f"unisono.{name}": "psycopg" for name in ("cli.outbox", "outbox", "postgres", "replicas.postgres")},
    "unisono.spark": "pyspark pyarrow pandas numpy deltalake",
}
IMPORT_EVERYTHING = """
import importlib, json, pkgutil, unisono
from unisono.errors import UnisonoError
missing = {}
for module in pkgutil.walk_packages(unisono.__path__, "unisono.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except (ModuleNotFoundError, UnisonoError) as error:
        while not isinstance(error, ModuleNotFoundError):
            error = error.__context__
        missing[module.name] = error.name
print(json.dumps(missing))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the core and unisono itself; returns its bin directory."""
    place = tmp_path_factory.mktemp("bare")
    for part in ("src", "pyproject.toml", "README.md", "LICENSE"):
        source, skip = ROOT / part, shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, place / part, ignore=skip)
        else:
            shutil.copy(source, place / part)
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    # Our own pip installs into it: a second copy of pip would take longer than all the rest.
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    locks = [f"--requirement={ROOT}/requirements/{name}.txt" for name in ("build", "core")]
    subprocess.run([*pip, "--require-hashes", *locks], check=True)
    # As `make dist` does; the wheel is what people install.
    build = re.search(r"^BUILD := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert build is not None
    subprocess.run([python, "-c", build[1]], check=True, cwd=place, capture_output=True)
    (wheel,) = (place / "dist").glob("unisono-*-py3-none-any.whl")
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return python.parent


def alone(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)


def test_every_module_but_the_doors_of_the_extras_imports(bare: Path) -> None:
    done = alone([str(bare / "python"), "-c", IMPORT_EVERYTHING])
    assert done.returncode == 0, done.stderr
    missing: dict[str, str] = json.loads(done.stdout)
    unexpected = {
        module: needs
        for module, needs in missing.items()
        if not any(needs in DOORS[door].split() for door in DOORS if module == door or module.startswith(door + "."))
    }
    assert unexpected == {}


def test_the_command_line_answers(bare: Path) -> None:
    done = alone([str(bare / "unisono"), "--help"])
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


def test_the_readme_program_runs_from_the_wheel(bare: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert program is not None
    done = alone([str(bare / "python"), "-c", program[1]])
    assert (done.returncode, [line.split()[0] for line in done.stdout.splitlines()]) == (0, ["trades", "quotes"])


def test_the_source_archive_has_everything_that_the_wheel_is_made_of(bare: Path) -> None:
    (archive,) = (bare.parent.parent / "dist").glob("unisono-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    assert sorted((wanted | {"pyproject.toml", "README.md", "LICENSE"}) - names) == []


def test_doctor_finds_the_extras_missing_and_nothing_broken(bare: Path, tmp_path: Path) -> None:
    done = alone([str(bare / "unisono"), "doctor", "--json", "--dir", str(tmp_path)])
    report = json.loads(done.stdout)
    states = {(finding["part"], finding["name"]): finding["state"] for finding in report["findings"]}
    assert states["core", "msgspec"] == states["core", "python"] == states["network", "loopback"] == "ok"
    assert states["disk", str(tmp_path)] == "ok"
    assert states["arrow", "pyarrow"] == states["spark", "pyspark"] == states["dns", "dnspython"] == "missing"
    assert (report["broken"], done.returncode) == (0, 0)


def test_the_data_files_are_installed_too(bare: Path) -> None:
    sources = ROOT / "src" / "unisono"
    installed = next(bare.parent.glob("lib/python*/site-packages/unisono"))
    wanted = {p.relative_to(sources) for p in sources.rglob("*") if p.suffix in {".toml", ".csv", ".typed", ".txt"}}
    assert sorted(wanted - {p.relative_to(installed) for p in installed.rglob("*")}) == []
    assert Path("py.typed") in wanted
