"""The names of the topics of a node, around a machine that knows numbers only.

`TopicNames` wraps the machine that orders at a node and is a durable machine itself. It gives a new topic its number
(unique in the deployment: a count and the node's slot), has it announced through the tree, and answers those who asked
for it. Other nodes publish stamps of the topic too, so its name travels ahead of it: before the first message about a
topic goes over a link, `TopicNamed` does.

A name belongs to one topic, wherever it is asked for: a node that does not know it claims it first, and the claim goes
up the tree to the node that does, at the latest to the root, which knows all names and keeps what it has promised. So a
topic stays where it was created when nodes are added and another one is drawn for its name. Nothing here looks at the
deployment, which may have changed when the log is replayed: the slot in a number tells where the topic was created.
"""

from typing import Any, NamedTuple

from unisono.errors import MisuseError
from unisono.machine import PERSIST, Deliver, DurableMachine, Effect, Send
from unisono.model.homes import SLOTS, slot
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name
from unisono.model.time import Micros
from unisono.protocols.naming.messages import (
    Claim,
    Claimed,
    OpenTopics,
    TopicNamed,
    TopicsBorn,
    TopicsNotOpened,
    TopicsOpened,
)
from unisono.structures.hosting import Announced, AtHome, HostTopic
from unisono.structures.sessions import PeerReborn, Reborn

RESERVED = "_unisono"
WAITING_MAX = 10_000
"""Questions waiting for a topic to be announced; further ones are asked again."""
WAITING_OF_CLIENT_MAX = 1_000
"""Of one client."""

BIRTHS = 12
"""An incarnation is a time in seconds; so many bits of births in each, and no two topics ever have one number."""

_OURS = frozenset((OpenTopics, TopicNamed, Claim, Claimed, Reborn, PeerReborn))


class TopicMessages(NamedTuple):
    """Which messages of the machine inside concern names; each has a `topic`, but those of `forgotten`."""

    about: frozenset[type]
    """Between nodes, about a topic that the other end may not know: its name goes before."""
    moves: frozenset[type] = frozenset()
    """A topic leaves with them, and with them it comes to a new home."""
    forgotten: frozenset[type] = frozenset()
    """Some node above has lost data: what was claimed may have been lost, too."""


class _Question(NamedTuple):
    """Of a client, for topics."""

    names: tuple[str, ...]
    rest: list[str]
    """Those before the first, from the end, that is not known to be settled."""


class TopicNames:
    """A topic manager that knows the names of its topics."""

    def __init__(self, me: Address, inside: DurableMachine, parent: Address | None, messages: TopicMessages) -> None:
        """Where no message moves a topic, a name that its birthplace has forgotten is created there anew."""
        self.inside, self._messages = inside, messages
        self._heard = _OURS | messages.moves | messages.forgotten
        self.names: dict[Topic, str] = {}
        """Of every topic at home here or below."""
        self.mine: dict[str, Topic] = {}
        """Topics created here, in that order."""
        self.visiting: dict[str, Topic] = {}
        """Topics that were created elsewhere and are at home here now."""
        self._away: dict[Topic, None] = {}  # those that were at home here once
        self._numbers: dict[str, Topic] = {}  # of `names`, the other way round
        self._births = 0
        self._announced: dict[Topic, None] = {}
        self._slots: dict[str, int] = {}
        """Where names are or may be created, by slot: those we know, were told of, or, as the root, have promised."""
        self._claimed: dict[str, None] = {}  # by us, and not yet answered
        self._waiting: dict[Address, dict[int, _Question]] = {}  # forgotten by a restart: clients ask again
        self._until: dict[str, list[tuple[Address, int]]] = {}  # which of them go on when this name is settled
        self._me, self._parent, self._slot = me, parent, slot(me)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if type(message) not in self._heard:
            return self._pass_on(self.inside.handle(message, now))
        match message:
            case OpenTopics():
                return self._open(message, now)
            case TopicNamed(topic=topic, name=name):
                self.names[topic], self._numbers[name] = name, topic
                self._slots[name] = topic % SLOTS
                return [PERSIST]
            case Claim():
                return self._claim(message)
            case Claimed():
                return self._settle(message, now)
            case _ if type(message) in self._messages.moves:
                name = self.names[message.topic]
                self._away.pop(message.topic, None)
                if name not in self.mine:
                    self.visiting[name] = message.topic
                return self._pass_on(self.inside.handle(message, now))
            case _:
                return self._begin_anew(message, now)

    def _begin_anew(self, message: Any, now: Micros) -> list[Effect]:
        """Somebody has forgotten: a claim that was on its way may be lost."""
        if isinstance(message, Reborn):
            self._births = max(self._births, message.incarnation << BIRTHS)
        effects = self._pass_on(self.inside.handle(message, now))
        if self._parent is not None and not (isinstance(message, PeerReborn) and message.peer != self._parent):
            effects += [Send(self._parent, Claim(name, self._slot, (self._me,))) for name in self._claimed]
        return effects

    def number_of(self, name: str) -> Topic | None:
        """Of a topic at home here or below."""
        return self._numbers.get(name)

    @property
    def at_home(self) -> list[str]:
        """Names of the topics that are at home here now; those that have only just been asked for are among them."""
        here = {**self.mine, **self.visiting}
        return [name for name, topic in here.items() if topic not in self._away]

    def is_known(self, name: str) -> bool:
        """Whether it need not be created here any more."""
        return name in self.mine or name in self._slots

    def is_announced(self, name: str) -> bool:
        return self.mine.get(name) in self._announced

    def _open(self, message: OpenTopics, now: Micros) -> list[Effect]:
        try:
            for name in message.names:
                self._check(name)
        except MisuseError as error:
            return [Send(message.client, TopicsNotOpened(message.request, str(error)))]
        if message.through:
            known = tuple((name, self._numbers[name]) for name in message.names if name in self._numbers)
            return [Send(message.client, TopicsOpened(message.request, known))]
        effects: list[Effect] = []
        for name in message.names:
            if name in self.mine or name in self._claimed:
                continue
            if self._parent is not None and name not in self._slots:
                if len(self._claimed) < WAITING_MAX:
                    self._claimed[name] = None
                    effects += [PERSIST, Send(self._parent, Claim(name, self._slot, (self._me,)))]
            elif self._slots.setdefault(name, self._slot) == self._slot:
                self._bear(name, now, effects)
        waiting = self._waiting.setdefault(message.client, {})
        asked_before = message.request in waiting and waiting[message.request].names == message.names
        if not asked_before and len(waiting) < WAITING_OF_CLIENT_MAX and len(self._waiting) <= WAITING_MAX:
            waiting[message.request] = _Question(message.names, list(message.names))
            self._answer(message.client, message.request, effects)
        return effects

    def _bear(self, name: str, now: Micros, effects: list[Effect]) -> None:
        self._births += 1
        topic = Topic(self._births * SLOTS + self._slot)
        self.mine[name] = topic
        self.names[topic], self._numbers[name] = name, topic
        effects.append(PERSIST)
        effects += self._pass_on(self.inside.handle(HostTopic(topic), now))

    def _claim(self, message: Claim) -> list[Effect]:
        """Answered by whoever knows; the root gives the name to whom it hears first."""
        name, path = message.name, message.path
        if name not in self._slots and self._parent is not None:
            return [PERSIST, Send(self._parent, Claim(name, message.slot, (*path, self._me)))]
        held = self._slots.setdefault(name, message.slot)
        topic = self._numbers.get(name, Topic(0))
        return [PERSIST, Send(path[-1], Claimed(name, held, path[:-1], topic))] if path else [PERSIST]

    def _settle(self, message: Claimed, now: Micros) -> list[Effect]:
        name, path = message.name, message.path
        if path:
            return [PERSIST, Send(path[-1], Claimed(name, message.slot, path[:-1], message.topic))]
        effects: list[Effect] = [PERSIST]
        self._claimed.pop(name, None)
        self._slots[name] = message.slot
        if message.slot == self._slot and name not in self.mine:
            if message.topic and self._messages.moves:
                # It was created here, which we have forgotten, and is at home elsewhere.
                topic = self.mine[name] = Topic(message.topic)
                self.names[topic], self._numbers[name] = name, topic
                self._away[topic] = self._announced[topic] = None
            else:
                self._bear(name, now, effects)
        self._go_on(name, effects)
        return effects

    def _check(self, name: str) -> None:
        check_topic_name(name)
        if name.split(".")[0] == RESERVED:
            raise MisuseError(f"topic {name!r}: names starting with {RESERVED!r} are reserved")

    def _answer(self, client: Address, request: int, effects: list[Effect]) -> None:
        """Unless something of what was asked is not settled yet."""
        waiting = self._waiting[client]
        names, rest = waiting[request]
        while rest and self._is_settled(rest[-1]):
            rest.pop()
        if rest:
            self._until.setdefault(rest[-1], []).append((client, request))
            return
        del waiting[request]
        if not waiting:
            del self._waiting[client]
        known = self.visiting | self.mine
        here = tuple((name, known[name]) for name in names if name in known)
        elsewhere = tuple((name, self._slots[name]) for name in names if name not in known)
        effects.append(Send(client, TopicsOpened(request, here, elsewhere)))

    def _go_on(self, name: str, effects: list[Effect]) -> None:
        """This name may be settled now."""
        for client, request in self._until.pop(name, ()):
            if request in self._waiting.get(client, {}):
                self._answer(client, request, effects)

    def _is_settled(self, name: str) -> bool:
        return self.mine[name] in self._announced if name in self.mine else name in self._slots

    def _pass_on(self, inner: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        for effect in inner:
            if type(effect) is Send and type(message := effect.message) in self._messages.about:
                effects += [Send(effect.to, TopicNamed(message.topic, self.names[message.topic])), effect]
                if type(message) in self._messages.moves:
                    self.visiting.pop(self.names[message.topic], None)
                    self._away[message.topic] = None
            elif type(effect) is Deliver and isinstance(effect.item, Announced):
                topic = effect.item.topic
                self._announced[topic] = None
                effects += [PERSIST, Deliver(TopicsBorn((self.names[topic],)))]
                self._go_on(self.names[topic], effects)
            elif type(effect) is Deliver and isinstance(effect.item, AtHome):
                self._settle_homes(effect.item.topics)
            else:
                effects.append(effect)
        return effects

    def _settle_homes(self, topics: tuple[Topic, ...]) -> None:
        """After data was lost: these are at home here, and no others, whatever we believed."""
        self.visiting = {}
        self._away.update(dict.fromkeys(self.mine.values()))
        for topic in topics:
            name = self.names[topic]
            self._away.pop(topic, None)
            if topic % SLOTS == self._slot:
                self.mine[name] = topic
                self._announced[topic] = None
            else:
                self.visiting[name] = topic

    def snapshot(self) -> Any:
        return {
            "inside": self.inside.snapshot(),
            "names": dict(self.names),
            "mine": dict(self.mine),
            "visiting": dict(self.visiting),
            "away": list(self._away),
            "births": self._births,
            "announced": list(self._announced),
            "slots": dict(self._slots),
            "claimed": list(self._claimed),
        }

    def restore(self, snapshot: Any) -> None:
        self.inside.restore(snapshot["inside"])
        self.names = dict(snapshot["names"])
        self.mine, self.visiting = dict(snapshot["mine"]), dict(snapshot["visiting"])
        self._away = dict.fromkeys(snapshot["away"])
        self._numbers = {name: topic for topic, name in self.names.items()}
        self._births = snapshot["births"]
        self._announced = dict.fromkeys(snapshot["announced"])
        self._slots = dict(snapshot["slots"])
        self._claimed = dict.fromkeys(snapshot["claimed"])
