"""A client's session: one identity, a link to every sequencer node, a connection to the broker, any number of streams.

A session that loses a node or the broker keeps its streams and reconnects; machines repeat what was not answered.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from unisono.errors import MisuseError, PlanError, TransportError, UnisonoError, said
from unisono.machine import Broadcast, Heard, Machine
from unisono.model.content import content_of
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.grids import Grids
from unisono.model.homes import archives, sequencers
from unisono.model.ids import Address, Topic
from unisono.model.interest import is_pattern
from unisono.model.settings import Foreign
from unisono.model.time import MILLISECOND, Micros
from unisono.protocols.content.selector import Cells, Selector
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.lives import Height
from unisono.qos import DeploymentOffer, choose
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.brokers.contract import Down, Ens, EnsNotice, Item, ItemRejected, Listener, Lost, Up
from unisono.runtime.brokers.deployed import adopted_topics, make_ens, nats_options, open_patiently, publishers_space
from unisono.runtime.client.client_driver import ClientDriver
from unisono.runtime.client.client_region import ClientRegion
from unisono.runtime.client.ordering import REQUESTS, OrderingMachine, client_ordering
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.publishing.topic_window import Outcome
from unisono.runtime.client.recording import RecordedArrivals, note_sent
from unisono.runtime.client.session import Session, SessionConfig
from unisono.runtime.client.subscription.archive_client import ArchiveClient
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.group_stream import GroupStream
from unisono.runtime.client.subscription.position import numbers_of, read_position, write_position
from unisono.runtime.client.subscription.replay import Past
from unisono.runtime.client.subscription.request import SubscribeRequest
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.client.topic_directory import TopicDirectory
from unisono.runtime.driver.data_directory import DataDirectory
from unisono.runtime.driver.host import Host
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetched, Following, Located, NotFetched
from unisono.runtime.links.dialing import dial_node
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import Links
from unisono.structures.hosting import Forget
from unisono.structures.sessions import BroadcastsDone, PeerReborn, Reconnected
from unisono.structures.stored import StoredPublications

logger = logging.getLogger(__name__)


class SequencedSession(Session):
    """A client of sequencer nodes over a broker."""

    def __init__(
        self,
        deployment: Deployment,
        base: Path,
        token: str,
        config: SessionConfig,
        links: Links | None = None,
        carrier: Callable[[Listener], Ens] | None = None,
    ) -> None:
        """`carrier` makes what carries the events, if not the deployment's broker; it sees their content."""
        super().__init__(deployment, base, token, config, links)
        self._carrier = carrier
        self.grids = Grids(deployment)
        self._token, self._base = token, base
        self._streams: list[Stream] = []
        self._members: dict[GroupStream, Host] = {}
        self._stream_count = self._foreigners = 0
        self._directories: dict[Stream, DataDirectory] = {}
        """Of named subscriptions: nobody else keeps positions under these names."""
        self.on_foreign: Callable[[Item], None] | None = None
        """Who takes care of events that nobody of ours published; without anybody they are tagged or dropped."""
        self._telling: asyncio.Task[None] | None = None
        self._meeting: dict[asyncio.Task[None], None] = {}
        self._nearest = ClientRegion(deployment, self.links, config.region)
        kept = archives(deployment)
        self.archive = ArchiveClient(self, kept[0]) if kept else None
        """Who keeps what was delivered, if anybody does."""
        self.broker = BrokerConnection(
            self, self._confirmed, self._noticed, self._foreign, self.fail, publishers_space(deployment)
        )
        self.broker.adopted, self.broker.on_refused = adopted_topics(deployment), self._not_heard
        self._ordering = ordering = client_ordering(deployment, Address(f"{self.address}/p"))
        self._directory = TopicDirectory(self, self.grids, self._nearest, self._topics, self._names, ordering.homes)
        self._near: Address | None = None
        """The node that machines stand on, where they stand on one."""
        self._awaits_broker = carrier is None and deployment.broker.keeps
        machine: Machine = ordering.machine
        if self._awaits_broker:
            machine = StoredPublications(machine, ordering.accept_us, REQUESTS)
        self._driver = ClientDriver(self, f"{self.address}/p", machine, None, ordering.arrangement)
        self._publications = self.publications = SessionPublications(
            self,
            self._driver.host,
            self._driver.address,
            ordering.window,
            lambda: self.broker.ens.traits.payload_bytes_max,
            by_content=carrier is not None,
            in_headers=True,
            repeated=ordering.repeated,
            grids=self.grids,
            in_one_line=ordering.in_one_line,
            counts_over_topics=ordering.counts_over_topics,
            first=self._tell_witnessed if ordering.publishes_after_streams else None,
        )

    def forget_moments(self) -> None:
        """What it publishes was published before by somebody else, and nobody knows when."""
        self.publications.is_dated = False

    # life

    async def open(self) -> None:
        # A session on the links of a node is the node's own, and may say what only nodes say.
        is_node = not self._owns_links
        if self._carrier is not None:
            ens = self._carrier(self.broker)
        else:
            ens = make_ens(self.deployment, self._base, self.broker, self._token, self.config.region, is_node)
        self.broker.stand_on(ens)
        self.links.attach(self.address, self)
        for node in self.deployment.nodes:
            if self._owns_links and ("sequencer" in node.roles or "archive" in node.roles):
                dial_node(self.links, node)
        await open_patiently(ens, self.config.open_s)
        await self._driver.start()
        self._begin()
        self._stand()

    async def _leave(self) -> None:
        for task in self._meeting:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.open_s):
                while self._ordering.is_withdrawing and self._failure is None:
                    await asyncio.sleep(0.01)  # whoever leaves before leaves subscribers waiting for its payloads
        for stream in list(self._directories):  # that were never entered
            self._let_go(stream)
        self._farewell(self._driver.address)
        await self._driver.host.stop()
        await asyncio.sleep(0)  # the farewells leave
        await self.broker.close()
        self.links.detach(self.address)
        self.links.detach(self._driver.address)

    def _open_streams(self) -> list[EventStream]:
        return [*self._members, *self._streams]

    # publishing and subscribing

    async def _publishing(self) -> SessionPublications:
        self.check_alive()
        return self.publications

    def _stream(self, request: SubscribeRequest) -> Stream | GroupStream:
        group = request.group
        choose(request.promise, self._offer(), request.start, group, content=request.selects)
        if group is None:
            return self._plain(request)
        if any(topic in self.grids for topic in request.topics):
            raise PlanError(f"{request.topics[0]!r} is cut by a grid: its cells are heard live, not resumed by a group")
        alone = structs.replace(request, group=None, share=None)
        return GroupStream(
            self, group, request.share, lambda start: self._plain(structs.replace(alone, start=start)), request.start
        )

    def _plain(self, request: SubscribeRequest) -> Stream:
        start, promise = request.start, request.promise
        if request.on_stall not in ("wait", self._ordering.on_stall):
            allowed = f"'wait' or {self._ordering.on_stall!r}"
            by = self.deployment.sequencing.by
            raise PlanError(f"on_stall={request.on_stall!r}: where sequencing.by is {by!r}, it is {allowed}")
        cut = [topic for topic in request.topics if topic in self.grids]
        replays = start != "latest" or promise.reliability == "reliable"
        if cut and (replays or request.name is not None):
            raise PlanError(f"{cut[0]!r} is cut by a grid: its cells are heard live, not yet replayed or resumed")
        holding = self._hold_name(request.name) if request.name is not None else None
        if request.name is not None and start == "latest" and (kept := self._kept_position(request.name)) is not None:
            start = kept
        stream = Stream(
            self,
            request.topics,
            promise,
            numbers_of(start),
            request.decode,
            request.name,
            request.latest_only,
            request.where,
        )
        if holding is not None:
            self._directories[stream] = holding
        stream.on_stall = request.on_stall
        stream.archive = self.archive if promise.order != "fifo" else None
        stream.past = stream.archive or (self._recall(stream) if promise.order != "fifo" else None)
        stream.starts_in_past = start != "latest" and stream.past is not None
        return stream

    def _recall(self, stream: Stream) -> Past | None:
        """The past of a topic as the broker keeps it, if it does; of several nobody knows their order."""
        topics, broker = stream.interests, self.deployment.broker
        if (
            self.deployment.sequencing.by == "clock"
            or not broker.keeps
            or len(topics) != 1
            or is_pattern(topics[0])
            or topics[0] in self.grids
        ):
            return None
        from unisono.runtime.brokers.nats.jetstream import JetStreamEns
        from unisono.runtime.brokers.nats.retained import RetainedEvents

        (topic,) = topics
        options = nats_options(self.deployment, self._token, self.config.region, is_node=False)
        return RetainedEvents(
            lambda ear: JetStreamEns(options, ear),
            topic,
            self.broker.adopted.get(topic),
            lambda: stream.bases.get(topic, 0),
            publishers_space(self.deployment),
        )

    # for members of groups

    async def enlist(self, member: GroupStream) -> Host:
        self.check_alive()
        self._stream_count += 1
        member.sid = Address(f"{self.address}/{self._stream_count}")
        port = ClientDriver(self, member.sid, member.machine(member.sid), member)
        self._members[member] = port.host
        await port.start()
        return port.host

    async def discharge(self, member: GroupStream) -> None:
        host = self._members.pop(member, None)
        if host is not None:
            await host.stop()
            self.links.detach(member.sid)

    def coordinator(self) -> Address:
        assert self.archive is not None
        return self.archive.node

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
        port = ClientDriver(self, stream.sid, machine, stream)
        if self.records_all:
            port.sink = RecordedArrivals(port.sink, self, stream.sid, self.config.region)
        stream.host = port.host
        self._streams.append(stream)
        await port.start()
        if self._near is not None:
            port.host.post(self._ordering.stand_on(self._near))
        await stream.join()

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
        if isinstance(machine, OrderingMachine):
            self._ordering.introduce(machine, {each: self._directory.homes[each] for each in topics})

    async def open_topics(self, names: list[str]) -> dict[str, Topic]:
        """Numbers of topics; those that do not exist are created at their planned homes, or near us."""
        new = await self._directory.open(names)
        if self.archive is not None and new:
            await self.archive.follow(tuple(new))
        return {name: self._topics[name] for name in names}

    def way_to(self, home: Address) -> Address:
        """Where letters for this home go: there, or, while it is away, to a node that passes them on."""
        if self.links.is_up(home) or not self._ordering.passes_on:
            return home
        return self._directory.way_to(home)

    async def expand(self, patterns: list[str]) -> list[str]:
        """Topics that match now; later ones reach the streams by `follow`."""
        return await self._directory.expand(patterns)

    async def keep_position(self, name: str, position: str) -> None:
        assert self.config.state is not None
        await asyncio.get_running_loop().run_in_executor(None, write_position, self.config.state, name, position)

    def _hold_name(self, name: str) -> DataDirectory:
        """Two who commit under one name would each resume where the other was."""
        if self.config.state is None:
            raise MisuseError(f"name={name!r} keeps its position in a directory: connect(…, state=DIRECTORY)")
        try:
            return DataDirectory(self.config.state, f"{name}.lock")
        except MisuseError as error:
            raise MisuseError(f"subscription {name!r}: {error}, or subscribe under another name") from None
        except OSError as error:
            problem = f"no file can be written to the directory {self.config.state}: {said(error)}"
            raise MisuseError(f"state: {problem}") from None

    def _let_go(self, stream: Stream) -> None:
        holding = self._directories.pop(stream, None)
        if holding is not None:
            holding.release()

    def _kept_position(self, name: str) -> str | None:
        return read_position(self.config.state, name) if self.config.state is not None else None

    def silence(self, name: str, patience_s: float) -> str:
        """What to say when a topic could not be joined."""
        home = self._directory.homes[self._topics[name]]
        who = f"node {home}, home of {name!r}," if not self.links.is_up(home) else f"{name!r}: its home or the broker"
        return f"{who} did not answer within {patience_s:g} s"

    def pause(self, stream: Stream) -> None:
        self.broker.pause(stream)

    def resume(self, stream: Stream) -> None:
        self.broker.resume(stream)

    # a sink for letters to the session itself

    def post(self, message: Any) -> None:
        match message:
            case naming.TopicsOpened() | naming.TopicsNotOpened():
                self._directory.answered(message)
            case naming.TopicsBorn(names=names):
                self._follow(names)
            case Height(node=node):
                if self.witness.note(message):
                    self._reborn(node)
            case control.Watched(names=names):
                if not self._directory.watched(message):
                    self._follow(names)  # asked again after a reconnect: what was created meanwhile
            case Fetched() | Located() | Following() | NotFetched():
                if self.archive is not None:
                    self.archive.post(message)
            case _:
                super().post(message)

    def _refused(self, message: control.OverLimit) -> None:
        self._directory.refused(message)
        super()._refused(message)

    def _reborn(self, node: Address) -> None:
        """A node has forgotten some of what it told us, and a person has told it to go on."""
        self._soon(self._meet_again(node), f"meet {node} again")

    def _soon(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """What goes wrong there ends the session."""
        task = asyncio.create_task(work, name=name)
        self._meeting[task] = None
        task.add_done_callback(self._met)
        return task

    def _met(self, task: "asyncio.Task[None]") -> None:
        self._meeting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else TransportError(repr(error)))

    async def _meet_again(self, node: Address) -> None:
        """What is open there is unknown for ever, and a topic that has another number now is another topic."""
        topics = tuple(topic for topic, home in self._directory.homes.items() if home == node)
        if self._is_open:
            self._driver.host.post(self._ordering.has_forgotten(node))
        else:  # nothing has been asked of anybody
            self.witness.remind(node, self.address, self.links.send)
        await self._look_again(node, tuple(self._names[topic] for topic in topics))

    async def _look_again(self, node: Address, names: tuple[str, ...]) -> None:
        """Whether topics of that node have the numbers that we know them by."""
        if not names:
            return
        again = await self._directory.open_at(node, names)
        for name, topic in again.topics:
            if self._topics[name] != topic:
                raise TransportError(f"node {node} has forgotten the topic {name!r} and made it anew: connect again")
            self._directory.homes[Topic(topic)] = node

    def _follow(self, names: tuple[str, ...]) -> None:
        for stream in list(self._streams):
            stream.follow(names)

    # the outside of machines

    def make_outcome(self, outcome: Outcome | HomeReborn | PeerReborn) -> None:
        """A publication of this session has its outcome, or the machine has drawn the consequences of a node's being
        reborn, and the node may know that."""
        match outcome:
            case HomeReborn(node=node) | PeerReborn(peer=node):
                self.witness.remind(node, self.address, self.links.send)
            case _:
                self.publications.settle(outcome)

    def broadcast(self, effect: Broadcast) -> None:
        """Subscribers broadcast nothing: it is a publication of this session."""
        if self.records_all:
            note_sent(self, self.address, self.config.region, effect.message)
        self.broker.broadcast(effect.topic, effect.message, effect.control)

    def _confirmed(self, count: int) -> None:
        if self._awaits_broker:
            self._driver.host.post(BroadcastsDone(count))

    def _noticed(self, notice: EnsNotice) -> None:
        match notice:
            case ItemRejected(item=item, reason=reason):
                self.publications.rejected(item, reason)
            case Down(reason=reason):
                logger.warning("the broker is lost: %s", reason)
            case Up():
                logger.warning("the broker is back")
            case Lost():
                logger.info("items may have passed us by: %s", notice.reason)

    def _not_heard(self, topic: Topic, error: UnisonoError) -> None:
        for stream in list(self._streams):
            stream.not_heard(self._names[topic], error)

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

    def _tell_witnessed(self) -> None:
        """Before anything is published."""
        news = self._ordering.witnessed(stream.host.machine for stream in self._streams if stream.host is not None)
        if news is not None:
            self._driver.host.post(news)

    def _stand(self) -> None:
        """Where machines stand on one node, it is the nearest that is there."""
        near = self._nearest.node()
        if not self._is_open or near is None or near == self._near or (news := self._ordering.stand_on(near)) is None:
            return
        self._near = near
        for host in (self._driver.host, *(stream.host for stream in self._streams)):
            if host is not None:
                host.post(news)

    def _up(self, hello: Hello) -> None:
        self._nearest.heard()
        self._stand()
        if self._owns_links and len(sequencers(self.deployment)) > 1 and self._telling is None:
            self._telling = self._soon(self._tell_where(), "tell where we are")
        for node in hello.addresses:
            self.witness.remind(node, self.address, self.links.send)
        ordering = [stream.host for stream in self._streams if stream.promise.order != "fifo"]
        for address in hello.addresses:
            for host in (self._driver.host, *ordering):
                if host is not None:
                    host.post(Reconnected(address))
            self._directory.watch_again(address)
            if names := self._directory.hearsay(address):
                self._soon(self._look_again(address, names), f"ask {address} itself")

    async def _tell_where(self) -> None:
        """Nodes count by region who asks for what."""
        region, self._telling = await self._nearest.region(), None
        self._stand()
        if region is not None:
            for node in sequencers(self.deployment):
                self.links.send(node, control.ClientAt(self.address, region, self._nearest.round_trips_us()))

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        logger.info("lost node %s: %s", ", ".join(hello.addresses), error)
        self._stand()

    def _farewell(self, sid: Address) -> None:
        for node in sequencers(self.deployment):
            self.links.send(node, Forget(sid))

    def _offer(self) -> DeploymentOffer:
        traits = self.broker.ens.traits
        return DeploymentOffer(
            bool(sequencers(self.deployment)),
            self._ordering.in_one_line,
            traits.strength,
            retains=self.archive is not None,
            selects=True,
            by=self.deployment.sequencing.by,
            tolerance_us=Micros(round(self.deployment.sequencing.tolerance_ms * MILLISECOND)),
            leans=self.deployment.sequencing.leans_lanes,
        )

    def _stack(self, stream: Stream) -> Machine:
        inside = self._ordering_of(stream)
        if stream.where.is_everything and not any(topic in self.grids for topic in stream.interests):
            return inside
        return Selector(inside, stream.where, content_of)

    def _ordering_of(self, stream: Stream) -> OrderingMachine | FifoMachine:
        promise, deadline = stream.promise, stream.promise.deadline_us
        if promise.order == "fifo":
            return FifoMachine(stream.sid, FifoConfig() if deadline is None else FifoConfig(deadline_us=deadline))
        return self._ordering.subscriber(stream.sid, promise, stream.on_stall, stream.archive is not None)
