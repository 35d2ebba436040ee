"""What comes for a node: letters of clients and of other nodes.

What only this process knows is answered here, what belongs to a role goes there, and the rest is for the machine that
names and orders topics. A client that asks for too much, or for what its token does not allow, is told so here.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol, get_args

from unisono.errors import PeerError
from unisono.model.ids import Address
from unisono.model.interest import covers
from unisono.protocols.causal.messages import CausalEnter, CausalPublication, ToCausalBroker
from unisono.protocols.groups.messages import Commit, Enlist, Release, Resign
from unisono.protocols.naming import messages as naming
from unisono.protocols.overlay.messages import BrokerMessage as OverlayMessage
from unisono.protocols.overlay.messages import OverlaySaid
from unisono.protocols.regions.messages import RegionMessage, RegionSaid
from unisono.protocols.sequencer.lives import Height, Reminds
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetch, Fetched, Follow, Locate, ToArchive
from unisono.runtime.links.links import LetterReceiver, owner
from unisono.runtime.links.pace import BEARING, FETCHED, SEALING
from unisono.runtime.node.parts import NodeParts
from unisono.runtime.node.questions import NodeQuestions
from unisono.runtime.node.rights import Rights
from unisono.structures.hosting import Forget

logger = logging.getLogger(__name__)

_FOR_THE_NODE = frozenset(
    (
        control.AskDeployment,
        control.AskReport,
        control.Survey,
        control.PeerPing,
        control.PeerPong,
        control.Watch,
        Forget,
        Height,
        Reminds,
        *get_args(ToArchive | OverlayMessage | RegionMessage | ToCausalBroker | control.AboutHomes),
        *get_args(naming.TopicsAnswer),
    )
)
"""What the machine need not see; everything else is for it."""


class AddressedNode(NodeParts, Protocol):
    """A node, as its letters see it."""

    def refused(self, reason: str) -> None: ...

    def to_door(self, message: Any) -> None: ...

    def say(self, client: Address, message: Any) -> None: ...


class NodeLetters:
    """Gives every letter to the part of the node that it is for."""

    def __init__(
        self, node: AddressedNode, heights: ShownHeights, questions: NodeQuestions, rights: Rights, asks_rights: bool
    ) -> None:
        self._node, self._links = node, node.links
        self._heights, self._questions, self._rights, self._asks_rights = heights, questions, rights, asks_rights

    def post(self, message: Any) -> None:
        refused = self._rights.why_not(message) if self._asks_rights else None
        if refused is not None:
            client = Address(refused.about)
            self._tell_refused(client, refused)
            self._links.send(client, self._rights.answer(message, refused))
            return
        if type(message) not in _FOR_THE_NODE:
            self._to_machine(message)
            return
        match message:
            case control.AskDeployment() | control.AskReport() | control.Survey():
                self._questions.answer_soon(message)
            case control.PeerPing():
                self._node.lookout.answer(message)
            case control.PeerPong():
                self._node.lookout.heard(message)
            case _ if self._node.placing is not None and isinstance(message, control.AboutHomes):
                self._node.placing.post(message)
            case control.Watch(client=client, pattern=pattern):
                self._questions.charge(client)
                self._watch(client, pattern)
            case Fetch() | Locate() | Follow() | Enlist() | Commit() | Release() | Resign():
                seals = self._node.archivist is not None and self._node.archivist.post(message)
                self._links.charge(message.client, SEALING if seals else 1)
            case OverlaySaid() | RegionSaid() | CausalEnter() | CausalPublication():
                if self._node.overlay is not None and isinstance(message, self._node.overlay.said):
                    self._node.overlay.post(message)
            case Forget(client=client) if self._node.overlay is not None:
                self._node.overlay.forget(client)
                if self._node.sequencer is not None:
                    self._to_machine(message)
            case Height() if self._node.sequencer is None or self._node.sequencer.door is None:
                self._heights.note(message)
            case Height() | Reminds():
                self._node.to_door(message)
            case naming.TopicsOpened() | naming.TopicsNotOpened():
                pass  # the answer to what we asked ourselves at start
            case _:
                self._to_machine(message)

    def hand_out(self, client: Address, answer: Any) -> None:
        """An answer of the archive; while events are under way, whoever reads it pays for the rows."""
        self._links.send(client, answer)
        if isinstance(answer, Fetched) and self._is_busy():
            self._links.charge(client, len(answer.rows) // FETCHED)

    def _is_busy(self) -> bool:
        sequencer = self._node.sequencer
        return sequencer is not None and sequencer.is_busy()

    def _to_machine(self, message: Any) -> None:
        node, sequencer = self._node, self._node.sequencer
        if sequencer is None or sequencer.host is None:
            logger.debug("node %s has no use for %s", node.me, type(message).__name__)
            return
        if type(message) is naming.OpenTopics and message.client != node.me:
            unknown = self._unknown(message.names[: node.deployment.limits.client_topics_max + 1])
            if self._is_busy():
                self._links.charge(message.client, 1 + BEARING * len(unknown))
            refused = self._full(unknown) or node.clients.asked(message.client, unknown)
            if refused is not None:
                self._tell_refused(message.client, refused)
                self._links.send(message.client, naming.TopicsNotOpened(message.request, refused.reason, refused.code))
                return
        refused = node.clients.heard(message)
        if refused is not None:
            self._tell_refused(Address(refused.about), refused)
            self._links.send(owner(Address(refused.about)), refused)
            return
        if sequencer.door is not None:
            sequencer.note_arrival(message)
            sequencer.door.post(message)

    def _unknown(self, names: tuple[str, ...]) -> list[str]:
        known = self._node.topic_names
        return [name for name in names if known is not None and not known.is_known(name)]

    def _full(self, unknown: list[str]) -> control.OverLimit | None:
        most, known = self._node.deployment.limits.topics_max, self._node.topic_names
        if not unknown or known is None or len(known.mine) + len(unknown) <= most:
            return None
        return control.OverLimit("topics", f"{most} topics are the most that are created here", unknown[0])

    def _watch(self, client: Address, pattern: str) -> None:
        refused, known = self._node.clients.watch(client, pattern), self._node.topic_names
        if refused is not None:
            self._tell_refused(client, refused)
            self._links.send(owner(client), refused)
        elif known is not None:
            names = tuple(name for name in known.mine if known.is_announced(name) and covers(pattern, name))
            self._node.say(client, control.Watched(self._node.me, pattern, names))

    def _tell_refused(self, client: Address, refused: control.OverLimit) -> None:
        self._links.offended(client, PeerError(refused.reason, refused.code))
        self._node.refused(refused.reason)

    # whether more may be read from the links now

    @property
    def is_full(self) -> bool:
        sequencer = self._node.sequencer
        is_full = sequencer is not None and sequencer.holds_all_it_can
        return is_full or any(each.is_full for each in self._working)

    def when_roomy(self, callback: Callable[[], None]) -> None:
        working = self._working
        if working:
            next((each for each in working if each.is_full), working[0]).when_roomy(callback)
        else:
            callback()

    @property
    def _working(self) -> list[LetterReceiver]:
        overlay, sequencer = self._node.overlay, self._node.sequencer
        roles = (overlay.host if overlay is not None else None, sequencer)
        return [role for role in roles if role is not None]
