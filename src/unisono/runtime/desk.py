"""The front desk of a sequencer node: names of topics, on a machine that knows numbers only.

`Desk` wraps the topic manager of a node and is a durable machine itself. It gives a new topic its number (unique in the
deployment: a count and the node's slot), has it announced through the tree, and answers those who asked for it. Other
nodes publish stamps of the topic too, so its name travels ahead of it: before the first message about a topic goes
over a link, `Named` does.
"""

from typing import Any

from unisono.errors import MisuseError
from unisono.machine import PERSIST, Deliver, DurableMachine, Effect, Send
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Announced, Born, Move
from unisono.protocols.sequencer.node import Host
from unisono.runtime.edge import Named, NotOpened, Open, Opened, TopicsBorn
from unisono.runtime.homes import home_of, slot

RESERVED = "_unisono"
TOPICS_MAX = 1_000_000
"""Topics born at one node."""
WAITING_MAX = 10_000
"""Clients waiting for a topic to be announced; further ones ask again."""


class Desk:
    """A topic manager that knows the names of its topics."""

    def __init__(self, me: Address, inside: DurableMachine, deployment: Deployment) -> None:
        self.inside = inside
        self.names: dict[Topic, str] = {}
        """Of every topic at home here or below."""
        self.mine: dict[str, Topic] = {}
        """Topics born here, in the order of birth."""
        self._announced: dict[Topic, None] = {}
        self._waiting: dict[tuple[Address, int], tuple[str, ...]] = {}  # forgotten by a restart: clients ask again
        self._me, self._deployment, self._slot = me, deployment, slot(me)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Open():
                return self._open(message, now)
            case Named(topic=topic, name=name):
                self.names[topic] = name
                return [PERSIST]
            case _:
                return self._pass_on(self.inside.handle(message, now))

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
            if name not in self.mine:
                topic = Topic((len(self.mine) + 1) << 16 | self._slot)
                self.mine[name] = topic
                self.names[topic] = name
                effects.append(PERSIST)
                effects += self._pass_on(self.inside.handle(Host(topic), now))
        if len(self._waiting) < WAITING_MAX:
            self._waiting[message.client, message.request] = message.names
            self._answer(effects)
        return effects

    def _check(self, name: str) -> None:
        check_topic_name(name)
        if name.split(".")[0] == RESERVED:
            raise MisuseError(f"topic {name!r}: names starting with {RESERVED!r} are reserved")
        home = home_of(self._deployment, name)
        if home != self._me:
            raise MisuseError(
                f"topic {name!r} is at home at {home}, not at {self._me}: are the deployment files equal?"
            )
        if len(self.mine) >= TOPICS_MAX and name not in self.mine:
            raise MisuseError(f"{TOPICS_MAX} topics have been born here")

    def _answer(self, effects: list[Effect]) -> None:
        for (client, request), names in list(self._waiting.items()):
            if all(self.mine[name] in self._announced for name in names):
                del self._waiting[client, request]
                effects.append(Send(client, Opened(request, tuple((name, self.mine[name]) for name in names))))

    def _pass_on(self, inner: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        for effect in inner:
            match effect:
                case Send(to=to, message=Born(topic=topic) | Move(topic=topic)):
                    effects += [Send(to, Named(topic, self.names[topic])), effect]
                case Deliver(item=Announced(topic=topic)):
                    self._announced[topic] = None
                    effects += [PERSIST, Deliver(TopicsBorn((self.names[topic],)))]
                    self._answer(effects)
                case _:
                    effects.append(effect)
        return effects

    def snapshot(self) -> Any:
        return {
            "inside": self.inside.snapshot(),
            "names": dict(self.names),
            "mine": dict(self.mine),
            "announced": list(self._announced),
        }

    def restore(self, snapshot: Any) -> None:
        self.inside.restore(snapshot["inside"])
        self.names = dict(snapshot["names"])
        self.mine = dict(snapshot["mine"])
        self._announced = dict.fromkeys(snapshot["announced"])
