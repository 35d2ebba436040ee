"""A subscriber: what it wants of which topics, its port per stream, and what it tells the application.

It is attached to one broker with one filter for all its topics, and joins a topic when that filter has been answered:
from then on everything that matches comes, through every hand-over and crash, or a notice says what does not.
"""

from collections.abc import Callable

from unisono.machine import CutOff, Deliver, Heard, Joined, Refused, Selected
from unisono.model.ids import Address, Topic
from unisono.model.interest import covers, is_pattern
from unisono.model.predicate import EVERY_EVENT, Filter
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import Attach, Attached, StreamGap, StreamItem, Tally
from unisono.protocols.regions.neighbours import RegionAround, RegionOutbox
from unisono.protocols.regions.ports import StreamPorts
from unisono.protocols.regions.streams import StreamPort
from unisono.structures.content import about, flat


class RegionSubscriber:
    """The subscriptions of one client; `where` narrows every topic."""

    def __init__(
        self,
        me: Address,
        config: RegionsConfig,
        out: RegionOutbox,
        topic_name: Callable[[Topic], str],
        where: Filter = EVERY_EVENT,
        accepts_direct: bool = False,
    ) -> None:
        self._me, self._config, self._out, self._topic_name = me, config, out, topic_name
        self._around = RegionAround(me, is_root=False)
        self.ports = StreamPorts(me, config, self._around, out, self)
        self._accepts_direct = accepts_direct
        self._where = where
        self._before: list[Filter] = []  # earlier filters whose events may still be under way
        self._topics: dict[Topic, str] = {}
        self._names: dict[str, Topic] = {}
        self._patterns: dict[str, Topic] = {}
        self._turn = 0
        self._joining: dict[Topic, int] = {}  # topic -> the turn that asked for it
        self._selecting: int | None = None
        self._is_asked = False

    @property
    def broker(self) -> Address | None:
        return self._around.parent

    def link_up(self, broker: Address) -> None:
        self._around.add(broker, "parent")
        if self._topics or self._is_asked:
            self._ask()

    def link_lost(self, broker: Address) -> None:
        self._around.remove(broker)
        self.ports.link_lost(broker)

    # -- from above

    def subscribe(self, topics: tuple[Topic, ...]) -> None:
        new = [topic for topic in topics if topic not in self._topics]
        for topic in new:
            name = self._topic_name(topic)
            self._topics[topic], self._names[name] = name, topic
            if is_pattern(name):
                self._patterns[name] = topic
        self._joining |= dict.fromkeys(new, self._turn + 1)
        if new:
            self._ask()

    def unsubscribe(self, topics: tuple[Topic, ...]) -> None:
        gone = [topic for topic in topics if topic in self._topics]
        for topic in gone:
            name = self._topics.pop(topic)
            del self._names[name]
            self._patterns.pop(name, None)
            self._joining.pop(topic, None)
        if gone:
            self._ask()

    def select(self, where: Filter) -> None:
        """One turn with the new filter: less than leaving and joining, and nothing of both is missed in between."""
        self._before = [*self._before, self._where][-3:]
        self._where = where
        self._selecting = self._turn + 1
        self._ask()
        if not self._topics:
            self._selected()

    def _ask(self) -> None:
        self._is_asked = True
        self._turn += 1
        if self._around.parent is not None:
            mine = self.ports.since is not None or bool(self._topics)
            tally = Tally(subscribers=1) if mine else Tally()
            self._out.send(
                self._around.parent, Attach(self._me, self._turn, self._wanted(), tally, self._accepts_direct)
            )

    def _wanted(self) -> Filter:
        """No more than a broker takes: above that everything is asked for, and chosen here."""
        wanted = about(*self._topics.values()) & self._where
        too_much = sum(box.weight for box in wanted.boxes) > self._config.filter_weight_max
        return EVERY_EVENT if too_much else wanted

    # -- from the broker

    def on_attached(self, m: Attached) -> None:
        if self.ports.since is None and self._topics:
            self.ports.since = self._out.now
        for topic in [topic for topic, turn in self._joining.items() if turn <= m.turn]:
            del self._joining[topic]
            self._out.add(Deliver(Joined(topic)))
        if self._selecting is not None and self._selecting <= m.turn:
            self._selected()

    def _selected(self) -> None:
        self._selecting, self._before = None, []
        self._out.add(Deliver(Selected()))

    def denied(self, reason: str) -> None:
        self._out.add(Deliver(Refused(0, reason)))

    # -- from its ports

    def on_item(self, item: StreamItem) -> None:
        event = item.event
        if event is None:
            return
        topic = self._names.get(event.topic)
        if topic is None:
            topic = next((t for pattern, t in self._patterns.items() if covers(pattern, event.topic)), None)
        if topic is None:
            return
        if not (self._where.is_everything or self._matches(flat(event))):
            return
        self._out.add(Deliver(Heard(topic, event)))

    def _matches(self, attributes: dict[str, object]) -> bool:
        return self._where.matches(attributes) or any(where.matches(attributes) for where in self._before)

    def on_gap(self, port: StreamPort, gap: StreamGap) -> None:
        names = dict.fromkeys([*port.heard, *gap.publishers])
        reason = f"items {gap.first} to {gap.last} of {port.stream} are kept no more"
        self._tell(port, tuple((name, port.heard.get(name, 0)) for name in names), reason)

    def on_gone(self, port: StreamPort, left: bool) -> None:
        if not left:
            self._tell(port, tuple(port.heard.items()), f"publisher {port.stream} has gone")

    def _tell(self, port: StreamPort, publishers: tuple[tuple[str, int], ...], reason: str) -> None:
        """Of whom nothing was ever heard it is the stream that is named: publishers' names begin with it."""
        if self._topics:
            self._out.add(Deliver(CutOff(publishers or ((str(port.stream), 0),), reason)))
