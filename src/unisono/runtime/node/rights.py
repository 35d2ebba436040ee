"""What a client may do that has shown one of the tokens of `[[rights]]`: asked of all it says, before it is heard.

A topic is checked where its name is known: at the node where it is opened, at its home, at the archive, and at the
broker of an overlay on the way in and on the way out. The brokers of events check for themselves: the embedded one
with the same rights, NATS with the permissions that `unisono rights nats` writes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from unisono.model.ids import Address, Topic
from unisono.model.settings import Right
from unisono.protocols.naming import messages as naming
from unisono.protocols.overlay.messages import OverlayDelivery, OverlayNotTaken, Pub
from unisono.protocols.regions.messages import DirectItem, ReplayStream, StreamItem
from unisono.protocols.sequencer.messages import Ask, Collect, Creates, Install, Withdraw
from unisono.runtime.brokers.contract import CONTROL
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetch, Follow, Locate, NotFetched
from unisono.runtime.links.links import owner


class Rights:
    """Looks at what clients say."""

    def __init__(
        self,
        right_of: Callable[[Address], Right | None],
        is_trusted: Callable[[Address], bool],
        names: Callable[[], Mapping[Topic, str]],
    ) -> None:
        """`right_of` and `is_trusted` know a connected party; `names` are those of all topics that are known here."""
        self._right_of, self._is_trusted, self._names = right_of, is_trusted, names

    def greet(self, client: Address, send: Callable[[Address, Any], None]) -> None:
        """A client is told what it may do, so that it need not try."""
        right = self._right_of(client)
        if right is not None:
            send(client, control.YourRights(right.publish, right.subscribe))

    def why_not(self, message: Any) -> control.OverLimit | None:
        """The refusal, if this is more than its sender may do."""
        sid = control.claims(message)
        if sid is None:
            return None
        if isinstance(message, StreamItem | DirectItem | ReplayStream) and not self._is_trusted(owner(sid)):
            controlled = [topic for topic in _topics_of(message) if topic.startswith(CONTROL)]
            if controlled:
                return control.OverLimit("control", f"only nodes publish on {controlled[0]}", sid)
        right = self._right_of(owner(sid))
        if right is None:
            return None
        match message:
            case StreamItem() | DirectItem() | ReplayStream():
                topics = _topics_of(message)
                return _refusal(sid, "publish on", [topic for topic in topics if not right.may_publish(topic)])
            case naming.OpenTopics(names=names):
                return _refusal(sid, "see", [name for name in names if not right.may_see(name)])
            case Creates(items=items):
                return self._unless(right.may_publish, sid, "publish on", [item.topic for item in items])
            case Withdraw(topic=topic):
                return self._unless(right.may_publish, sid, "publish on", [Topic(topic)])
            case Collect(here=here) | Install(here=here):
                return self._unless(right.may_subscribe, sid, "subscribe to", [Topic(topic) for topic in here])
            case control.MoveTopic(topic=name):
                return _refusal(sid, "move", [name])
            case control.PlanHomes():
                return _refusal(sid, "move", ["every topic"])
            case Ask(topic=topic):
                return self._unless(right.may_see, sid, "see", [Topic(topic)])
            case Fetch(topics=topics) | Follow(topics=topics):
                return _refusal(sid, "subscribe to", [name for name in topics if not right.may_subscribe(name)])
            case Locate(topic=topic):
                return _refusal(sid, "subscribe to", [] if right.may_subscribe(topic) else [topic])
            case Pub(event=event):
                return _refusal(sid, "publish on", [] if right.may_publish(event.topic) else [event.topic])
            case _:
                return None

    def answer(self, message: Any, refused: control.OverLimit) -> Any:
        """How whoever asked is told, so that it asks no more."""
        match message:
            case naming.OpenTopics():
                return naming.TopicsNotOpened(message.request, refused.reason, refused.code)
            case Pub(event=event):
                return OverlayNotTaken(event.id, refused.reason, refused.code)
            case Fetch() | Follow() | Locate():
                return NotFetched(message.request, refused.reason, refused.code)
            case _:
                return refused

    def shown(self, client: Address, message: Any) -> Any:
        """The answer, with those topics only that the client may know of."""
        right = self._right_of(owner(client))
        if right is None:
            return message
        match message:
            case control.Watched(names=names) | naming.TopicsBorn(names=names):
                return structs.replace(message, names=tuple(filter(right.may_see, names)))
            case control.NodeReport(topics=topics):
                return structs.replace(message, topics=tuple(filter(right.may_see, topics)))
            case control.Surveyed(topics=seen):
                return structs.replace(
                    message, topics=tuple(each for each in seen if right.may_see(each.name)), groups=()
                )
            case _:
                return message

    def heard(self, client: Address, message: Any) -> Any:
        """What a broker of regions says, with those events only that the client may hear; None: nothing of it."""
        right = self._right_of(owner(client))
        if right is None or not isinstance(message, StreamItem | ReplayStream):
            return message
        if isinstance(message, StreamItem):
            return message if _may_hear(right, message) else None
        return structs.replace(message, items=tuple(item for item in message.items if _may_hear(right, item)))

    def may_hear(self, client: Address, message: Any) -> bool:
        """Whether a broker of an overlay may say this to it."""
        if not isinstance(message, OverlayDelivery):
            return True
        right = self._right_of(owner(client))
        return right is None or right.may_subscribe(message.event.topic)

    def _unless(
        self, allowed: Callable[[str], bool], sid: Address, what: str, topics: list[Topic]
    ) -> control.OverLimit | None:
        names = self._names()
        return _refusal(sid, what, [name for topic in topics if not allowed(name := names.get(topic, ""))])


def _topics_of(message: StreamItem | DirectItem | ReplayStream) -> list[str]:
    match message:
        case StreamItem():
            items: tuple[StreamItem, ...] = (message,)
        case DirectItem(item=item):
            items = (item,)
        case ReplayStream(items=several):
            items = several
    return [item.event.topic for item in items if item.event is not None]


def _may_hear(right: Right, item: StreamItem) -> bool:
    """Whoever may hear a topic may hear what its nodes say about it."""
    return item.event is None or right.may_subscribe(item.event.topic.removeprefix(CONTROL))


def _refusal(sid: Address, what: str, names: list[str]) -> control.OverLimit | None:
    if not names:
        return None
    return control.OverLimit("right", f"your token may not {what} {names[0] or 'a topic that is not known here'}", sid)
