"""What a session asks the archive of its deployment: rows and places."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from unisono.errors import TransportError
from unisono.model.ids import Address
from unisono.runtime.links.archive_messages import Fetch, Fetched, Follow, Following, Locate, Located, NotFetched
from unisono.runtime.links.links import Links

logger = logging.getLogger(__name__)

LINK_S = 1.0
"""How long, once in a session, the first topics wait for the link to the archive."""
FOLLOW_S = 2.0
"""How long a new topic waits for the archive: it may be held up by a home that is away, and publishing goes on."""

Reply = TypeVar("Reply", Fetched, Located, Following)


class ArchiveAsker(Protocol):
    """A session that asks nodes."""

    address: Address
    links: Links

    async def ask(self, node: Address, question: Any, future: "asyncio.Future[Any]", silence: str) -> Any: ...


class ArchiveClient:
    """Questions of a session to the archive of its deployment."""

    def __init__(self, session: ArchiveAsker, node: Address) -> None:
        self.node = node
        self._session = session
        self._requests = 0
        self._wait_until = 0.0
        self._answers: dict[int, asyncio.Future[Any]] = {}

    def post(self, message: Any) -> None:
        """An answer has come."""
        answer = self._answers.pop(message.request, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def fetch(self, after: int, topics: tuple[str, ...], above: dict[str, int], seal: bool) -> Fetched:
        """Raises TransportError when the archive does not answer or cannot."""
        me = self._session.address
        return await self._ask(Fetched, lambda request: Fetch(me, request, after, topics, above, seal))

    async def locate(self, topic: str, number: int) -> Located:
        """Where a number of a topic is in the archive's order."""
        return await self._ask(Located, lambda request: Locate(self._session.address, request, topic, number))

    async def follow(self, topics: tuple[str, ...]) -> None:
        """Returns when the archive hears these topics, or can not be asked: then it will say what it lacks."""
        loop = asyncio.get_running_loop()
        self._wait_until = self._wait_until or loop.time() + LINK_S
        while not self._session.links.is_up(self.node):
            if loop.time() >= self._wait_until:
                return
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(FOLLOW_S):
                await self._ask(Following, lambda request: Follow(self._session.address, request, topics))
        except (TransportError, TimeoutError):
            logger.info("archive %s does not hear %s yet", self.node, ", ".join(topics))

    async def _ask(self, kind: type[Reply], question: Callable[[int], Any]) -> Reply:
        """The answer of that kind to the question, which is made with the number of its request."""
        self._requests += 1
        request = self._requests
        future = self._answers[request] = asyncio.get_running_loop().create_future()
        try:
            silence = f"archive {self.node} does not answer"
            answer = await self._session.ask(self.node, question(request), future, silence)
        finally:
            self._answers.pop(request, None)
        if not isinstance(answer, kind):
            reason = answer.reason if isinstance(answer, NotFetched) else "an answer to another question"
            raise TransportError(f"archive {self.node}: {reason}")
        return answer
