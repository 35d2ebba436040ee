"""Whoever is stopped is named by everything that watches, and nobody else is."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.runtime.drill import PAGE, REGIONS, WITNESSES, drill
from tests.runtime.test_cluster import running, star
from unisono.cli.main import application
from unisono.model.deployment import dump_deployment


@pytest.mark.campaign
def test_the_culprit_is_named_and_nobody_else(tmp_path: Path) -> None:
    rows = asyncio.run(drill(tmp_path))
    assert len(rows) == 2 * 2 * len(REGIONS)
    assert all(row.after_s.keys() == set(WITNESSES) for row in rows)


def test_the_page_of_the_drill_has_every_fault_and_none_took_longer_than_five_seconds() -> None:
    rows = re.findall(r"^\| (node `[^`]+`|a NATS server) \| (killed|paused) \| (.+) \|$", PAGE.read_text(), re.M)
    assert len(rows) == 2 * 2 * len(REGIONS)
    assert max(float(cell) for _, _, cells in rows for cell in cells.split(" | ")) <= 5.0


def test_doctor_asks_every_node_and_server_of_a_file(tmp_path: Path) -> None:
    def doctor(file: Path) -> tuple[int, dict[str, tuple[str, str]]]:
        words = ["doctor", str(file), "--json", "--timeout", "5"]
        done = CliRunner().invoke(application("doctor"), words, prog_name="unisono")
        findings = json.loads(done.output)["findings"]
        return done.exit_code, {each["name"]: (each["state"], each["detail"]) for each in findings}

    async def run() -> None:
        deployment = star(data=False)
        file = tmp_path / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        loop = asyncio.get_running_loop()
        async with running(deployment, tmp_path) as nodes:
            async with asyncio.timeout(20):
                while not all(node.health().is_ready for node in nodes.values()):
                    await asyncio.sleep(0.05)
            code, found = await loop.run_in_executor(None, doctor, file)
            assert (code, {state for state, _ in found.values()}) == (0, {"ok"}), found
            assert len(found) == 1 + 3 + 1
            await nodes.pop("west").stop()
            code, found = await loop.run_in_executor(None, doctor, file)
            assert code == 1
            assert found["west"][0] == "broken"
            assert [name for name, (_, detail) in found.items() if "west" in detail] == [], "it is named once"
            assert [found["hub"][0], found["east"][0]] == ["ok", "ok"], "who misses a node is not at fault"
            assert [name for name, (state, _) in found.items() if state == "broken"] == ["west"]

    asyncio.run(run())
