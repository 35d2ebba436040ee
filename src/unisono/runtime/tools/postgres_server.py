"""A real PostgreSQL on loopback, from Debian's package: for tests, benchmarks and demonstrations.

One server in a data directory of its own: started on a free port, which it keeps over a restart, stopped or killed by
its process id. PostgreSQL refuses to run as root; then it runs as the user `postgres`, who owns the directory.
"""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from unisono.errors import TransportError
from unisono.runtime.tools.ports import free_ports

START_S = 30.0
"""How long a server may take to answer."""
GONE_S = 10.0
"""How long processes that were killed may take to be gone."""


class PostgresServerConfig(Struct, frozen=True):
    """What differs from PostgreSQL's defaults."""

    wal_level: str = "logical"
    fsync: bool = True
    """Off: the machine's death loses what was committed; the death of its processes does not."""
    max_slots: int = 8


def find_postgres() -> Path | None:
    """Where `postgres` and `initdb` are: the newest of Debian's versions, else those on the path."""
    versions = sorted(
        (path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()),
        key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0,
    )
    if versions:
        return versions[-1]
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found is not None else None


class PostgresServer:
    """One server, with the superuser `postgres`, who needs no password from this machine."""

    def __init__(self, config: PostgresServerConfig = PostgresServerConfig()) -> None:
        self.config = config
        self.port = 0
        self.directory = Path(tempfile.mkdtemp(prefix="unisono-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgres://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def runs_as_postgres(self) -> bool:
        return self._user is not None

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        if self._process is None:
            raise TransportError("PostgreSQL is not running")
        return self._process.pid

    async def start(self) -> None:
        """Starts it, again on the same port if it has run before, and returns when it answers."""
        binaries = find_postgres()
        if binaries is None:
            raise TransportError("no PostgreSQL here: install Debian's package postgresql, or put postgres on the path")
        data = self.directory / "data"
        if not data.exists():
            await asyncio.to_thread(self._create, binaries, data)
        self.port = self.port or free_ports(1)[0]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "wal_level": self.config.wal_level,
            "fsync": "on" if self.config.fsync else "off",
            "max_wal_senders": str(self.config.max_slots),
            "max_replication_slots": str(self.config.max_slots),
            "shared_buffers": "32MB",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(data), *given],
                stdout=output,
                stderr=output,
                user=self._user,
                cwd=self.directory,
            )
        try:
            async with asyncio.timeout(START_S):
                while not await self._answers(binaries):
                    if self._process.poll() is not None:
                        raise TransportError(f"PostgreSQL ended at once:\n{self.log[-2000:]}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.kill()
            raise TransportError(f"PostgreSQL did not answer within {START_S} s") from None

    def _create(self, binaries: Path, data: Path) -> None:
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        made = subprocess.run(
            [
                *(str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"),
                *("--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self.directory,
            check=False,
        )
        if made.returncode != 0:
            raise TransportError(f"initdb failed: {made.stderr.strip()}")

    async def _answers(self, binaries: Path) -> bool:
        asked = await asyncio.create_subprocess_exec(
            *(str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port))
        )
        return await asked.wait() == 0

    async def stop(self) -> None:
        """Asks it to end at once and in order, and waits."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def kill(self) -> None:
        """kill -9, of the server and of all that it has started: what is left of them would keep the next one out."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it starts nobody any more
        started = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + GONE_S
        while any(map(_is_alive, started)) and time.monotonic() < until:
            time.sleep(0.001)

    def remove(self) -> None:
        """Ends it and takes its directory away."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


def _is_alive(pid: int) -> bool:
    """It may still have memory: it is neither gone nor waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
