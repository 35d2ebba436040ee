"""The broker of a crash run as its operator sees it: read what it keeps, set its limits, remove a stream."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from unisono.model.ids import event_id
from unisono.model.journal import Record
from unisono.runtime.brokers.contract import EnsNotice, Item, Parcel, unpack
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.brokers.nats.jetstream_api import ApiError, JetStreamApi, StreamConfig
from unisono.runtime.brokers.sequencer_codec import publisher_on
from unisono.runtime.driver.clock import Clock

DEPLOYMENT = "crash"


class _Reader:
    """Collects what a stream hands over."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.items += unpack(items)

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None: ...

    def on_failed(self, error: Exception) -> None:
        raise error


class _Operator:
    """Owner of a connection that only asks."""

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None: ...

    def on_failed(self, error: Exception) -> None:
        raise error

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None: ...


@asynccontextmanager
async def api(url: str) -> AsyncGenerator[JetStreamApi, None]:
    """JetStream's API, as user of the server itself."""
    client = NatsClient(NatsOptions((url,), deployment=DEPLOYMENT), _Operator(), 1_000_000)
    await client.open()
    try:
        yield JetStreamApi(client, StreamConfig())
    finally:
        await client.close()


async def find_stream(stream_api: JetStreamApi, topic: str) -> str:
    """As an adapter does: who finds none makes one, and somebody else may be making it, too."""
    while True:
        try:
            return await stream_api.find_stream(topic, control=False)
        except ApiError as error:
            if not error.is_passing:
                raise
        await asyncio.sleep(0.02)


async def change_stream(url: str, topic: str, **settings: Any) -> None:
    async with api(url) as stream_api:
        name = await find_stream(stream_api, topic)
        config = (await stream_api.call(f"STREAM.INFO.{name}", {}))["config"]
        await stream_api.call(f"STREAM.UPDATE.{name}", {**config, **settings})


async def measure_stream(url: str, topic: str) -> tuple[int, int]:
    """Its messages and bytes."""
    async with api(url) as stream_api:
        name = await find_stream(stream_api, topic)
        state = (await stream_api.call(f"STREAM.INFO.{name}", {}))["state"]
        return int(state["messages"]), int(state["bytes"])


async def delete_stream(url: str, topic: str) -> None:
    async with api(url) as stream_api:
        name = await find_stream(stream_api, topic)
        await stream_api.call(f"STREAM.DELETE.{name}", {})


async def make_stream(url: str, topic: str) -> None:
    """A stream of the user's own, that captures the topic before unisono makes one."""
    async with api(url) as stream_api:
        body = {"name": f"own-{topic}", "subjects": [topic], "retention": "limits", "storage": "file"}
        await stream_api.call(f"STREAM.CREATE.own-{topic}", body)


async def read_back(url: str, topics: Iterable[str]) -> list[Record]:
    """What the streams of these topics keep now, for judge `kept`."""
    records: list[Record] = []
    for topic in topics:
        async with api(url) as stream_api:
            state = await stream_api.state(await find_stream(stream_api, topic))
        reader, clock = _Reader(), Clock()
        ens = JetStreamEns(NatsOptions((url,), deployment=DEPLOYMENT), reader)
        await ens.open()
        try:
            await ens.subscribe(topic, after=state.first_seq - 1 if state.first_seq else 0)
            await _until_read(url, reader, topic)
        finally:
            await ens.close()
        for item in reader.items:
            if item.publisher:  # on the wire it is named with its deployment
                event = event_id(publisher_on(item.publisher.removeprefix(f"{DEPLOYMENT}/"), topic), item.request)
                records.append(Record("kept", clock.now(), who="reader", topic=topic, event=event))
        records.append(Record("searched", clock.now(), who="reader", topic=topic))
    return records


async def _until_read(url: str, reader: _Reader, topic: str) -> None:
    """The stream may keep control too, so it is known to be read when its last event is here."""
    async with api(url) as stream_api:
        name = await find_stream(stream_api, topic)
        last = await stream_api.call(f"STREAM.MSG.GET.{name}", {"last_by_subj": topic})
    while not reader.items or reader.items[-1].position < int(last["message"]["seq"]):
        await asyncio.sleep(0.02)
