"""The commands on an overlay, as processes: sub --where, pub --attr, status."""

import json
import subprocess
from pathlib import Path

from tests.runtime.overlay.test_overlay import chain
from tests.runtime.test_commands import start, unisono
from unisono.model.deployment import dump_deployment


def test_the_shell_publishes_with_attributes_and_subscribes_by_content(tmp_path: Path) -> None:
    deployment = chain(2)
    file = tmp_path / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    running: list[subprocess.Popen[str]] = [start("node", str(file), node.name) for node in deployment.nodes]
    try:
        for process in running:
            assert process.stderr is not None
            assert "(overlay) listens on port" in process.stderr.readline()
        low, top = (f"unisono://{deployment.node(name).listen}" for name in ("b1", "b0"))
        reading = start("sub", low, "trades", "--where", "px > 100 and sym = 'IBM'", "--count", "2", "--json")
        running.append(reading)
        attributes = ("--attr", "px=101.5", "--attr", "sym=IBM")
        while reading.poll() is None:  # until the subscription is in force
            lines = '{"px": 102, "sym": "IBM"}\n{"px": 1, "sym": "IBM"}\n'
            unisono("pub", top, "trades", text=lines)
            unisono("pub", top, "trades", "hello", *attributes)
        out, err = reading.communicate(timeout=60)
        assert reading.returncode == 0, err
        heard = [json.loads(line)["data"] for line in out.splitlines()]
        assert {json.dumps(data) for data in heard} <= {'"hello"', '{"px": 102, "sym": "IBM"}'}
        assert "b1" in unisono("status", str(file))
        report = json.loads(unisono("status", str(file), "--json"))["nodes"]["b1"]["counters"]["overlay"]
        assert report["links"] == 1
        assert "NAME=VALUE" in unisono("pub", top, "trades", "x", "--attr", "px", code=2)
        assert "column 6" in unisono("sub", top, "trades", "--where", "px > >", code=2)
    finally:
        for process in running:
            process.kill()
            process.communicate()
