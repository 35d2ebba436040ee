"""Numbers and homes of the topics that a session has opened: asked of nodes, and remembered."""

import asyncio
from typing import Any, Protocol

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.grids import Grids
from unisono.model.homes import birthplace, home_of, planned_home, sequencers
from unisono.model.ids import Address, Topic
from unisono.protocols.naming import messages as naming
from unisono.runtime.client.client_region import ClientRegion
from unisono.runtime.links import control
from unisono.runtime.links.links import Links


class AskingSession(Protocol):
    """What it needs of its session."""

    @property
    def deployment(self) -> Deployment: ...

    @property
    def links(self) -> Links: ...

    @property
    def address(self) -> Address: ...

    @property
    def open_s(self) -> float: ...

    @property
    def ask_again_s(self) -> float: ...

    async def ask(self, node: Address, question: Any, future: "asyncio.Future[Any]", silence: str) -> Any: ...


class TopicDirectory:
    """Which topic has which number, and which node its home is, as far as the session has asked."""

    def __init__(
        self,
        session: AskingSession,
        grids: Grids,
        nearest: ClientRegion,
        numbers: dict[str, Topic],
        names: dict[Topic, str],
        homes: dict[Topic, Address],
    ) -> None:
        """`numbers` and `names` are the session's, `homes` those of its publishing machine; all three are filled."""
        self.homes: dict[Topic, Address] = {}
        """As they were told; the machine's follow moves."""
        self._session, self._grids, self._nearest = session, grids, nearest
        self._numbers, self._names, self._machine_homes = numbers, names, homes
        self._requests = 0
        self._answers: dict[int, asyncio.Future[naming.TopicsAnswer]] = {}
        self._hearsay: dict[Address, dict[str, None]] = {}  # home -> topics of which only others have told us
        self._patterns: dict[str, dict[Address, asyncio.Future[tuple[str, ...]]]] = {}

    async def open(self, names: list[str]) -> list[str]:
        """Opens topics; new ones are created at planned homes, or near us. Returns those not known here before."""
        deployment, is_up = self._session.deployment, self._session.links.is_up
        new = [name for name in self._grids.with_cells(names) if name not in self._numbers]
        is_planned = all(planned_home(deployment, name) is not None for name in new)
        region = None if is_planned else await self._nearest.region()
        missing: dict[Address, list[str]] = {}
        for name in new:
            missing.setdefault(home_of(deployment, name, region, is_up), []).append(name)
        while missing:
            asked, missing = missing, {}
            answers = await asyncio.gather(
                *(self._open_there(home, wanted) for home, wanted in asked.items()), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                for name, place in answer:
                    missing.setdefault(birthplace(deployment, name, place), []).append(name)
        return new

    def way_to(self, home: Address) -> Address:
        """Any node passes on what is for a home, so one that is away is not waited for: its topics may have moved, and
        the root knows where all of them are."""
        is_up = self._session.links.is_up
        if is_up(home):
            return home
        root = Address(self._session.deployment.root.name)
        return root if is_up(root) else home

    async def _open_there(self, home: Address, names: list[str]) -> tuple[tuple[str, int], ...]:
        """Opens topics at this home, or, while it is away, those that the root knows the way to; returns those that are
        elsewhere."""
        way = self.way_to(home)
        if way != home:
            known = await self.open_at(way, tuple(names), through=True)
            self._know(known.topics, way)
            self._hearsay.setdefault(home, {}).update((name, None) for name, _ in known.topics)
            names = [name for name in names if name not in self._numbers]
        if not names:
            return ()
        answer = await self.open_at(home, tuple(names))
        self._know(answer.topics, home)
        return answer.elsewhere

    def _know(self, topics: tuple[tuple[str, int], ...], home: Address) -> None:
        for name, number in topics:
            topic = Topic(number)
            self._numbers[name], self._names[topic], self.homes[topic] = topic, name, home
            self._machine_homes[topic] = home

    def hearsay(self, node: Address) -> tuple[str, ...]:
        """Topics of this node of which only others have told us, while it was away: they may not know that it has
        forgotten them. Each is named once."""
        return tuple(self._hearsay.pop(node, ()))

    async def open_at(self, home: Address, names: tuple[str, ...], through: bool = False) -> naming.TopicsOpened:
        self._requests += 1
        request = self._requests
        future: asyncio.Future[naming.TopicsAnswer] = asyncio.get_running_loop().create_future()
        self._answers[request] = future
        question = naming.OpenTopics(self._session.address, request, names, through)
        silence = f"node {home}, home of {names[0]!r}, does not answer"
        try:
            answer = await self._session.ask(home, question, future, silence)
        finally:
            self._answers.pop(request, None)
        if isinstance(answer, naming.TopicsNotOpened):
            raise MisuseError(f"{answer.reason} ({answer.code})")
        opened: naming.TopicsOpened = answer
        return opened

    def answered(self, message: naming.TopicsAnswer) -> None:
        answer = self._answers.pop(message.request, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    # patterns

    async def expand(self, patterns: list[str]) -> list[str]:
        """Topics that match now; later ones are told by nodes. A node that is away is not waited for."""
        found: dict[str, None] = {}
        loop, links = asyncio.get_running_loop(), self._session.links
        for pattern in patterns:
            answers = self._patterns.setdefault(pattern, {})
            for node in sequencers(self._session.deployment):
                answers.setdefault(node, loop.create_future())
                links.send(node, control.Watch(self._session.address, pattern))
            await self._watched(answers)
            for node, answer in list(answers.items()):
                if answer.done():
                    found.update(dict.fromkeys(answer.result()))
                else:
                    del answers[node]  # what it says when it is back is news to the streams
        return list(found)

    async def _watched(self, answers: "dict[Address, asyncio.Future[tuple[str, ...]]]") -> None:
        """Returns when all have answered who are there; a new session gives them time to be connected."""
        loop, session = asyncio.get_running_loop(), self._session
        begin = loop.time()
        while waiting := {node: answer for node, answer in answers.items() if not answer.done()}:
            waited = loop.time() - begin
            is_anybody_there = waited < 4 * session.ask_again_s or any(map(session.links.is_up, waiting))
            if waited >= session.open_s or not is_anybody_there:
                return
            await asyncio.wait(waiting.values(), timeout=session.ask_again_s)

    def watched(self, message: control.Watched) -> bool:
        """Tells whether somebody waited for it; if not, what was created meanwhile is news."""
        answer = self._patterns.get(message.pattern, {}).get(message.node)
        if answer is None or answer.done():
            return False
        answer.set_result(message.names)
        return True

    def watch_again(self, node: Address) -> None:
        """It is connected, and may have forgotten what we watch for."""
        for pattern in self._patterns:
            self._session.links.send(node, control.Watch(self._session.address, pattern))

    def refused(self, message: control.OverLimit) -> None:
        for answer in self._patterns.pop(message.about, {}).values():
            if not answer.done():
                answer.set_exception(MisuseError(f"{message.reason} ({message.code})"))
                answer.exception()  # one of them is enough for whoever waits
