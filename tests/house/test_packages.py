"""What is handed out: wheel and source archive, container, manifests, unit. They are checked, none is called built."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest

from tests.runtime.hour import FIRST_HOUR, play, typed
from unisono.model.deployment import Deployment, load_deployment, parse_deployment

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "unisono.yaml"
UNIT = DEPLOY / "systemd" / "unisono@.service"
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


def of_manifests() -> Deployment:
    found = re.search(r"deployment\.toml: \|\n((?:    .*\n)+)", MANIFESTS.read_text())
    assert found is not None
    return parse_deployment(textwrap.dedent(found[1]))


@pytest.mark.parametrize("which", ["container", "kubernetes"])
def test_deployments_that_are_handed_out_can_be_run_and_watched(which: str) -> None:
    deployment = of_manifests() if which == "kubernetes" else load_deployment(DEPLOY / "container" / "deployment.toml")
    volume = re.search(r"(?:VOLUME|mountPath:) (/var/lib/unisono)", MANIFESTS.read_text())
    assert volume is not None
    assert len(deployment.nodes) == 3
    for node in deployment.nodes:
        assert node.reached_at.endswith(":7474")
        assert node.observed_at == "0.0.0.0:8474", "probes come from outside of the container"
        assert node.data == volume[1], "a log outlives its container"


def test_a_pod_is_the_node_of_its_name_and_compose_starts_every_node() -> None:
    text = MANIFESTS.read_text()
    replicas = re.search(r"replicas: (\d+)", text)
    assert replicas is not None
    assert [node.name for node in of_manifests().nodes] == [f"unisono-{i}" for i in range(int(replicas[1]))]
    compose = (DEPLOY / "container" / "compose.yml").read_text()
    named = re.findall(r'"node", "/etc/unisono/deployment.toml", "([a-z0-9-]+)"', compose)
    assert named == [node.name for node in load_deployment(DEPLOY / "container" / "deployment.toml").nodes]
    servers = load_deployment(DEPLOY / "container" / "deployment.toml").broker.servers
    assert all(f"  {server.split('//')[1].split(':')[0]}:\n" in compose for server in servers)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = tmp_path / "unisono@.service"
    unit.write_text(UNIT.read_text().replace("/opt/unisono/bin/unisono", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "unisono@eu-1.service"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("KillSignal=SIGTERM", "KillSignal=SIGNOTHING"))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "unisono@eu-1.service"], capture_output=True, text=True, check=False
    )
    assert "SIGNOTHING" in done.stderr


def checked(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name(tool)
    if not command.exists():
        pytest.skip(f"{tool} is not installed: pip install -r requirements/packages.txt")
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.campaign
def test_the_container_file_is_linted(tmp_path: Path) -> None:
    file = DEPLOY / "container" / "Dockerfile"
    done = checked("hadolint", file)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(file.read_text().replace("FROM python:3.12-slim\n", "FROM python\n"))
    assert checked("hadolint", wrong).returncode != 0


@pytest.mark.campaign
def test_the_manifests_are_valid_without_a_cluster(tmp_path: Path) -> None:
    done = checked("kubernetes-validate", "--strict", MANIFESTS)
    assert done.returncode == 0, done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFESTS.read_text().replace("serviceName: unisono", "serviceNaem: unisono"))
    assert checked("kubernetes-validate", "--strict", wrong).returncode != 0


def install(tmp_path: Path, kind: str) -> Path:
    """Into an environment with nothing else, away from the sources; dependencies are those of the lock."""
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    subprocess.run([sys.executable, "-c", BUILD], cwd=sources, check=True, capture_output=True)
    (package,) = (sources / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements" / "core.txt"], check=True)
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements" / "build.txt"], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", package], check=True)
    return place


@pytest.mark.campaign
def test_the_first_half_hour_goes_from_the_wheel_as_its_page_says(tmp_path: Path) -> None:
    python = install(tmp_path, "wheel") / "bin" / "python"
    scene = tmp_path / "scene"
    scene.mkdir()
    page = play(FIRST_HOUR, scene, str(python))
    assert typed(page) == typed(FIRST_HOUR.path.read_text(encoding="utf-8"))
    assert "pairwise-order   holds" in page
    assert "does not answer" in page


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_is_installed_bare_and_the_readme_runs_from_there(tmp_path: Path, kind: str) -> None:
    place = install(tmp_path, kind)
    python = place / "bin" / "python"
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert program is not None
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([python, "-c", program[1]], **run)  # type: ignore[call-overload]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["trades", "quotes"], done.stderr
    done = subprocess.run([place / "bin" / "unisono", "--version"], **run)  # type: ignore[call-overload]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert done.stdout == f"unisono {version}\n"
    for words in (["init", "d.toml", "--region", "eu-central-1"], ["simulate", "fifo/reorder", "--seeds", "0..3"]):
        done = subprocess.run([place / "bin" / "unisono", *words], **run)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
