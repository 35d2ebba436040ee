"""The sequencer node: the topic managers of one site, on a rooted tree of nodes, as one machine.

Its rooms: `numbering` gives numbers and timestamps, `registering` keeps the subscriptions, `site` is what they share,
its place in the tree. Here every input finds its room, and topics are born and move. A home moves along one link at
a time, in line with the requests, and takes along all that is known of it (`topic`).
"""

from typing import Any, assert_never

from unisono.machine import PERSIST, Deliver, Effect, Fired, Refuse, Restarted, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Forget, Host, Inherited, Lapse, Migrate, NodeInput
from unisono.protocols.sequencer.messages import (
    SENDERS,
    Announced,
    Ask,
    Born,
    Collect,
    Creates,
    Disproved,
    Done,
    Fill,
    Install,
    Move,
    Moved,
    Part,
    Prove,
    Proven,
    Renew,
    Renewed,
    Routed,
    Topics,
    Turn,
    Update,
    Withdraw,
)
from unisono.protocols.sequencer.numbering import Numbering
from unisono.protocols.sequencer.registering import Registering
from unisono.protocols.sequencer.site import Site
from unisono.protocols.sequencer.topic import HostedTopic
from unisono.structures.sessions import LinkFree, LinkFull


class TopicManager:
    """The topic managers of one node, as one machine."""

    def __init__(
        self,
        me: Address,
        parent: Address | None,
        children: tuple[Address, ...],
        hosted: Topics,
        below: dict[Topic, Address],
        config: SequencerConfig = SequencerConfig(),
    ) -> None:
        """`below` names for every topic hosted strictly below this node the child it is behind."""
        self.me, self.config = me, config
        self._site = Site(me, parent, children, hosted, below, config)
        self.hosted, self.below, self.clock = self._site.hosted, self._site.below, self._site.clock
        self._numbering, self._registering = Numbering(self._site), Registering(self._site)

    def handle(self, message: NodeInput, now: Micros) -> list[Effect]:
        out: list[Effect] = []
        site, numbering, registering = self._site, self._numbering, self._registering
        match message:
            case Creates():
                numbering.create((message,), now, out)
            case Turn(creates=creates):
                numbering.create(creates, now, out)
            case Fill():
                numbering.pass_fill(message, now, out)
            case Done(topic=topic, run=run):
                if site.is_here(topic, message, out):
                    out.append(PERSIST)
                    numbering.complete(self.hosted[topic], run, now, out)
            case Part():
                registering.pass_part(message, out)
            case Collect(topic=topic) | Install(topic=topic) | Update(topic=topic):
                if site.is_home(topic, message, out):
                    registering.register(message, out)
            case Ask(topic=topic):
                if site.is_home(topic, message, out):
                    numbering.tell(self.hosted[topic], message, out)
            case Renew(sid=sid, topic=topic, sent=sent):
                if site.is_home(topic, message, out):
                    out.append(Send(sid, Renewed(topic, sent, self.hosted[topic].group.has(sid))))
            case Withdraw(topic=topic):
                if site.is_home(topic, message, out):
                    numbering.withdraw(self.hosted[topic], message, out)
            case Prove():
                registering.prove(message, out)
            case Proven(asker=asker):
                if site.is_here(asker, message, out):
                    registering.proven(message, out)
            case Disproved(asker=asker):
                if site.is_here(asker, message, out):
                    registering.disproved(message, out)
            case Routed(topic=topic, message=inner):
                if site.is_here(topic, message, out):
                    out.append(Send(SENDERS[type(inner)](inner), Moved(topic, self.me)))
                    out += self.handle(inner, now)
            case Move():
                self._move_in(message, now, out)
            case Migrate():
                self._move_out(message, out)
            case Born(topic=topic, child=child):
                self._learn(topic, child, out)
            case Announced(topic=topic):
                if site.is_here(topic, message, out):
                    out.append(Deliver(message))
            case Host(topic=topic):
                self._host(topic, out)
            case Forget(client=client):
                out.append(PERSIST)
                self._forget(client)
                site.gone[client] = None
                if len(site.gone) > self.config.gone_max:
                    del site.gone[next(iter(site.gone))]
            case Lapse(client=client):
                out.append(PERSIST)
                self._forget(client)
            case LinkFull(peer=peer):
                numbering.blocked = numbering.blocked or peer == site.parent
                out.append(PERSIST)
            case LinkFree(peer=peer):
                numbering.blocked = numbering.blocked and peer != site.parent
                out.append(PERSIST)
            case Fired(key=key):
                site.timers.pop(key, None)
                if key == "marks":
                    numbering.tell_marks(now, out)
            case Restarted():
                site.timers.clear()
                numbering.restarted(now, out)
            case _:
                assert_never(message)
        return out

    def quicken(self) -> bool:
        """Large turns are stamped by the kernel from now on; False: it is not ready."""
        return self._numbering.quicken()

    @property
    def is_quick(self) -> bool:
        return self._numbering.is_quick

    def clients(self) -> list[Address]:
        """Everybody who is remembered here."""
        return list(dict.fromkeys(client for home in self.hosted.values() for client in home.clients()))

    def _forget(self, client: Address) -> None:
        for home in self.hosted.values():
            home.forget(client)

    # Moving and new topics.

    def _move_out(self, message: Migrate, out: list[Effect]) -> None:
        topic, to = message.topic, message.to
        if topic not in self.hosted:
            out.append(Refuse(f"{self.me} is not the home of topic {topic}"))
            return
        if to != self._site.parent and to not in self._site.children:
            out.append(Refuse(f"{to} is no neighbour of {self.me}: topics move along one link at a time"))
            return
        out.append(PERSIST)
        home = self.hosted.pop(topic)
        number = self.clock[topic]
        self._numbering.marking.pop(topic, None)
        self._site.decisions.forget(topic)
        if to == self._site.parent:
            del self.clock[topic]
            self._site.decisions.split_anew()
            seen = dict(self.clock)
        else:
            self.below[topic] = to
            seen = {x: self.clock[x] for x in self.below}
        out.append(Send(to, Move(topic, {"number": number, "home": home.pack()}, seen)))

    def _move_in(self, message: Move, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        topic = message.topic
        self.below.pop(topic, None)
        self._site.decisions.forget(topic)
        self._site.decisions.split_anew()
        self.clock[topic] = message.state["number"]
        home = self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
        home.unpack(message.state["home"])
        for client in home.clients():
            if client in self._site.gone:
                home.forget(client)
        for x, number in message.clock.items():
            self._site.saw(Topic(x), number)
        if home.high_water:
            self._numbering.mark(topic, now, out)
        out.append(Deliver(Inherited(tuple(home.clients()))))

    def _host(self, topic: Topic, out: list[Effect]) -> None:
        if topic in self.clock:
            out.append(Refuse(f"topic {topic} exists"))
            return
        out.append(PERSIST)
        self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
        self.clock[topic] = 0
        self._site.decisions.split_anew()
        out.append(
            Deliver(Announced(topic)) if self._site.parent is None else Send(self._site.parent, Born(topic, self.me))
        )

    def _learn(self, topic: Topic, child: Address, out: list[Effect]) -> None:
        out.append(PERSIST)
        self.below[topic] = child
        self.clock.setdefault(topic, 0)
        self._site.decisions.split_anew()
        if self._site.parent is None:
            out.append(Send(child, Announced(topic)))
        else:
            out.append(Send(self._site.parent, Born(topic, self.me)))

    # Durability.

    def snapshot(self) -> Any:
        return {
            "hosted": {topic: home.pack() for topic, home in self.hosted.items()},
            "below": dict(self.below),
            "clock": dict(self.clock),
            "given": self._site.decisions.snapshot(),
            "marking": {topic: list(mark) for topic, mark in self._numbering.marking.items()},
            "timers": dict(self._site.timers),
            "blocked": self._numbering.blocked,
            "gone": list(self._site.gone),
        }

    def restore(self, snapshot: Any) -> None:
        self.hosted.clear()
        for topic, packed in snapshot["hosted"].items():
            home = self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
            home.unpack(packed)
        for known, stored in ((self.below, snapshot["below"]), (self.clock, snapshot["clock"])):
            known.clear()
            known.update(stored)
        self._site.decisions.restore(snapshot["given"])
        self._numbering.marking = {topic: (told, due) for topic, (told, due) in snapshot["marking"].items()}
        self._site.timers = dict(snapshot["timers"])
        self._numbering.blocked = snapshot["blocked"]
        self._site.gone = dict.fromkeys(snapshot["gone"])
