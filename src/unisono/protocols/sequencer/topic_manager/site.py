"""What the rooms of one node share: the topics hosted here and below, how far they are, and the ways through the tree.

Messages of all children are handled in arrival order and forwarded to the parent in handling order, none is held
back. Links are sessions (`structures.sessions`), so downward and sideways messages find the home of a topic hop by
hop, also while the topic moves.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from unisono.errors import InvariantError
from unisono.machine import Effect, Refuse, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Registration
from unisono.protocols.sequencer.messages import ClientMessage, PeerMessage, Renew, Routed, Topics
from unisono.protocols.sequencer.topic_manager.circles import Circles
from unisono.protocols.sequencer.topic_manager.entries import Decisions
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic

if TYPE_CHECKING:
    from unisono.protocols.sequencer.topic_manager.bulk import BulkDecisions


class Site:
    """One node's place in the tree."""

    def __init__(
        self,
        me: Address,
        parent: Address | None,
        children: tuple[Address, ...],
        hosted: Topics,
        below: dict[Topic, Address],
        config: SequencerConfig,
    ) -> None:
        self.me, self.parent, self.children, self.config = me, parent, children, config
        self.hosted: dict[Topic, HostedTopic] = {t: HostedTopic(t, config.shared_subscriptions_min) for t in hosted}
        self.below: dict[Topic, Address] = dict(below)
        self.clock: dict[Topic, int] = dict.fromkeys([*hosted, *below], 0)
        """Last number issued of a hosted topic; of a topic below, the highest whose own message passed here."""
        self.moves: dict[Topic, int] = {}
        """How often each topic had moved when it last passed here; 0 where it is not named."""
        self.left: dict[Topic, int] = {}
        """Topics that went from here to the parent, and how far they were then."""
        self.is_full = config.encoding == "full"
        self.decisions: Decisions | BulkDecisions = Decisions(self.is_full, root=parent is None)
        self.circles = Circles(self.hosted, self.clock, 0 if self.is_full else config.short_from)
        self.timers: dict[str, Micros] = {}  # running ones
        self.gone: dict[Address, None] = {}  # clients that have said goodbye, the last `gone_max`

    def saw(self, topic: Topic, number: int) -> None:
        """Rule K: only a topic's own messages raise what we know of it."""
        if topic in self.below and number > self.clock[topic]:
            self.clock[topic] = number
            self.decisions.note(topic, number)

    def split_anew(self) -> None:
        """Other topics are at home here, or below, than before."""
        self.decisions.split_anew()
        self.circles.begin_anew()

    def above(self) -> Address:
        if self.parent is None:
            raise InvariantError(f"{self.me} is the root: there is no node above to complete a timestamp")
        return self.parent

    def toward(self, topic: Topic) -> Address | None:
        return self.below.get(topic, self.parent)

    def onward(self, topic: Topic, message: PeerMessage, out: list[Effect]) -> None:
        """One hop towards the home of the topic; in line after its Move, if it is moving."""
        to = self.toward(topic)
        out.append(Refuse(f"nobody hosts topic {topic}") if to is None else Send(to, message))

    def is_here(self, topic: Topic, message: PeerMessage, out: list[Effect]) -> bool:
        """Whether we are the home; if not, a peer's message goes on."""
        if topic in self.hosted:
            return True
        self.onward(topic, message, out)
        return False

    def is_home(self, topic: Topic, message: ClientMessage, out: list[Effect]) -> bool:
        """Whether we are the home; if not, a client's message goes on."""
        if topic in self.hosted:
            return True
        self.forward(topic, message, out)
        return False

    def divide(self, message: Registration | Renew, out: list[Effect]) -> Topics:
        """Those of a client's topics that are at home here; the others go on, each way in one message."""
        if all(topic in self.hosted for topic in message.here):
            return message.here
        here: list[Topic] = []
        ways: dict[Address | None, list[Topic]] = {}
        for topic in message.here:
            if topic in self.hosted:
                here.append(topic)
            else:
                ways.setdefault(self.toward(topic), []).append(topic)
        for topics in ways.values():
            self.forward(topics[0], replace(message, here=tuple(topics)), out)
        return tuple(here)

    def forward(self, topic: Topic, message: ClientMessage, out: list[Effect]) -> None:
        to = self.toward(topic)
        out.append(Refuse(f"nobody hosts topic {topic}") if to is None else Send(to, Routed(topic, message)))

    def set_timer(self, key: str, at: Micros, out: list[Effect]) -> None:
        if key not in self.timers or at < self.timers[key]:
            self.timers[key] = at
            out.append(SetTimer(key, at))
