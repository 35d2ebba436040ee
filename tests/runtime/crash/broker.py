"""The broker of a crash run as its operator sees it: read what it keeps, set its limits, remove a stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.runtime.crash.harness import TOPICS, Run
from unisono.model.ids import event_id
from unisono.model.journal import Record
from unisono.model.time import Micros
from unisono.runtime.clock import Clock
from unisono.runtime.dialect import publisher_on
from unisono.runtime.ens.adapter import EnsNotice, Item, Parcel, unpack
from unisono.runtime.ens.jetstream import JetStreamEns
from unisono.runtime.ens.jetstream_api import JetStreamApi, StreamConfig
from unisono.runtime.ens.nats_client import NatsClient
from unisono.runtime.ens.nats_wire import Msg, NatsOptions


class _Reader:
    """Collects what a stream hands over."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.items += unpack(items)

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None: ...


class _Operator:
    """Owner of a connection that only asks."""

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None: ...

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None: ...


@asynccontextmanager
async def api(run: Run) -> AsyncGenerator[JetStreamApi, None]:
    """JetStream's API, as user of the server itself."""
    client = NatsClient(NatsOptions((run.servers[0].url,)), _Operator(), 1_000_000)
    await client.open()
    try:
        yield JetStreamApi(client, StreamConfig())
    finally:
        await client.close()


async def change_stream(run: Run, topic: str, **settings: Any) -> None:
    async with api(run) as stream_api:
        name = await stream_api.find_stream(topic, control=False)
        config = (await stream_api.call(f"STREAM.INFO.{name}", {}))["config"]
        await stream_api.call(f"STREAM.UPDATE.{name}", {**config, **settings})


async def count_messages(run: Run, topic: str) -> int:
    async with api(run) as stream_api:
        name = await stream_api.find_stream(topic, control=False)
        return int((await stream_api.call(f"STREAM.INFO.{name}", {}))["state"]["messages"])


async def delete_stream(run: Run, topic: str) -> None:
    async with api(run) as stream_api:
        name = await stream_api.find_stream(topic, control=False)
        await stream_api.call(f"STREAM.DELETE.{name}", {})


async def make_stream(run: Run, topic: str) -> None:
    """A stream of the user's own, that captures the topic before unisono makes one."""
    async with api(run) as stream_api:
        body = {"name": f"own-{topic}", "subjects": [topic], "retention": "limits", "storage": "file"}
        await stream_api.call(f"STREAM.CREATE.own-{topic}", body)


async def read_back(run: Run) -> list[Record]:
    """What the streams keep now, for judge `kept`."""
    if run.plan.broker != "jetstream":
        return []
    records: list[Record] = []
    for topic in TOPICS:
        async with api(run) as stream_api:
            state = await stream_api.state(await stream_api.find_stream(topic, control=False))
        reader, clock = _Reader(), Clock()
        ens = JetStreamEns(NatsOptions((run.servers[0].url,)), reader)
        await ens.open()
        try:
            await ens.subscribe(topic, after=state.first_seq - 1 if state.first_seq else 0)
            await _until_read(run, reader, topic)
        finally:
            await ens.close()
        records += [
            Record(
                "kept",
                clock.now(),
                who="reader",
                topic=topic,
                event=event_id(publisher_on(item.publisher, topic), item.request),
            )
            for item in reader.items
            if item.publisher
        ]
        if topic not in run.emptied:
            records.append(Record("searched", Micros(clock.now()), who="reader", topic=topic))
    return records


async def _until_read(run: Run, reader: _Reader, topic: str) -> None:
    """The stream may keep control too, so it is known to be read when its last event is here."""
    async with api(run) as stream_api:
        name = await stream_api.find_stream(topic, control=False)
        last = await stream_api.call(f"STREAM.MSG.GET.{name}", {"last_by_subj": topic})
    while not reader.items or reader.items[-1].position < int(last["message"]["seq"]):
        await asyncio.sleep(0.02)
