"""The front desk of a sequencer node: names of topics, on a machine that knows numbers only.

`Desk` wraps the topic manager of a node and is a durable machine itself. It gives a new topic its number (unique in the
deployment: a count and the node's slot), has it announced through the tree, and answers those who asked for it. Other
nodes publish stamps of the topic too, so its name travels ahead of it: before the first message about a topic goes
over a link, `Named` does.

A name is born once, wherever it is asked for: a node that does not know it claims it first, and the claim climbs to the
node that does, at the latest to the root, which knows all names and keeps what it has promised. So a topic stays where
it was born when nodes are added and another one is drawn for its name. Nothing here looks at the deployment, which may
have changed when the log is replayed: where a topic was born is told by the slot in its number.
"""

from typing import Any

from unisono.errors import MisuseError
from unisono.machine import PERSIST, Deliver, DurableMachine, Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name
from unisono.model.time import Micros
from unisono.protocols.sequencer.inputs import Host, Reborn
from unisono.protocols.sequencer.messages import Announced, Born, Move, Recalled, Unfinished, Yours
from unisono.runtime.edge import Claim, Claimed, Named, NotOpened, Open, Opened, TopicsBorn
from unisono.runtime.homes import SLOTS, slot
from unisono.structures.sessions import PeerReborn

RESERVED = "_unisono"
WAITING_MAX = 10_000
"""Questions waiting for a topic to be announced; further ones are asked again."""
WAITING_OF_CLIENT_MAX = 1_000
"""Of one client."""

BIRTHS = 12
"""An incarnation is a time in seconds; so many bits of births in each, and no two topics ever have one number."""

_FOR_THE_DESK = frozenset((Open, Named, Claim, Claimed, Reborn, PeerReborn, Unfinished, Yours))


class Desk:
    """A topic manager that knows the names of its topics."""

    def __init__(self, me: Address, inside: DurableMachine, parent: Address | None) -> None:
        self.inside = inside
        self.names: dict[Topic, str] = {}
        """Of every topic at home here or below."""
        self.mine: dict[str, Topic] = {}
        """Topics born here, in the order of birth."""
        self._births = 0
        self._announced: dict[Topic, None] = {}
        self._slots: dict[str, int] = {}
        """Where names are or may be born, by slot: those we know, were told of, or, as the root, have promised."""
        self._claimed: dict[str, None] = {}  # by us, and not yet answered
        self._waiting: dict[Address, dict[int, tuple[str, ...]]] = {}  # forgotten by a restart: clients ask again
        self._me, self._parent, self._slot = me, parent, slot(me)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if type(message) not in _FOR_THE_DESK:
            return self._pass_on(self.inside.handle(message, now))
        match message:
            case Open():
                return self._open(message, now)
            case Named(topic=topic, name=name):
                self.names[topic] = name
                self._slots[name] = topic % SLOTS
                return [PERSIST]
            case Claim():
                return self._claim(message)
            case Claimed():
                return self._settle(message, now)
            case Yours(topic=topic):
                return self._take_back(topic, now)
            case _:
                return self._begin_anew(message, now)

    def _begin_anew(self, message: Reborn | PeerReborn | Unfinished, now: Micros) -> list[Effect]:
        """Somebody has forgotten: a claim that was on its way may be lost."""
        if isinstance(message, Reborn):
            self._births = max(self._births, message.incarnation << BIRTHS)
        effects = self._pass_on(self.inside.handle(message, now))
        if self._parent is not None and not (isinstance(message, PeerReborn) and message.peer != self._parent):
            effects += [Send(self._parent, Claim(name, self._slot, (self._me,))) for name in self._claimed]
        return effects

    def _take_back(self, topic: Topic, now: Micros) -> list[Effect]:
        """A topic that we have forgotten was born here: its number is still its own."""
        name = self.names[topic]
        if topic % SLOTS != self._slot or name in self.mine:
            return [PERSIST]
        self.mine[name] = topic
        return [PERSIST, *self._pass_on(self.inside.handle(Host(topic), now))]

    def is_known(self, name: str) -> bool:
        """Whether it need not be born here any more."""
        return name in self.mine or name in self._slots

    def is_announced(self, name: str) -> bool:
        return self.mine.get(name) in self._announced

    def _open(self, message: Open, now: Micros) -> list[Effect]:
        try:
            for name in message.names:
                self._check(name)
        except MisuseError as error:
            return [Send(message.client, NotOpened(message.request, str(error)))]
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
        if len(waiting) < WAITING_OF_CLIENT_MAX and len(self._waiting) <= WAITING_MAX:
            waiting[message.request] = message.names
        self._answer(effects)
        return effects

    def _bear(self, name: str, now: Micros, effects: list[Effect]) -> None:
        self._births += 1
        topic = Topic(self._births * SLOTS + self._slot)
        self.mine[name] = topic
        self.names[topic] = name
        effects.append(PERSIST)
        effects += self._pass_on(self.inside.handle(Host(topic), now))

    def _claim(self, message: Claim) -> list[Effect]:
        """Answered by whoever knows; the root gives the name to whom it hears first."""
        name, path = message.name, message.path
        if name not in self._slots and self._parent is not None:
            return [PERSIST, Send(self._parent, Claim(name, message.slot, (*path, self._me)))]
        held = self._slots.setdefault(name, message.slot)
        return [PERSIST, Send(path[-1], Claimed(name, held, path[:-1]))] if path else [PERSIST]

    def _settle(self, message: Claimed, now: Micros) -> list[Effect]:
        name, path = message.name, message.path
        if path:
            return [PERSIST, Send(path[-1], Claimed(name, message.slot, path[:-1]))]
        effects: list[Effect] = [PERSIST]
        self._claimed.pop(name, None)
        self._slots[name] = message.slot
        if message.slot == self._slot and name not in self.mine:
            self._bear(name, now, effects)
        self._answer(effects)
        return effects

    def _check(self, name: str) -> None:
        check_topic_name(name)
        if name.split(".")[0] == RESERVED:
            raise MisuseError(f"topic {name!r}: names starting with {RESERVED!r} are reserved")

    def _answer(self, effects: list[Effect]) -> None:
        for client, waiting in list(self._waiting.items()):
            for request, names in list(waiting.items()):
                if all(map(self._is_settled, names)):
                    del waiting[request]
                    here = tuple((name, self.mine[name]) for name in names if name in self.mine)
                    elsewhere = tuple((name, self._slots[name]) for name in names if name not in self.mine)
                    effects.append(Send(client, Opened(request, here, elsewhere)))
            if not waiting:
                del self._waiting[client]

    def _is_settled(self, name: str) -> bool:
        return self.mine[name] in self._announced if name in self.mine else name in self._slots

    def _pass_on(self, inner: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        for effect in inner:
            if type(effect) is Send and isinstance(message := effect.message, Born | Move | Recalled | Yours):
                effects += [Send(effect.to, Named(message.topic, self.names[message.topic])), effect]
            elif type(effect) is Deliver and isinstance(effect.item, Announced):
                topic = effect.item.topic
                self._announced[topic] = None
                effects += [PERSIST, Deliver(TopicsBorn((self.names[topic],)))]
                self._answer(effects)
            else:
                effects.append(effect)
        return effects

    def snapshot(self) -> Any:
        return {
            "inside": self.inside.snapshot(),
            "names": dict(self.names),
            "mine": dict(self.mine),
            "births": self._births,
            "announced": list(self._announced),
            "slots": dict(self._slots),
            "claimed": list(self._claimed),
        }

    def restore(self, snapshot: Any) -> None:
        self.inside.restore(snapshot["inside"])
        self.names = dict(snapshot["names"])
        self.mine = dict(snapshot["mine"])
        self._births = snapshot["births"]
        self._announced = dict.fromkeys(snapshot["announced"])
        self._slots = dict(snapshot["slots"])
        self._claimed = dict.fromkeys(snapshot["claimed"])
