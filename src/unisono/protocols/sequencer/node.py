"""The sequencer node: the topic managers of one site, on a rooted tree of nodes, as one machine.

Its rooms: `numbering` gives numbers and timestamps, `registering` keeps the subscriptions, `site` is what they share,
its place in the tree. Here every input finds its room, and topics are created and move. A home moves along one link at
a time, in line with the requests, and takes along all that is known of it (`topic`).
"""

from typing import Any, assert_never

import msgspec

from unisono.machine import PERSIST, Deliver, Effect, Fired, Refuse, Restarted, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Inherited, Migrate, NodeInput, Registration
from unisono.protocols.sequencer.messages import (
    SENDERS,
    AllRecalled,
    AllYours,
    Ask,
    Born,
    Collect,
    Creates,
    Disproved,
    Done,
    Fill,
    Install,
    Move,
    NotYours,
    Part,
    Prove,
    Proven,
    Recalled,
    Relocate,
    Renew,
    Renewed,
    Routed,
    Run,
    Topics,
    Turn,
    Unfinished,
    Update,
    Withdraw,
    Yours,
)
from unisono.protocols.sequencer.topic_manager.groups import Lists
from unisono.protocols.sequencer.topic_manager.numbering import Numbering
from unisono.protocols.sequencer.topic_manager.registering import Registering
from unisono.protocols.sequencer.topic_manager.settling import Held, Settling
from unisono.protocols.sequencer.topic_manager.site import Site
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic
from unisono.structures.hosting import Announced, Forget, HostTopic, Lapse
from unisono.structures.sessions import LinkFree, LinkFull, PeerReborn, Reborn

NUMBERS = 22
"""An incarnation is a time in seconds. With so many bits of numbers in each, a topic that has had fewer than four
million events a second since its birth goes on at numbers that it has never issued, whatever its home has forgotten."""
UNTIL_SETTLED = (Creates, Turn, Part, Collect, Install, Update, Renew, Ask, Withdraw, Prove, Routed, Migrate)
"""What a node that has forgotten refuses as long as it does not know which topics are its own and how far they are."""


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
        self._settling = Settling(self._site, self._numbering, self._learn)

    def handle(self, message: NodeInput, now: Micros) -> list[Effect]:
        waits = self._why_not_yet(message)
        if waits is not None:
            return waits
        out: list[Effect] = []
        match message:
            case Creates():
                self._numbering.create((message,), now, out)
            case Turn(creates=creates):
                self._numbering.create(creates, now, out)
            case Fill():
                self._numbering.pass_fill(message, now, out)
            case Done(topic=topic, run=run):
                if self._site.is_here(topic, message, out):
                    out.append(PERSIST)
                    self._numbering.complete(self.hosted[topic], run, now, out)
            case Routed():
                self._handle_routed(message, now, out)
            case Ask() | Withdraw():
                self._handle_question(message, out)
            case Part() | Collect() | Install() | Update() | Renew() | Prove() | Proven() | Disproved():
                self._handle_registration(message, now, out)
            case HostTopic() | Born() | Announced() | Migrate() | Relocate() | Move():
                self._handle_home(message, now, out)
            case Forget() | Lapse():
                self._handle_farewell(message, out)
            case (
                Reborn() | PeerReborn() | Recalled() | AllRecalled() | Yours() | NotYours() | AllYours() | Unfinished()
            ):
                self._handle_loss(message, now, out)
            case LinkFull() | LinkFree() | Fired() | Restarted():
                self._handle_driver(message, now, out)
            case _:
                assert_never(message)
        return out

    def _why_not_yet(self, message: NodeInput) -> list[Effect] | None:
        """A node that has forgotten refuses or holds back what it could not answer truly; None: it is handled."""
        settling = self._settling
        if settling.is_open:
            if isinstance(message, UNTIL_SETTLED):
                return [Refuse(f"{self.me} has forgotten, and waits for what {settling.missing}")]
            if isinstance(message, Held):
                settling.held.append(message)
                return [PERSIST]
        if settling.rests and isinstance(message.message if isinstance(message, Routed) else message, Creates | Turn):
            return [Refuse(f"{self.me} has forgotten, and waits for those who listen to come back")]
        return None

    def _handle_routed(self, message: Routed, now: Micros, out: list[Effect]) -> None:
        """A client's message that came through the tree: the client is told where the home is."""
        site, numbering = self._site, self._numbering
        match message:
            case Routed(message=(Collect() | Install() | Update() | Renew()) as inner):
                onward: list[Effect] = []
                here = site.divide(inner, onward)
                out += [Send(inner.sid, self.hosted[topic].moved_to(self.me)) for topic in here]
                if here:
                    out += self.handle(msgspec.structs.replace(inner, here=here), now)
                out += onward
            case Routed(topic=topic, message=inner):
                if site.is_here(topic, message, out):
                    out.append(Send(SENDERS[type(inner)](inner), self.hosted[topic].moved_to(self.me)))
                    if type(inner) is Creates:
                        numbering.create((inner,), now, out, is_direct=False)
                    else:
                        out += self.handle(inner, now)

    def _handle_question(self, message: Ask | Withdraw, out: list[Effect]) -> None:
        """About numbers that were given."""
        if self._site.is_home(message.topic, message, out):
            home = self.hosted[message.topic]
            if isinstance(message, Ask):
                self._numbering.tell(home, message, out)
            else:
                self._numbering.withdraw(home, message, out)

    def _handle_registration(
        self,
        message: Part | Collect | Install | Update | Renew | Prove | Proven | Disproved,
        now: Micros,
        out: list[Effect],
    ) -> None:
        """Who listens to what, and from which numbers on."""
        site, registering = self._site, self._registering
        match message:
            case Part():
                registering.pass_part(message, out)
            case Collect() | Install() | Update():
                self._register(message, now, out)
            case Renew():
                self._renew(message, out)
            case Prove():
                registering.prove(message, out)
            case Proven(asker=asker):
                if site.is_here(asker, message, out):
                    registering.proven(message, out)
            case Disproved(asker=asker):
                if site.is_here(asker, message, out):
                    registering.disproved(message, out)
            case _:
                assert_never(message)

    def _handle_home(
        self, message: HostTopic | Born | Announced | Migrate | Relocate | Move, now: Micros, out: list[Effect]
    ) -> None:
        """Topics come into being, and change their home."""
        site = self._site
        match message:
            case HostTopic(topic=topic):
                self._host(topic, out)
            case Born(topic=topic, child=child):
                self._learn(topic, child, out)
            case Announced(topic=topic):
                if site.is_here(topic, message, out):
                    out.append(Deliver(message))
            case Migrate(topic=topic, to=to):
                self._move_out(topic, (to,), out)
            case Relocate(topic=topic, path=path):
                if site.is_here(topic, message, out):
                    self._move_out(topic, path, out)
            case Move():
                self._move_in(message, now, out)
            case _:
                assert_never(message)

    def _handle_farewell(self, message: Forget | Lapse, out: list[Effect]) -> None:
        """A client has gone for good, or has been away for too long."""
        site = self._site
        match message:
            case Forget(client=client):
                out.append(PERSIST)
                self._forget(client)
                site.gone[client] = None
                if len(site.gone) > self.config.gone_max:
                    del site.gone[next(iter(site.gone))]
            case Lapse(client=client):
                out.append(PERSIST)
                self._forget(client)
            case _:
                assert_never(message)

    def _handle_loss(
        self,
        message: Reborn | PeerReborn | Recalled | AllRecalled | Yours | NotYours | AllYours | Unfinished,
        now: Micros,
        out: list[Effect],
    ) -> None:
        """This node or a neighbour has lost data, and they tell each other what they knew."""
        match message:
            case Reborn(incarnation=incarnation):
                self._begin_again(incarnation, now, out)
            case PeerReborn(peer=peer):
                self._tell_reborn(peer, now, out)
            case Recalled() | AllRecalled() | Yours() | NotYours() | AllYours():
                self._hear_of_homes(message, now, out)
            case Unfinished():
                self._give_up_open(now, out)
            case _:
                assert_never(message)

    def _handle_driver(self, message: LinkFull | LinkFree | Fired | Restarted, now: Micros, out: list[Effect]) -> None:
        """Links that are full or free again, timers, and a start from the log."""
        site, numbering, settling = self._site, self._numbering, self._settling
        match message:
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
                elif key == "rest":
                    settling.rests = False
                    out.append(PERSIST)
            case Restarted():
                site.timers.clear()
                numbering.restarted(now, out)
                if settling.rests:
                    settling.rest(now, out)
            case _:
                assert_never(message)

    def use_compiled_kernel(self) -> bool:
        """Large turns are stamped by the kernel from now on; False: it is not ready."""
        return self._numbering.use_compiled_kernel()

    @property
    def tells_in_short(self) -> bool:
        return self._site.circles.are_used

    @property
    def is_quick(self) -> bool:
        return self._numbering.is_quick

    def whole(self, topic: Topic, run: Run) -> Run:
        """What its timestamp stands for, if it was told in short; its home knows."""
        return self.hosted[topic].whole(run)

    def clients(self) -> list[Address]:
        """Everybody who is remembered here."""
        return list(dict.fromkeys(client for home in self.hosted.values() for client in home.clients()))

    def _forget(self, client: Address) -> None:
        self._site.circles.begin_anew()
        for home in self.hosted.values():
            home.forget(client)

    def _register(self, message: Registration, now: Micros, out: list[Effect]) -> None:
        onward: list[Effect] = []
        here = self._site.divide(message, onward)
        if here:
            self._registering.register(msgspec.structs.replace(message, here=here), out)
            if isinstance(message, Update):
                self._numbering.mark_again(here, now, out)
        out += onward

    def _renew(self, message: Renew, out: list[Effect]) -> None:
        known: dict[bool, list[Topic]] = {}
        for topic in self._site.divide(message, out):
            known.setdefault(self.hosted[topic].group.has(message.sid), []).append(topic)
        out += [Send(message.sid, Renewed(tuple(topics), message.sent, yes)) for yes, topics in known.items()]

    # Moving and new topics.

    def _move_out(self, topic: Topic, path: tuple[Address, ...], out: list[Effect]) -> None:
        """Along the first link of the path; the rest travels with the topic."""
        if topic not in self.hosted:
            out.append(Refuse(f"{self.me} is not the home of topic {topic}"))
            return
        to = path[0] if path else self.me
        if to != self._site.parent and to not in self._site.children:
            out.append(Refuse(f"{to} is no neighbour of {self.me}: topics move along one link at a time"))
            return
        out.append(PERSIST)
        home = self.hosted.pop(topic)
        home.make_whole()
        number = self.clock[topic]
        moves = self._site.moves[topic] = self._site.moves.get(topic, 0) + 1
        self._numbering.marking.pop(topic, None)
        self._numbering.followed.pop(topic, None)
        self._site.decisions.forget(topic)
        self._site.circles.begin_anew()
        if to == self._site.parent:
            self._site.left[topic] = self.clock.pop(topic)
            self._site.split_anew()
            seen = dict(self.clock)
        else:
            self.below[topic] = to
            seen = {x: self.clock[x] for x in self.below}
        lists = Lists()
        state = {"number": number, "home": home.pack(lists), "lists": lists.all}
        out.append(Send(to, Move(topic, state, seen, path[1:], moves)))

    def _move_in(self, message: Move, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        topic = message.topic
        self.below.pop(topic, None)
        self._site.left.pop(topic, None)
        self._site.moves[topic] = message.moves
        self._site.decisions.forget(topic)
        self._site.split_anew()
        self.clock[topic] = message.state["number"]
        home = self.hosted[topic] = HostedTopic(topic, self.config.shared_subscriptions_min)
        home.unpack(message.state["home"], [tuple(topics) for topics in message.state["lists"]])
        home.begun_here = False
        for client in home.clients():
            if client in self._site.gone:
                home.forget(client)
        for x, number in message.clock.items():
            self._site.saw(Topic(x), number)
        if home.high_water:
            self._numbering.mark(topic, now, out)
        out.append(Deliver(Inherited(tuple(home.clients()), topic)))
        if message.then and not self._settling.is_open:
            self._move_out(topic, message.then, out)

    def _host(self, topic: Topic, out: list[Effect]) -> None:
        if topic in self.clock:
            out.append(Refuse(f"topic {topic} exists"))
            return
        out.append(PERSIST)
        self.hosted[topic] = HostedTopic(topic, self.config.shared_subscriptions_min)
        first = self.clock[topic] = self._settling.first
        self.hosted[topic].floor = first + 1
        self.hosted[topic].high_water = first
        self._site.split_anew()
        out.append(
            Deliver(Announced(topic)) if self._site.parent is None else Send(self._site.parent, Born(topic, self.me))
        )

    def _learn(self, topic: Topic, child: Address, out: list[Effect]) -> None:
        out.append(PERSIST)
        self.below[topic] = child
        self.clock.setdefault(topic, 0)
        self._site.split_anew()
        if self._site.parent is None:
            out.append(Send(child, Announced(topic)))
        else:
            out.append(Send(self._site.parent, Born(topic, self.me)))

    # A node that has forgotten, here or next to us.

    def _begin_again(self, incarnation: int, now: Micros, out: list[Effect]) -> None:
        """We have forgotten: numbers go on where no earlier life of ours can have been, nobody subscribes any more, and
        until our neighbours have said what they know nothing is ours, and nothing is ordered."""
        out.append(PERSIST)
        self._numbering.blocked = False
        self._settling.begin(incarnation << NUMBERS, now, out)
        self._take_up(now, out)

    def _tell_reborn(self, peer: Address, now: Micros, out: list[Effect]) -> None:
        """A neighbour has forgotten: a parent is told what is below, and what was climbing through it is given up; a
        child asks."""
        out.append(PERSIST)
        if peer != self._site.parent:
            self._settling.child_reborn(peer)
            return
        self._settling.parent_reborn(now, out)
        self._give_up_open(now, out)

    def _give_up_open(self, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        for topic, home in self.hosted.items():
            if home.open:
                home.give_up_open(self.clock[topic])
                self._numbering.tell_waiters(home, out)
                self._numbering.mark(topic, now, out)
        out += [Send(child, Unfinished()) for child in self._site.children]

    def _hear_of_homes(
        self, message: Recalled | AllRecalled | Yours | NotYours | AllYours, now: Micros, out: list[Effect]
    ) -> None:
        out.append(PERSIST)
        settling = self._settling
        match message:
            case Recalled():
                settling.recall(message)
            case AllRecalled():
                settling.all_recalled(message, now, out)
            case Yours():
                settling.yours(message)
            case NotYours():
                settling.not_yours(message, out)
            case AllYours():
                settling.all_yours(message, now, out)
        self._take_up(now, out)

    def _take_up(self, now: Micros, out: list[Effect]) -> None:
        """What neighbours have said meanwhile, once we know what is ours."""
        while self._settling.held and not self._settling.is_open:
            out += self.handle(self._settling.held.pop(0), now)

    # Durability.

    def snapshot(self) -> Any:
        lists = Lists()
        return {
            "settling": self._settling.snapshot(),
            "moves": dict(self._site.moves),
            "left": dict(self._site.left),
            "hosted": {topic: home.pack(lists) for topic, home in self.hosted.items()},
            "lists": lists.all,
            "below": dict(self.below),
            "clock": dict(self.clock),
            "given": self._site.decisions.snapshot(),
            "circles": self._site.circles.snapshot(),
            "marking": {topic: list(mark) for topic, mark in self._numbering.marking.items()},
            "followed": list(self._numbering.followed),
            "timers": dict(self._site.timers),
            "blocked": self._numbering.blocked,
            "gone": list(self._site.gone),
        }

    def restore(self, snapshot: Any) -> None:
        self._settling.restore(snapshot["settling"])
        self._site.moves, self._site.left = dict(snapshot["moves"]), dict(snapshot["left"])
        self.hosted.clear()
        lists: list[Topics] = [tuple(topics) for topics in snapshot["lists"]]
        for topic, packed in snapshot["hosted"].items():
            home = self.hosted[topic] = HostedTopic(topic, self.config.shared_subscriptions_min)
            home.unpack(packed, lists)
        for known, stored in ((self.below, snapshot["below"]), (self.clock, snapshot["clock"])):
            known.clear()
            known.update(stored)
        self._site.decisions.restore(snapshot["given"])
        self._site.circles.restore(snapshot.get("circles"))  # a snapshot of before there were any has none
        self._numbering.marking = {topic: (told, due) for topic, (told, due) in snapshot["marking"].items()}
        self._numbering.followed = dict.fromkeys(snapshot.get("followed", ()))
        self._site.timers = dict(snapshot["timers"])
        self._numbering.blocked = snapshot["blocked"]
        self._site.gone = dict.fromkeys(snapshot["gone"])
