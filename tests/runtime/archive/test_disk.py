"""A disk that fails under the archive: what was appended stays, the rest becomes a gap, and it goes on by itself."""

import asyncio
from pathlib import Path

from tests.runtime.archive.test_replay import play, publish
from tests.runtime.test_session import take
from unisono.archive.disk import RealDisk
from unisono.model.deployment import Deployment
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node


class FullDisk(RealDisk):
    """Takes half of the next append, and then nothing until there is room."""

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")


def test_an_archive_whose_disk_was_full_goes_on_behind_a_recorded_gap(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b", start="earliest") as stream:
            await publish(session, 0, 6)
            await take(stream, 6)
        archivist = nodes[1].archivist
        assert archivist is not None
        async with session.subscribe("a", "b", start="earliest") as stream:
            await take(stream, 6)  # all of it is sealed
        writer = archivist._writer
        assert writer is not None
        writer._disk = FullDisk()
        await publish(session, 6, 2)
        async with asyncio.timeout(60):
            while archivist._writer in (writer, None) or archivist._stream is None:
                await asyncio.sleep(0.02)
        await publish(session, 8, 2)
        async with session.subscribe("a", "b", start="earliest") as stream:
            found = await take(stream, 10)
        assert [event.data for event in found if event.gap is None] == [0, 1, 2, 3, 4, 5, 8, 9]
        gaps = {(event.topic, event.gap.first, event.gap.last) for event in found if event.gap is not None}
        assert gaps == {("a", 4, 4), ("b", 4, 4)}

    play(tmp_path, story)
