"""What the tests of this room share."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.model.settings import ArchiveSpec
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig


@pytest.fixture(params=["files", "stream"])
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArchiveSpec]:
    """Both places for an archive."""
    if request.param == "files":
        yield ArchiveSpec()
        return
    server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True))
    asyncio.run(server.start())
    yield ArchiveSpec(stream="shop", servers=(server.url,), replicas=1)
    server.kill()
