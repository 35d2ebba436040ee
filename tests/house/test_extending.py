"""The programs of docs/extending are what the pages say: each is taken from its page, built and used."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.runtime.ens import test_contract
from tests.runtime.ens.worlds import WORLDS, Ear, MemoryWorld
from unisono.audit import Trace, judge_trace
from unisono.audit.judges import table
from unisono.cli.measuring.experiment import parameters_of, perform
from unisono.experiments import experiment
from unisono.model.deployment import Deployment
from unisono.model.journal import Header, Journal, Record
from unisono.model.settings import NodeSpec
from unisono.runtime.brokers.contract import AdapterLimits, Ens
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

PAGES = Path(__file__).parents[2] / "docs" / "extending"


def built(page: str) -> dict[str, Any]:
    """The names that the programs of a page make, one program after the other."""
    names: dict[str, Any] = {"__name__": f"page_{page}"}
    programs = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.S)
    assert programs
    for program in programs:
        exec(compile(program, f"{page}.md", "exec"), names)
    return names


CONTRACT = [name for name in vars(test_contract) if name.startswith("test_") and "killed" not in name]


@pytest.mark.parametrize("promise", CONTRACT)
def test_the_broker_of_the_page_keeps_the_contract(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = built("broker")

    class PageWorld(MemoryWorld):
        """A bus in this loop."""

        async def __aenter__(self) -> "PageWorld":
            self.bus = names["Bus"]()
            return self

        async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
            ens: Ens = names["BusEns"](self.bus, ear, limits)
            await ens.open()
            return ens

    monkeypatch.setitem(WORLDS, "page", PageWorld)
    getattr(test_contract, promise)("page")


def test_the_protocol_of_the_page_tells_nothing_twice() -> None:
    names = built("protocol")
    assert names["verdicts"] == {"exactly-once": True}
    told = [record.event for record in names["world"].records if record.kind == "deliver"]
    assert len(told) == 100


def test_the_protocol_of_the_page_is_needed() -> None:
    """Its broker does repeat: without the look at numbers already told events come twice."""
    text = (PAGES / "protocol.md").read_text(encoding="utf-8")
    machine, play = re.findall(r"```python\n(.*?)```", text, re.S)
    broken = machine.replace("if (source, number) in self._told:", "if False:")
    assert broken != machine
    names: dict[str, Any] = {"__name__": "broken"}
    exec(broken + play, names)
    assert names["verdicts"] == {"exactly-once": False}


@pytest.mark.parametrize(("took_us", "holds"), [(900_000, True), (1_500_000, False)])
def test_the_judge_of_the_page_says_yes_and_no(took_us: int, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.JUDGES, "prompt", built("judge")["PROMPT"])  # type: ignore[misc]
    records = [
        Record(
            "deliver", 0, "ann", "ann", f"e{n}", position=n, published_us=1_000, delivered_us=1_000 + n * took_us // 2
        )
        for n in (1, 2)
    ]
    (verdict,) = judge_trace(Trace(Journal(Header(), records)), ["prompt"])
    assert verdict.holds is holds
    assert holds or "ann heard e2 after 1500000 us" in verdict.witness


def test_the_role_of_the_page_counts_beside_a_node(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    where = f"127.0.0.1:{port}"
    deployment = Deployment(1, "census", nodes=(NodeSpec("hub", listen=where, roles=("sequencer", "broker")),))

    async def main() -> None:
        async with Node(deployment, "hub", tmp_path), unisono.connect(deployment) as session:
            await session.publish("trades", 1)
            census = built("role")["Census"](deployment, tmp_path, "", None)
            await census.start()
            for n in range(3):
                await session.publish("trades", n)
            async with asyncio.timeout(20):
                while census.counted["trades"] < 3:
                    await asyncio.sleep(0.01)
            assert census.counted == {"trades": 3}
            await census.stop()

    asyncio.run(main())


def test_the_experiment_of_the_page_runs_with_its_flags() -> None:
    chosen: experiment.Experiment = built("experiment")["EXPERIMENT"]
    assert [parameter.name for parameter in parameters_of(chosen.options)] == ["people", "tries", "seed"]
    outcome = perform("birthday/shared", chosen, chosen.options(people=60, tries=400))
    shared = {row.setting["people"]: row.ours["shared"] for row in outcome.rows}
    assert shared[5] < 0.1 < 0.4 < shared[23] < 0.6 < 0.95 < shared[60]
    assert json.dumps(outcome.rows[1].paper) == '{"shared": 0.507}'
