"""The fault drill: each node and each server is stopped in turn, and everything that watches has to name it.

Three regions, a NATS server and a node in each, as processes. `status`, `/readyz` and `/metrics` of all nodes and their
logs are read until each of them names who was stopped; whoever names anybody else is wrong. Then it comes back, and all
of them have to say that all is well. `python -m tests.runtime.drill` writes the table of docs/reference/fault-drill.md.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from unisono.cli.asking import ask_all
from unisono.cli.context import Destination
from unisono.cli.status import problems
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec, Region
from unisono.model.time import Micros
from unisono.runtime.links.control import AskReport, NodeReport
from unisono.runtime.tools.nats_server import NatsCluster
from unisono.runtime.tools.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "fault-drill.md"
REGIONS = ("eu", "us", "ap")
Fault = Literal["killed", "paused"]
WITNESSES = ("status", "/readyz", "/metrics", "log")
PATIENCE_S = 60.0
HEAD = """# The fault drill

Written by `python -m tests.runtime.drill`: three regions with a node and a NATS server each, as processes of one
machine with two cores. Each is killed (`SIGKILL`) and paused (`SIGSTOP`: its connections stay) in turn. The columns say
after how many seconds `unisono status`, `/readyz` and `/metrics` of the other nodes, and their logs, named it. None of
them named anybody else, and all of them said that all was well after it was back. The campaign repeats the drill.

| stopped | how | `status` | `/readyz` | `/metrics` | log |
|---|---|---|---|---|---|
"""


class Named(NamedTuple):
    """A row: who was stopped, how, and when each witness named it, in seconds."""

    culprit: str
    fault: Fault
    after_s: dict[str, float]


class Drill:
    """The deployment under drill."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = NatsCluster(directory / "nats", 3, Micros(1_000))
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.deployment = Deployment(1)
        self._read: dict[str, int] = {}

    async def __aenter__(self) -> "Drill":
        await self.cluster.start()
        ports = free_ports(6)
        self.deployment = Deployment(
            1,
            "drill",
            regions=tuple(map(Region, REGIONS)),
            round_trip_ms={"eu us": 2.0, "eu ap": 2.0, "us ap": 2.0},
            nodes=tuple(
                NodeSpec(
                    f"{region}-1",
                    region,
                    f"127.0.0.1:{ports[place]}",
                    "eu-1" if place else None,
                    data="data",
                    observe=f"127.0.0.1:{ports[3 + place]}",
                )
                for place, region in enumerate(REGIONS)
            ),
            broker=BrokerSpec("nats", tuple(server.url for server in self.cluster.servers)),
        )
        self.file.write_text(dump_deployment(self.deployment))
        for node in self.deployment.nodes:
            self.start(node.name)
        await self.until(self.is_well)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.nodes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for server in self.cluster.servers:
            server.resume()
        await self.cluster.stop()

    @property
    def file(self) -> Path:
        return self.directory / "deployment.toml"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "unisono", "node", str(self.file), name, "--journal", "off"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with self.log(name).open("ab") as output:
            self.nodes[name] = subprocess.Popen([*command, "--log-format", "json"], stderr=output, env=environment)

    def culprits(self) -> list[str]:
        servers = [server.url.partition("://")[2] for server in self.cluster.servers]
        return [*(node.name for node in self.deployment.nodes), *servers]

    async def stop(self, culprit: str, fault: Fault) -> None:
        if culprit in self.nodes:
            process = self.nodes[culprit]
            process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            if fault == "killed":
                process.wait()
            return
        server = next(server for server in self.cluster.servers if server.url.endswith(culprit))
        (server.kill if fault == "killed" else server.pause)()

    async def bring_back(self, culprit: str, fault: Fault) -> None:
        if culprit in self.nodes:
            if fault == "killed":
                self.start(culprit)
            else:
                self.nodes[culprit].send_signal(signal.SIGCONT)
            return
        server = next(server for server in self.cluster.servers if server.url.endswith(culprit))
        if fault == "killed":
            await server.start()
        else:
            server.resume()

    # the witnesses: whom they blame now

    async def blamed(self, witness: str, stopped: str) -> list[str]:
        match witness:
            case "status":
                return self._named_in(await self._status())
            case "/readyz":
                answers = [json.loads(text) for text in await self._pages("/readyz", stopped)]
                return self._named_in([problem for answer in answers for problem in answer["problems"]])
            case "/metrics":
                return sorted({name for page in await self._pages("/metrics", stopped) for name in _down_in(page)})
            case _:
                return self._named_in(self._lines(stopped))

    async def _status(self) -> list[str]:
        _, reports = await ask_all(Destination(str(self.file), None, None), 1.0, AskReport, NodeReport)
        return problems(reports)

    async def _pages(self, path: str, stopped: str) -> list[str]:
        def ask(where: str) -> str:
            try:
                with urllib.request.urlopen(f"http://{where}{path}", timeout=5) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.read().decode()

        loop = asyncio.get_running_loop()
        places = [str(node.observe) for node in self.deployment.nodes if node.name != stopped]
        return await asyncio.gather(*(loop.run_in_executor(None, ask, where) for where in places))

    def _lines(self, stopped: str) -> list[str]:
        """Warnings that were written since the fault, by those that were not stopped."""
        found = []
        for node in self.deployment.nodes:
            if node.name != stopped:
                text = self.log(node.name).read_text()[self._read.get(node.name, 0) :]
                lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
                found += [line["text"] for line in lines if line["event"] in ("peer-down", "server-down", "check-down")]
        return found

    def _named_in(self, texts: list[str]) -> list[str]:
        """Whoever the texts blame, and texts that blame nobody we know."""
        blamed: dict[str, None] = {}
        for text in texts:
            words = [word.strip(":;(),") for word in text.split(" (seen by")[0].split()]
            named = [culprit for culprit in self.culprits() if culprit in words]
            blamed.update(dict.fromkeys(named or [text]))
        return sorted(blamed)

    async def is_well(self) -> bool:
        try:
            pages = [json.loads(text) for text in await self._pages("/readyz", "")]
        except OSError:
            return False
        seen = [server for page in pages for server in page["servers"]]
        whole = all(page["ready"] and not page["problems"] for page in pages) and len(seen) == 9
        return whole and not await self._status()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # type: ignore[misc]
                await asyncio.sleep(0.1)

    async def run(self, culprit: str, fault: Fault) -> Named:
        """Stops it, waits until every witness has named it and nobody else, brings it back, waits until all is well."""
        self._read = {node.name: self.log(node.name).stat().st_size for node in self.deployment.nodes}
        loop = asyncio.get_running_loop()
        after_s: dict[str, float] = {}
        await self.stop(culprit, fault)
        stopped = loop.time()

        async def listen(witness: str) -> None:
            while witness not in after_s:
                blamed = await self.blamed(witness, culprit)
                assert set(blamed) <= {culprit}, f"{witness} blames {blamed} while {culprit} is {fault}"
                if blamed == [culprit]:
                    after_s[witness] = round(loop.time() - stopped, 1)
                await asyncio.sleep(0.1)

        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*map(listen, WITNESSES))
            await asyncio.sleep(1.0)  # and nobody changes his mind
            for witness in WITNESSES:
                blamed = await self.blamed(witness, culprit)
                assert blamed == [culprit], f"{witness} blames {blamed} while {culprit} is {fault}"
        finally:
            await self.bring_back(culprit, fault)
        await self.until(self.is_well)
        return Named(culprit, fault, after_s)


def _down_in(page: str) -> list[str]:
    """Whom a page of metrics shows as down."""
    label = {"unisono_peer_up": "peer", "unisono_broker_server_up": "server"}
    return [
        sample.labels[label[family.name]]
        for family in text_string_to_metric_families(page)
        if family.name in label
        for sample in family.samples
        if sample.value == 0
    ]


async def drill(directory: Path, faults: tuple[Fault, ...] = ("killed", "paused")) -> list[Named]:
    async with Drill(directory) as under:
        return [await under.run(culprit, fault) for fault in faults for culprit in under.culprits()]


def page(rows: list[Named]) -> str:
    lines = []
    for row in rows:
        what = f"node `{row.culprit}`" if "-" in row.culprit else "a NATS server"
        times = " | ".join(f"{row.after_s[witness]:.1f}" for witness in WITNESSES)
        lines.append(f"| {what} | {row.fault} | {times} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        PAGE.write_text(page(asyncio.run(drill(Path(place)))), encoding="utf-8")
