"""A client's session: one identity, a link to every sequencer node, a connection to the broker, any number of streams.

A session that loses a node or the broker keeps its streams and reconnects; machines repeat what was not answered.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from unisono.errors import MisuseError, PlanError, TransportError, UnisonoError
from unisono.machine import Broadcast, Heard, Machine
from unisono.model.deployment import Deployment, Foreign
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.interest import is_pattern
from unisono.model.time import SECOND, Micros
from unisono.protocols.content.selector import Cells, Selector
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.inputs import Forget, HomeReborn
from unisono.qos import Ground as GroundTraits
from unisono.qos import choose
from unisono.runtime import edge
from unisono.runtime.brokers import adopted_topics, dial_node, make_ens, nats_options, open_patiently, publishers_space
from unisono.runtime.content import content_of
from unisono.runtime.ens.adapter import EnsNotice, Item, Rejected
from unisono.runtime.fetching import Fetched, Following, Located, NotFetched
from unisono.runtime.frames import Hello
from unisono.runtime.grids import Grids
from unisono.runtime.ground import Ground
from unisono.runtime.groups import Enlisted, Membership
from unisono.runtime.holding import Holding
from unisono.runtime.homes import archives, birthplace, home_of, sequencers
from unisono.runtime.lane import Outcome
from unisono.runtime.links import Links
from unisono.runtime.lives import Height
from unisono.runtime.port import Port
from unisono.runtime.position import numbers_of, read_position, write_position
from unisono.runtime.publish import Outbox
from unisono.runtime.replay import ArchiveClient, Past
from unisono.runtime.sequencing import sequencer_config
from unisono.runtime.session import Session, SessionConfig, Wish
from unisono.runtime.stream import Stream

logger = logging.getLogger(__name__)

KEPT_RELIABLY_US = Micros(3600 * SECOND)
"""Reliable subscriptions: how long a payload is kept that the home knows nothing of, though it answers."""


class SequencedSession(Session):
    """A client of sequencer nodes over a broker."""

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, links: Links | None = None
    ) -> None:
        super().__init__(deployment, base, token, config, links)
        self.grids = Grids(deployment)
        self._token, self._base = token, base
        self._homes: dict[Topic, Address] = {}
        self._requests = 0
        self._answers: dict[int, asyncio.Future[edge.Opened | edge.NotOpened]] = {}
        self._streams: list[Stream] = []
        self._stream_count = 0
        self._holdings: dict[Stream, Holding] = {}
        """Of named subscriptions: nobody else keeps positions under these names."""
        self._patterns: dict[str, dict[Address, asyncio.Future[tuple[str, ...]]]] = {}
        self.on_foreign: Callable[[Item], None] | None = None
        """Who takes care of events that nobody of ours published; without anybody they are tagged or dropped."""
        self._foreigners = 0
        self._meeting: dict[asyncio.Task[None], None] = {}
        kept = archives(deployment)
        self.archive = ArchiveClient(self, kept[0]) if kept else None
        """Who keeps what was delivered, if anybody does."""
        self.ground = Ground(
            self, self._confirmed, self._noticed, self._foreign, self.fail, publishers_space(deployment)
        )
        self.ground.adopted = adopted_topics(deployment)
        self._sequencing = sequencer_config(deployment)
        self._machine = OrderingClient(Address(f"{self.address}/p"), {}, self._sequencing)
        self._port = Port(self, f"{self.address}/p", self._machine, None)
        window, accept_s = self._sequencing.window, self._sequencing.accept_us / 1e6
        still_open, grids = self._machine.publisher.count_open, self.grids
        self._outbox = Outbox(
            self,
            self._port.host,
            self._port.address,
            window,
            lambda: self.ground.ens.traits.payload_bytes_max,
            accept_s,
            still_open=still_open,
            grids=grids,
        )

    def forget_moments(self) -> None:
        """What it publishes was published before by somebody else, and nobody knows when."""
        self._outbox.is_dated = False

    # life

    async def open(self) -> None:
        # A session on the links of a node is the node's own, and may say what only nodes say.
        is_node = not self._owns_links
        ens = make_ens(self.deployment, self._base, self.ground, self._token, self.config.region, is_node)
        self.ground.stand_on(ens)
        self.links.attach(self.address, self)
        for node in self.deployment.nodes:
            if self._owns_links and ("sequencer" in node.roles or "archive" in node.roles):
                dial_node(self.links, node)
        await open_patiently(ens, self.config.open_s)
        if ens.traits.strength == "stored":
            self._outbox.confirmations_count()
        await self._port.start()
        self._is_open = True

    async def _leave(self) -> None:
        for task in self._meeting:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.open_s):
                while self._machine.publisher.withdrawals and self._failure is None:
                    await asyncio.sleep(0.01)  # whoever leaves before leaves subscribers waiting for its payloads
        for stream in list(self._holdings):  # that were never entered
            self._let_go(stream)
        self._farewell(self._port.address)
        await self._port.host.stop()
        await asyncio.sleep(0)  # the farewells leave
        await self.ground.close()
        self.links.detach(self.address)
        self.links.detach(self._port.address)

    def _open_streams(self) -> list[Stream]:
        return list(self._streams)

    def _give_up(self, reason: str) -> None:
        self._outbox.give_up(reason)

    # publishing and subscribing

    async def _publishing(self) -> Outbox:
        self.check_alive()
        return self._outbox

    async def drain(self) -> None:
        await self._outbox.drain()

    def _stream(self, wish: Wish) -> Stream:
        start, promise = wish.start, wish.promise
        choose(promise, self._ground_traits(), start, wish.group, wish.parallel, content=wish.selects)
        cut = [topic for topic in wish.topics if topic in self.grids]
        replays = start != "latest" or promise.reliability == "reliable"
        if cut and (replays or wish.group is not None or wish.name is not None):
            raise PlanError(f"{cut[0]!r} is cut by a grid: its cells are heard live, not yet replayed or resumed")
        holding = self._hold_name(wish.name) if wish.name is not None else None
        if wish.name is not None and start == "latest" and (kept := self._kept_position(wish.name)) is not None:
            start = kept
        stream = Stream(
            self, wish.topics, promise, numbers_of(start), wish.decode, wish.name, wish.latest_only, wish.where
        )
        if holding is not None:
            self._holdings[stream] = holding
        stream.tags_stalled = wish.on_stall == "tag"
        stream.archive = self.archive if promise.order != "fifo" else None
        stream.past = stream.archive or (self._recall(stream) if promise.order != "fifo" else None)
        stream.starts_in_past = start != "latest" and stream.past is not None
        if wish.group is not None:
            assert self.archive is not None
            stream.membership = Membership(wish.group, self.archive, stream)
        return stream

    def _recall(self, stream: Stream) -> Past | None:
        """The past of a topic as the broker keeps it, if it does; of several nobody knows their order."""
        topics, broker = stream.interests, self.deployment.broker
        if broker.kind != "jetstream" or len(topics) != 1 or is_pattern(topics[0]) or topics[0] in self.grids:
            return None
        from unisono.runtime.ens.jetstream import JetStreamEns
        from unisono.runtime.recall import Recall

        (topic,) = topics
        options = nats_options(self.deployment, self._token, self.config.region, is_node=False)
        return Recall(
            lambda ear: JetStreamEns(options, ear),
            topic,
            self.ground.adopted.get(topic),
            lambda: stream.bases.get(topic, 0),
            publishers_space(self.deployment),
        )

    # for streams

    def check_content(self, stream: Stream) -> None:
        """Raises unless the stream can select by content."""
        if stream.host is not None and not isinstance(stream.host.machine, Selector):
            raise MisuseError("this subscription was made without where=, and can not begin to select")

    async def enter_stream(self, stream: Stream) -> None:
        self.check_alive()
        self._stream_count += 1
        stream.sid = Address(f"{self.address}/{self._stream_count}")
        machine = self._stack(stream)
        port = Port(self, stream.sid, machine, stream)
        stream.host = port.host
        self._streams.append(stream)
        await port.start()
        try:
            await stream.join()
        except BaseException:
            await stream.close()
            raise

    async def leave_stream(self, stream: Stream) -> None:
        if stream not in self._streams or stream.host is None:
            return
        self._streams.remove(stream)
        await stream.unsubscribe(*list(stream.topics))
        await stream.host.settle()
        self._farewell(stream.sid)
        await stream.host.stop()
        self.links.detach(stream.sid)
        self._let_go(stream)

    def introduce(self, stream: Stream, topic: Topic) -> None:
        """The stream's machine learns the home of a topic, and its cells if it was asked for by name."""
        assert stream.host is not None
        machine, name, topics = stream.host.machine, self._names[topic], [topic]
        if isinstance(machine, Selector):
            if name in self.grids and name in stream.interests:
                grid, cells = self.grids.of(name)
                numbers = {cell: self._topics[named] for cell, named in cells.items()}
                machine.know(topic, Cells(grid, numbers))
                stream.cells.update((named, name) for named in cells.values())
                topics += numbers.values()
            machine = machine.inside
        if isinstance(machine, OrderingClient):
            machine.homes.update((each, self._homes[each]) for each in topics)

    async def open_topics(self, names: list[str]) -> dict[str, Topic]:
        """Numbers of topics; those that do not exist are born at their homes."""
        missing: dict[Address, list[str]] = {}
        for name in self.grids.with_cells(names):
            if name not in self._topics:
                missing.setdefault(home_of(self.deployment, name), []).append(name)
        while missing:
            home = next(iter(missing))
            wanted = missing.pop(home)
            answer = await self._open_at(home, tuple(wanted))
            for name, topic in answer.topics:
                self._topics[name], self._names[topic], self._homes[topic] = topic, name, home
                self._machine.homes[topic] = home
            for name, place in answer.elsewhere:
                missing.setdefault(birthplace(self.deployment, name, place), []).append(name)
            if self.archive is not None and answer.topics:
                await self.archive.follow(tuple(name for name, _ in answer.topics))
        return {name: self._topics[name] for name in names}

    async def _open_at(self, home: Address, names: tuple[str, ...]) -> edge.Opened:
        self._requests += 1
        request = self._requests
        future: asyncio.Future[edge.Opened | edge.NotOpened] = asyncio.get_running_loop().create_future()
        self._answers[request] = future
        question = edge.Open(self.address, request, names)
        try:
            answer = await self.ask(home, question, future, f"node {home}, home of {names[0]!r}, does not answer")
        finally:
            self._answers.pop(request, None)
        if isinstance(answer, edge.NotOpened):
            raise MisuseError(answer.reason)
        opened: edge.Opened = answer
        return opened

    async def expand(self, patterns: list[str]) -> list[str]:
        """Topics that match now; later ones reach the streams by `follow`. A node that is away is not waited for."""
        found: dict[str, None] = {}
        loop = asyncio.get_running_loop()
        for pattern in patterns:
            answers = self._patterns.setdefault(pattern, {})
            for node in sequencers(self.deployment):
                answers.setdefault(node, loop.create_future())
                self.links.send(node, edge.Watch(self.address, pattern))
            await self._watched(answers)
            for node, answer in list(answers.items()):
                if answer.done():
                    found.update(dict.fromkeys(answer.result()))
                else:
                    del answers[node]  # what it says when it is back is news to the streams
        return list(found)

    async def _watched(self, answers: "dict[Address, asyncio.Future[tuple[str, ...]]]") -> None:
        """Returns when all have answered who are there; a new session gives them time to be connected."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while waiting := {node: answer for node, answer in answers.items() if not answer.done()}:
            waited = loop.time() - begin
            is_anybody_there = waited < 4 * self.config.ask_again_s or any(map(self.links.is_up, waiting))
            if waited >= self.config.open_s or not is_anybody_there:
                return
            await asyncio.wait(waiting.values(), timeout=self.config.ask_again_s)

    async def keep_position(self, name: str, position: str) -> None:
        if self.config.state is None:
            raise MisuseError("a named subscription keeps its position in a directory: connect(..., state=PATH)")
        await asyncio.get_running_loop().run_in_executor(None, write_position, self.config.state, name, position)

    def _hold_name(self, name: str) -> Holding | None:
        """Two who commit under one name would each resume where the other was."""
        if self.config.state is None:
            return None
        try:
            return Holding(self.config.state, f"{name}.lock")
        except MisuseError as error:
            raise MisuseError(f"subscription {name!r}: {error}, or subscribe under another name") from None

    def _let_go(self, stream: Stream) -> None:
        holding = self._holdings.pop(stream, None)
        if holding is not None:
            holding.release()

    def _kept_position(self, name: str) -> str | None:
        return read_position(self.config.state, name) if self.config.state is not None else None

    def silence(self, name: str, patience_s: float) -> str:
        """What to say when a topic could not be joined."""
        home = self._homes[self._topics[name]]
        who = f"node {home}, home of {name!r}," if not self.links.is_up(home) else f"{name!r}: its home or the broker"
        return f"{who} did not answer within {patience_s:g} s"

    def pause(self, stream: Stream) -> None:
        self.ground.pause(stream)

    def resume(self, stream: Stream) -> None:
        self.ground.resume(stream)

    # a sink for letters to the session itself

    def post(self, message: Any) -> None:
        match message:
            case edge.Opened(request=request) | edge.NotOpened(request=request):
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case edge.TopicsBorn(names=names):
                self._follow(names)
            case Height(node=node):
                if self.witness.note(message):
                    self._reborn(node)
            case edge.Watched(node=node, pattern=pattern, names=names):
                watched = self._patterns.get(pattern, {}).get(node)
                if watched is not None and not watched.done():
                    watched.set_result(names)
                else:
                    self._follow(names)  # asked again after a reconnect: what was born meanwhile
            case Fetched() | Located() | Following() | NotFetched() | Enlisted():
                if self.archive is not None:
                    self.archive.post(message)
            case _:
                super().post(message)

    def _refused(self, message: edge.Refused) -> None:
        for answer in self._patterns.pop(message.about, {}).values():
            if not answer.done():
                answer.set_exception(MisuseError(f"{message.reason} ({message.code})"))
                answer.exception()  # one of them is enough for whoever waits
        super()._refused(message)

    def _reborn(self, node: Address) -> None:
        """A node has forgotten some of what it told us, and a person has told it to go on."""
        task = asyncio.create_task(self._meet_again(node), name=f"meet {node} again")
        self._meeting[task] = None
        task.add_done_callback(self._met)

    def _met(self, task: "asyncio.Task[None]") -> None:
        self._meeting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else TransportError(repr(error)))

    async def _meet_again(self, node: Address) -> None:
        """What is open there is unknown for ever, and a topic that has another number now is another topic."""
        topics = tuple(topic for topic, home in self._homes.items() if home == node)
        self._port.host.post(HomeReborn(topics))
        await self._port.host.settle()
        self.witness.remind_again(node, self.address, self.links.send)
        names = tuple(self._names[topic] for topic in topics)
        if not names:
            return
        again = await self._open_at(node, names)
        for name, topic in again.topics:
            if self._topics[name] != topic:
                raise TransportError(f"node {node} has forgotten the topic {name!r} and made it anew: connect again")

    def _follow(self, names: tuple[str, ...]) -> None:
        for stream in list(self._streams):
            stream.follow(names)

    # the outside of machines

    def make_outcome(self, outcome: Outcome) -> None:
        """A publication of this session has its outcome."""
        self._outbox.settle(outcome)

    def broadcast(self, effect: Broadcast) -> None:
        """Subscribers broadcast nothing: it is a publication of this session."""
        self.ground.broadcast(effect.topic, effect.message, effect.control)

    def _confirmed(self, count: int) -> None:
        self._outbox.confirmed(count)

    def _noticed(self, notice: EnsNotice) -> None:
        logger.info("broker: %s", notice)
        if isinstance(notice, Rejected):
            self._outbox.rejected(notice.item, notice.reason)

    def _foreign(self, item: Item) -> None:
        """Events of publishers that do not use unisono have no number, hence no place in the order: they are tagged."""
        if self.on_foreign is not None:
            self.on_foreign(item)
            return
        topic = self._topics.get(item.topic)
        if topic is None or self._foreign_policy(item.topic) != "tag":
            return
        self._foreigners += 1
        event = Event(f"foreign-{self.address}", self._foreigners, item.topic, item.payload)
        for stream in self._streams:
            if item.topic in stream.topics:
                stream.deliver(Heard(topic, event, late=True))
                stream.end_turn()

    def _foreign_policy(self, name: str) -> Foreign:
        for topic in self.deployment.topics:
            if topic.name == name:
                return topic.foreign
        return "tag"

    def _up(self, hello: Hello) -> None:
        self.witness.remind(hello, self.address, self.links.send)
        for address in hello.addresses:
            for pattern in self._patterns:
                self.links.send(address, edge.Watch(self.address, pattern))

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        logger.info("lost node %s: %s", ", ".join(hello.addresses), error)

    def _farewell(self, sid: Address) -> None:
        for node in sequencers(self.deployment):
            self.links.send(node, Forget(sid))

    def _ground_traits(self) -> GroundTraits:
        traits = self.ground.ens.traits
        return GroundTraits(
            bool(sequencers(self.deployment)),
            self.deployment.sequencing.order == "causal",
            traits.strength,
            retains=self.archive is not None,
            selects=True,
        )

    def _stack(self, stream: Stream) -> Machine:
        inside = self._ordering(stream)
        if stream.where.is_everything and not any(topic in self.grids for topic in stream.interests):
            return inside
        return Selector(inside, stream.where, content_of)

    def _ordering(self, stream: Stream) -> OrderingClient | FifoMachine:
        deadline = stream.promise.deadline_us
        if stream.promise.order == "fifo":
            return FifoMachine(stream.sid, FifoConfig() if deadline is None else FifoConfig(deadline_us=deadline))
        config = structs.replace(self._sequencing, tag_stalled=stream.tags_stalled)
        if deadline is not None:
            ask = min(config.ask_us, Micros(max(deadline // 4, 1000)))
            config = structs.replace(config, payload_wait_us=deadline, stall_us=deadline, ask_us=ask)
        elif stream.promise.reliability == "reliable":
            # Somebody keeps the payload. The archive fills a hole, so it is asked soon; a broker that keeps everything
            # and stands still for a while has lost nothing, so it is waited for.
            wait = Micros(10 * config.ask_us) if stream.archive is not None else config.payload_keep_us
            config = structs.replace(config, payload_wait_us=wait, payload_keep_us=KEPT_RELIABLY_US)
        return OrderingClient(stream.sid, {}, config)
