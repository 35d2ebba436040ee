"""The commands on a causal mesh, as processes: init, up, status, pub and sub."""

import json
import subprocess
from pathlib import Path

from tests.runtime.causal.test_causal import mesh
from tests.runtime.test_commands import UNISONO, start, unisono
from unisono.model.deployment import dump_deployment, parse_deployment


def well(file: Path) -> str:
    """What `status` shows once the brokers have found each other again."""
    for _ in range(30):  # each is a process of its own
        shown = subprocess.run([*UNISONO, "status", str(file)], capture_output=True, text=True, timeout=60)
        if shown.returncode == 0:
            break
    assert "all is well" in shown.stdout
    return shown.stdout


def test_init_and_up_know_the_kind(tmp_path: Path) -> None:
    file = tmp_path / "causal.toml"
    regions = ("--kind", "causal", "--region", "eu-central-1", "--region", "us-east-1")
    unisono("init", str(file), *regions)
    written = parse_deployment(file.read_text())
    assert [node.parent for node in written.nodes] == [None, None]
    assert (written.causal.preset, str(written.causal.multicast)[:8]) == ("region", "239.255.")
    summary = json.loads(unisono("up", *regions, "--seconds", "3", "--json"))
    assert summary["agreed"]
    assert all(site["delivered"] > site["published"] // 2 for site in summary["sites"])


def test_pub_sub_and_status_through_a_broker_that_is_killed(tmp_path: Path) -> None:
    deployment = mesh("eu", "eu")
    file = tmp_path / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    nodes = {node.name: start("node", str(file), node.name) for node in deployment.nodes}
    running: list[subprocess.Popen[str]] = [*nodes.values()]
    try:
        for process in nodes.values():
            assert process.stderr is not None
            assert "(causal) listens on port" in process.stderr.readline()
        first, second = (f"unisono://{node.listen}" for node in deployment.nodes)
        reading = start("sub", first, "trades", "--where", "px > 2", "--order", "causal", "--count", "4", "--json")
        running.append(reading)
        assert reading.stderr is not None
        assert "subscribed" in reading.stderr.readline()
        unisono("pub", first, "trades", text="".join(f'{{"px": {px}}}\n' for px in (1, 3, 4)))
        nodes["eu-0"].kill()
        nodes["eu-0"].wait()
        unisono("pub", second, "trades", "--deadline", "3s", text="".join(f'{{"px": {px}}}\n' for px in (2, 5, 6)))
        out, err = reading.communicate(timeout=60)
        assert reading.returncode == 0, err
        assert [json.loads(line)["data"]["px"] for line in out.splitlines()] == [3, 4, 5, 6]
        nodes["eu-0"] = start("node", str(file), "eu-0")
        running.append(nodes["eu-0"])
        assert nodes["eu-0"].stderr is not None
        assert "listens" in nodes["eu-0"].stderr.readline()
        assert "vectors of" in well(file)
    finally:
        for process in running:
            process.kill()
            process.communicate()
