"""The sequencer node: the topic managers of one site, on a rooted tree of nodes, as one machine.

Its rooms: `numbering` gives numbers and timestamps, `registering` keeps the subscriptions, `site` is what they share,
its place in the tree. Here every input finds its room, and topics are born and move. A home moves along one link at
a time, in line with the requests, and takes along all that is known of it (`topic`).
"""

from typing import Any, assert_never

import msgspec

from unisono.machine import PERSIST, Deliver, Effect, Fired, Refuse, Restarted, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Forget, Host, Inherited, Lapse, Migrate, NodeInput, Reborn
from unisono.protocols.sequencer.messages import (
    SENDERS,
    AllRecalled,
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
    Recalled,
    Renew,
    Renewed,
    Routed,
    Topics,
    Turn,
    Unfinished,
    Update,
    Withdraw,
    Yours,
)
from unisono.protocols.sequencer.numbering import Numbering
from unisono.protocols.sequencer.registering import Registering
from unisono.protocols.sequencer.site import Site
from unisono.protocols.sequencer.topic import HostedTopic
from unisono.structures.sessions import LinkFree, LinkFull, PeerReborn

NUMBERS = 22
"""An incarnation is a time in seconds. With so many bits of numbers in each, a topic that has had fewer than four
million events a second since its birth goes on at numbers that it has never issued, whatever its home has forgotten."""
UNTIL_RECALLED = (Creates, Turn, Fill, Part, Collect, Install, Update, Prove, Routed)
"""What waits while a node that has forgotten does not know how far the topics below it are."""


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
        self._first = 0  # numbers begin behind this; later incarnations never issue what earlier ones did
        self._recalling: dict[Address, None] = {}  # children that have not told us yet what we have forgotten
        self._fills: list[Fill] = []  # what climbed meanwhile

    def handle(self, message: NodeInput, now: Micros) -> list[Effect]:
        out: list[Effect] = []
        if self._recalling and isinstance(message, UNTIL_RECALLED):
            return self._wait_for_children(message)
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
            case Reborn(incarnation=incarnation):
                self._begin_again(incarnation, now, out)
            case PeerReborn(peer=peer):
                self._tell_reborn(peer, now, out)
            case Recalled():
                self._recall(message, out)
            case AllRecalled(child=child):
                self._recalled(child, now, out)
            case Yours():
                pass  # the driver's desk knows whether it is at home here
            case Unfinished():
                self._give_up_open(now, out)
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
        self.clock[topic] = self._first
        self.hosted[topic].floor = self._first + 1
        self.hosted[topic].high_water = self._first
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

    # A node that has forgotten, here or next to us.

    def _begin_again(self, incarnation: int, now: Micros, out: list[Effect]) -> None:
        """We have forgotten: numbers go on where no earlier life of ours can have been, nobody subscribes any more, and
        until every child has said how far its topics are nothing is ordered against them."""
        out.append(PERSIST)
        self._first = incarnation << NUMBERS
        self._recalling, self._fills = dict.fromkeys(self._site.children), []
        self._numbering.blocked = False
        for topic, home in self.hosted.items():
            number = self.clock[topic] = max(self.clock[topic] + 1, self._first)
            home.begin_again(number, self.config.sgmin)
            self._site.decisions.forget(topic)
            self._numbering.mark(topic, now, out)  # whoever still listens asks, and hears that it is forgotten
        self._site.decisions.split_anew()
        # A neighbour may have forgotten too, and not know it of us.
        for child in self._site.children:
            self._tell_below(child, out)
        if self._site.parent is not None:
            self._tell_above(self._site.parent, out)

    def _tell_reborn(self, peer: Address, now: Micros, out: list[Effect]) -> None:
        """A neighbour has forgotten: it is told what is below, and what was climbing through it is given up."""
        out.append(PERSIST)
        if peer != self._site.parent:
            self._tell_below(peer, out)
            return
        self._tell_above(peer, out)
        self._give_up_open(now, out)

    def _tell_below(self, child: Address, out: list[Effect]) -> None:
        out += [Send(child, Yours(topic)) for topic, where in self.below.items() if where == child]

    def _tell_above(self, parent: Address, out: list[Effect]) -> None:
        out += [Send(parent, Recalled(topic, self.me, number)) for topic, number in self.clock.items()]
        out.append(Send(parent, AllRecalled(self.me)))

    def _give_up_open(self, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        for topic, home in self.hosted.items():
            if home.open:
                home.give_up_open(self.clock[topic])
                self._numbering.tell_waiters(home, out)
                self._numbering.mark(topic, now, out)
        out += [Send(child, Unfinished()) for child in self._site.children]

    def _recall(self, message: Recalled, out: list[Effect]) -> None:
        if message.topic not in self.clock:
            self._learn(message.topic, message.child, out)
        out.append(PERSIST)
        self._site.saw(message.topic, message.number)

    def _recalled(self, child: Address, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        self._recalling.pop(child, None)
        if not self._recalling:
            fills, self._fills = self._fills, []
            for fill in fills:
                self._numbering.pass_fill(fill, now, out)

    def _wait_for_children(self, message: NodeInput) -> list[Effect]:
        """What a child has numbered waits here; clients ask again."""
        if isinstance(message, Fill):
            self._fills.append(message)
            return [PERSIST]
        missing = ", ".join(self._recalling)
        return [Refuse(f"{self.me} has forgotten, and waits for what its children know: {missing}")]

    # Durability.

    def snapshot(self) -> Any:
        return {
            "first": self._first,
            "recalling": list(self._recalling),
            "fills": [msgspec.to_builtins(fill) for fill in self._fills],
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
        self._first, self._recalling = snapshot["first"], dict.fromkeys(snapshot["recalling"])
        self._fills = msgspec.convert(snapshot["fills"], list[Fill])
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
