"""What a retaining broker still has of a topic, told as an archive would tell it: a subscription resumes from there.

Of one topic the numbers alone are the order, and the broker keeps them: stamps beside the payloads. Of several topics
nobody has kept how their events stand to each other while nobody was there to hear them: for that there are archives.

Everything that the streams keep of the topic is read, stamps first, and only the payloads that are wanted are kept.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from unisono.errors import DataLossError, PeerError
from unisono.model.event import Payload
from unisono.protocols.sequencer.messages import Pieces, Run, Stamps, Void
from unisono.runtime.brokers.contract import EnsNotice, Item, Parcel, unpack
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.brokers.sequencer_codec import from_item
from unisono.runtime.links.archive_messages import ATTRIBUTES, GAP, ArchiveRow, Fetched, Located

AGAIN_S = 0.1
UNDER_WAY_S = 2.0
"""What has its number may still be on its way to the stream; what is not there by then is a gap."""


class RetainedEvents:
    """The past of one topic, for one replay."""

    def __init__(
        self,
        open_ens: Callable[["RetainedEvents"], JetStreamEns],
        topic: str,
        adopted: str | None,
        base: Callable[[], int],
        space: str,
    ) -> None:
        """`adopted`: where events of strangers on the topic are. `base`: up to which number the past is wanted.

        `space` stands before the names of our publishers.
        """
        self._space = space
        self._open_ens, self._topic, self._adopted, self._base = open_ens, topic, adopted, base
        self._items: list[Item] = []
        self._news = asyncio.Event()
        self._failure: Exception | None = None

    async def fetch(self, after: int, topics: tuple[str, ...], above: dict[str, int], seal: bool) -> Fetched:
        """All rows at once; raises TransportError when the broker cannot be asked now."""
        first, last = above.get(self._topic, 0) + 1, self._base()
        loop = asyncio.get_running_loop()
        until = loop.time() + UNDER_WAY_S
        ens = self._open_ens(self)
        await ens.open()
        try:
            while True:
                rows, missing = await self._read(ens, first, last)
                if not missing or loop.time() >= until:
                    break
                await asyncio.sleep(AGAIN_S)
        finally:
            await ens.close()
        return Fetched(0, tuple(rows), last, last, {self._topic: last}, {})

    async def locate(self, topic: str, number: int) -> Located:
        """The start position knows our only topic."""
        return Located(0, number, number)

    async def _read(self, ens: JetStreamEns, first: int, last: int) -> tuple[list[ArchiveRow], bool]:
        """Rows for these numbers, gaps included, and whether there are gaps."""
        wanted: dict[tuple[str, int], int] = {}
        voids: dict[int, None] = {}
        for item in await self._kept(ens, self._topic, control=True):
            for run, is_void in _runs(item):
                for number in range(max(run.first, first), min(run.last, last) + 1):
                    if is_void:
                        voids[number] = None
                    else:
                        wanted[run.publisher, run.request + number - run.first] = number
        found: dict[int, ArchiveRow] = {}
        for channel in (self._topic, *((self._adopted,) if self._adopted is not None else ())):
            for item in await self._kept(ens, channel, control=False):
                publisher = item.publisher.removeprefix(self._space)
                number = wanted.get((publisher, item.request), 0)
                if number and item.publisher.startswith(self._space):
                    found[number] = _row(number, msgspec.structs.replace(item, topic=self._topic, publisher=publisher))
        absent = [n for n in range(first, last + 1) if n not in found and n not in voids]
        gaps = [
            ArchiveRow(n, self._topic, n, "", 0, {GAP: str(n)}, b"the stream does not keep it (any more)")
            for n in absent
        ]
        return sorted([*found.values(), *gaps], key=lambda row: row.number), bool(absent)

    async def _kept(self, ens: JetStreamEns, topic: str, control: bool) -> list[Item]:
        """All items that the stream keeps of a channel."""
        first, last = await ens.extent(topic, control)
        if not last:
            return []
        self._items = []
        try:
            await ens.subscribe(topic, control=control, after=first - 1)
        except DataLossError:  # retention has gone on meanwhile
            return await self._kept(ens, topic, control)
        while not self._items or self._items[-1].position < last:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        ens.unsubscribe(topic, control=control)
        return self._items

    # a listener

    def on_items(self, items: Sequence[Parcel]) -> None:
        self._items += unpack(items)
        self._news.set()

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None: ...

    def on_failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()


def _runs(item: Item) -> list[tuple[Run, bool]]:
    """Which requests have which numbers, and whether they are void."""
    try:
        message = from_item(item)
    except PeerError:
        return []
    match message:
        case Stamps(runs=runs):
            return [(run, False) for run in runs]
        case Pieces(pieces=pieces):
            return [(piece.run, False) for piece in pieces]
        case Void(run=run, first=first, count=count):
            return [(Run(first, count, run.publisher, run.request + first - run.first), True)]
        case _:
            return []


def _row(number: int, item: Item) -> ArchiveRow:
    message = from_item(item)
    assert isinstance(message, Payload)
    event = message.event
    headers = {ATTRIBUTES: msgspec.json.encode(event.attributes).decode()} if event.attributes else {}
    return ArchiveRow(
        number, item.topic, number, event.publisher, event.sequence, headers, event.payload, event.born_at
    )
