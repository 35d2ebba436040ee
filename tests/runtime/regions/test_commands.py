"""The commands on regions, as processes: init, up, sub --where through a kill -9 of its broker, pub, status."""

import asyncio
import json
import subprocess
from pathlib import Path

from msgspec import structs

from tests.runtime.regions.test_regions import two_regions
from tests.runtime.test_commands import start, unisono
from unisono.model.deployment import dump_deployment, parse_deployment
from unisono.model.settings import MembershipSpec, Region
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig


def test_init_and_up_know_the_kind(tmp_path: Path) -> None:
    file = tmp_path / "regions.toml"
    regions = ("--kind", "regions", "--region", "eu-central-1", "--region", "us-east-1")
    unisono("init", str(file), *regions)
    assert [node.parent for node in parse_deployment(file.read_text()).nodes] == [None, None]
    summary = json.loads(unisono("up", *regions, "--seconds", "2", "--json"))
    assert summary["agreed"]
    assert all(site["delivered"] > 0 and site["gaps"] == 0 for site in summary["sites"])


def says(process: subprocess.Popen[str], words: str) -> None:
    """Reads what it says until it says this; others may be named as away before."""
    assert process.stderr is not None
    assert any(words in line for line in iter(process.stderr.readline, "")), words


def test_a_subscriber_outlives_the_kill_of_its_broker(tmp_path: Path) -> None:
    whole = two_regions()
    nodes_there = tuple(node for node in whole.nodes if node.region == "us")
    server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
    asyncio.run(server.start())
    kept = MembershipSpec((server.url,), 1)
    deployment = structs.replace(whole, regions=(Region("us"),), nodes=nodes_there, membership=kept)
    file = tmp_path / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    nodes = {node.name: start("node", str(file), node.name) for node in deployment.nodes}
    running: list[subprocess.Popen[str]] = [*nodes.values()]
    try:
        for process in nodes.values():
            says(process, "(regions) listens on port")
        there, here = (f"unisono://{deployment.node(name).listen}" for name in ("u2", "u3"))
        asked = ("--where", "px > 100", "--order", "fifo", "--count", "30", "--json")
        reading = start("sub", there, "trades", *asked)
        running.append(reading)
        says(reading, "subscribed")
        unisono("pub", here, "trades", text="".join(f'{{"px": {px}}}\n' for px in range(91, 111)))
        nodes["u2"].kill()
        nodes["u2"].wait()
        unisono("pub", here, "trades", text="".join(f'{{"px": {px}}}\n' for px in range(111, 131)))
        out, err = reading.communicate(timeout=120)
        assert reading.returncode == 0, err
        assert [json.loads(line)["data"]["px"] for line in out.splitlines()] == list(range(101, 131))
        nodes["u2"] = start("node", str(file), "u2")
        running.append(nodes["u2"])
        says(nodes["u2"], "listens")
        shown = unisono("status", str(file))
        assert "all is well" in shown
        assert "0 gaps" in shown
    finally:
        for process in running:
            process.kill()
            process.communicate()
        server.kill()
