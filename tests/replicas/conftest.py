"""One real PostgreSQL for all tests of replicas, and a new database for each that asks."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from unisono.runtime.tools.postgres_server import PostgresServer, PostgresServerConfig, find_postgres

APT = Path(__file__).parents[2] / ".ci" / "apt"


def postgres_cannot_run() -> str | None:
    """Why not, in words; Debian's package is installed where that is allowed."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    if find_postgres() is None and subprocess.run([APT, "postgresql"], capture_output=True, check=False).returncode:
        return "no PostgreSQL here (UNISONO_APT=1 allows installing it with apt)"
    return None


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    reason = postgres_cannot_run()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer(PostgresServerConfig(fsync=False, max_slots=100))
    asyncio.run(server.start())
    yield server
    server.remove()


@pytest.fixture
def fresh(postgres: PostgresServer) -> Callable[[], str]:
    """The address of another empty database."""

    def make() -> str:
        return new_database(postgres)

    return make


def new_database(server: PostgresServer) -> str:
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute("SELECT 'test' || count(*) FROM pg_database").fetchone()
        assert row is not None
        connection.execute(f"CREATE DATABASE {row[0]} TEMPLATE template0")
    return server.url(str(row[0]))
