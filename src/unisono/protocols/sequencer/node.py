"""The sequencer node: the topic managers of one site, on a rooted tree of nodes.

The pair of topics (T, X) is ordered where the paths of their homes to the root meet. A request of T starts at the
home of T and climbs parent by parent until the whole group of T lies in the subtree; every node fills in the topics
it knows. `clock` is all a node needs for that: the last number issued for the topics it hosts, and for the topics
hosted below it the highest number of their own messages that passed here. The first node on a climb that has X in its
clock is the meeting point; nobody computes one.

Messages of all children are handled in arrival order and forwarded to the parent in handling order, none is held
back. Links are sessions (`structures.sessions`), so downward and sideways messages find the home of a topic hop by
hop, also while the topic moves. What a client says about numbers is not believed: a number enters `bar` and `hist`
only when it has passed the meeting point of the two topics; until that is proven the registration is parked, which
nobody can tell from a slow link.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_never

from unisono.errors import InvariantError
from unisono.machine import (
    PERSIST,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Refuse,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.entries import Decisions
from unisono.protocols.sequencer.inputs import Forget, Host, Migrate, NodeInput, Registration
from unisono.protocols.sequencer.messages import (
    Announced,
    Ask,
    Born,
    ClientMessage,
    Collect,
    Collected,
    Completed,
    Creates,
    Denied,
    Disproved,
    Done,
    Entries,
    Fate,
    Fill,
    Granted,
    Install,
    Installed,
    Mark,
    Move,
    Moved,
    Numbers,
    Part,
    PeerMessage,
    Piece,
    Pieces,
    Prove,
    Proven,
    Published,
    Routed,
    Run,
    Stamps,
    Taken,
    Told,
    Topics,
    Turn,
    Update,
    Updated,
    Void,
    Wanted,
    sender,
)
from unisono.protocols.sequencer.topic import Accepted, HostedTopic, as_runs, total
from unisono.structures.sessions import LinkFree, LinkFull

if TYPE_CHECKING:
    from unisono.protocols.sequencer.bulk import BulkDecisions

BULK_TOPICS_MIN = 8
"""From so many topics in a turn on the kernel is worth the way into it."""


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
        self.hosted: dict[Topic, HostedTopic] = {t: HostedTopic(t, config.sgmin) for t in hosted}
        self.below: dict[Topic, Address] = dict(below)
        self.clock: dict[Topic, int] = dict.fromkeys([*hosted, *below], 0)
        """Last number issued of a hosted topic; of a topic below, the highest whose own message passed here."""
        self._parent, self._children = parent, children
        self._full = config.encoding == "full"
        self._decisions: Decisions | BulkDecisions = Decisions(self._full, root=parent is None)
        self._bulk: BulkDecisions | None = None  # the same, when the kernel is used
        self.is_quick = False
        self._repeat, self._stamping = config.unreliable, config.mode == "stamp"
        self._early = config.early and self._stamping
        self._marking: dict[Topic, tuple[int, Micros]] = {}  # marks told since the last change, when the next is due
        self._timers: dict[str, Micros] = {}  # running ones
        self._blocked = False  # the link to the parent is full

    def handle(self, message: NodeInput, now: Micros) -> list[Effect]:
        out: list[Effect] = []
        match message:
            case Creates():
                self._create((message,), now, out)
            case Turn(creates=creates):
                self._create(creates, now, out)
            case Fill():
                self._pass_fill(message, now, out)
            case Done(topic=topic, run=run):
                if self._here(topic, message, now, out):
                    out.append(PERSIST)
                    self._complete(self.hosted[topic], run, now, out)
            case Part():
                self._pass_part(message, out)
            case Collect(topic=topic) | Install(topic=topic) | Update(topic=topic):
                if self._home(topic, message, out):
                    self._register(message, now, out)
            case Ask(topic=topic):
                if self._home(topic, message, out):
                    self._tell(self.hosted[topic], message, out)
            case Published(topic=topic, publisher=publisher, ack=ack):
                if self._home(topic, message, out):
                    out.append(PERSIST)
                    self._published(self.hosted[topic], publisher, ack, now, out)
            case Prove():
                self._prove(message, now, out)
            case Proven(asker=asker, topic=topic, number=number):
                if self._here(asker, message, now, out):
                    home = self.hosted[asker]
                    home.proven[topic] = max(home.proven.get(topic, 0), number)
                    self._unpark(home, now, out)
            case Disproved(asker=asker):
                if self._here(asker, message, now, out):
                    self._deny(self.hosted[asker], message, out)
            case Routed(topic=topic, message=inner):
                if self._here(topic, message, now, out):
                    out.append(Send(sender(inner), Moved(topic, self.me)))
                    out += self.handle(inner, now)
            case Move():
                self._move_in(message, now, out)
            case Migrate():
                self._move_out(message, out)
            case Born(topic=topic, child=child):
                self._learn(topic, child, out)
            case Announced(topic=topic):
                if self._here(topic, message, now, out):
                    out.append(Deliver(message))
            case Host(topic=topic):
                self._host(topic, out)
            case Forget(client=client):
                out.append(PERSIST)
                for home in self.hosted.values():
                    home.forget(client)
            case LinkFull(peer=peer):
                self._blocked = self._blocked or peer == self._parent
                out.append(PERSIST)
            case LinkFree(peer=peer):
                self._blocked = self._blocked and peer != self._parent
                out.append(PERSIST)
            case Fired(key=key):
                self._fired(key, now, out)
            case Restarted():
                self._timers.clear()
                if self._marking:
                    self._set("marks", min(due for _, due in self._marking.values()), out)
                if any(home.leases for home in self.hosted.values()):
                    self._set("leases", Micros(now + self.config.lease_us), out)
            case _:
                assert_never(message)
        return out

    # Numbers.

    def _create(self, messages: tuple[Creates, ...], now: Micros, out: list[Effect]) -> None:
        """Numbers what is new. Requests handled together are concurrent, so those on one topic get theirs in a row."""
        out.append(PERSIST)
        hosted, window = self.hosted, self.config.window
        answers: list[Effect] = []
        elsewhere: list[tuple[Creates, Wanted]] = []
        wanted: dict[Topic, list[Accepted]] = {}
        stamps: list[Effect] = []
        for message in messages:
            publisher, wait = message.publisher, message.wait and self._stamping  # a ticket is granted when complete
            taken: dict[Topic, int] = {}
            for item in message.items if message.in_line else as_runs(message.items):
                if wanted and message.in_line:
                    stamps += self._issue(wanted, now, out)
                    wanted = {}
                topic = item.topic
                home = hosted.get(topic)
                if home is None:
                    elsewhere.append((message, item))
                    continue
                # Request 0 is never new: it asks how far we are with this publisher.
                if item.first < 0 or not 0 < item.count <= window:
                    out.append(Refuse(f"{publisher} asks for {item.count} numbers at once"))
                    continue
                if self._blocked and any(x not in self.clock for x in home.group.members):
                    continue  # not taken: the publisher asks again
                first, count = home.accept(publisher, item, window)
                if not count:
                    self._answer_again(home, publisher, item, taken, answers)
                else:
                    taken[topic] = first + count - 1
                    if topic in wanted:
                        wanted[topic].append((publisher, first, count, wait))
                    else:
                        wanted[topic] = [(publisher, first, count, wait)]
                if not self._stamping:
                    self._published(home, publisher, item.ack, now, out)
            if taken and self._stamping:
                answers.append(Send(publisher, Taken(taken)))
        stamps += self._issue(wanted, now, out)
        out += answers
        out += stamps
        for message, item in elsewhere:
            self._forward(item.topic, Creates(message.publisher, (item,), message.wait, message.in_line), out)

    def _issue(self, wanted: dict[Topic, list[Accepted]], now: Micros, out: list[Effect]) -> list[Effect]:
        """Gives numbers and timestamps; returns what is to be broadcast."""
        stamps: list[Effect] = []
        clock, early, keep = self.clock, self._early, self.config.issued_max
        bulk = self._fill_all(wanted)
        for topic, accepted in wanted.items():
            home, first = self.hosted[topic], clock[topic] + 1
            number = clock[topic] = clock[topic] + total(accepted)
            full: Topics = ()
            bars: Entries = {}
            if bulk is not None:
                topics, numbers, todo = next(bulk)
            else:
                self._decisions.note(topic, number)
                if home.fresh or home.bar or self._repeat:
                    topics, numbers, todo, full, bars = self._fill_specially(home)
                else:
                    topics, numbers, todo = self._decisions.fill(clock, topic, home.group.listed(), (), {})
            runs: list[Run] = []
            for publisher, request, count, wait in accepted:
                run = Run(first, count, publisher, request, topics, numbers)
                runs.append(run)
                home.record(run, keep)
                first += count
                if wait:
                    home.waiters.append((first - 1, publisher, request + count - 1))
                if not self._full:
                    topics = numbers = ()  # nothing has changed since
            if early:
                stamps.append(Broadcast(topic, Pieces(topic, tuple([Piece(run, (), todo) for run in runs])), True))
            elif self._stamping and not todo:
                stamps.append(Broadcast(topic, Stamps(topic, tuple(runs)), True))
            if todo:
                self._send_up(home, runs, todo, full, bars, out)
            elif self._stamping and not home.open:  # the usual way: nothing had or has to climb
                home.high_water = number
                self._tell_waiters(home, out)
                self._mark(topic, now, out)
            else:
                for run in runs:
                    self._complete(home, run, now, out)
        return stamps

    def _fill_specially(self, home: HostedTopic) -> tuple[Topics, Numbers, Topics, Topics, Entries]:
        """Somebody has joined or left: some entries must be explicit, and some numbers must be among them."""
        full, left, bars = home.take_special(self._repeat)
        topics, numbers, todo = self._decisions.fill(self.clock, home.topic, home.group.listed(), full, bars)
        return (*topics, *left), (*numbers, *left.values()), todo, full, bars

    def _send_up(
        self, home: HostedTopic, runs: list[Run], todo: Topics, full: Topics, bars: Entries, out: list[Effect]
    ) -> None:
        full = tuple(x for x in full if x not in self.clock)
        bars = {x: number for x, number in bars.items() if x not in self.clock}
        for run in runs:
            home.open[run.first] = run.count
            out.append(Send(self._above(), Fill(home.topic, run, todo, full, bars)))
            full, bars = (), {}

    def _fill_all(self, wanted: dict[Topic, list[Accepted]]) -> Iterator[tuple[Topics, Numbers, Topics]] | None:
        """The entries of all topics at once, where that pays; None: they are filled one by one."""
        if self._bulk is None or self._repeat or len(wanted) < BULK_TOPICS_MIN:
            return None
        homes = [self.hosted[topic] for topic in wanted]
        if any(home.fresh or home.bar for home in homes):
            return None
        todos, counts = [home.group.listed() for home in homes], [total(some) for some in wanted.values()]
        return iter(self._bulk.fill_all(self.clock, list(wanted), todos, counts))

    def quicken(self) -> bool:
        """Large turns are stamped by the kernel from now on; False: it is not ready. Full stamps would gain nothing."""
        from unisono.protocols.sequencer.bulk import BulkDecisions
        from unisono.protocols.sequencer.changes import KERNEL, Changes

        kernel = KERNEL.ready()
        if self._bulk is None and kernel is not None and not self._full:
            self._bulk = BulkDecisions(self._parent is None, Changes(kernel))
            self._bulk.restore(self._decisions.snapshot())
            self._decisions = self._bulk
            self.is_quick = True
        return self.is_quick or self._full

    def _pass_fill(self, fill: Fill, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        topic, run = fill.topic, fill.run
        self._seen(topic, run.last)
        topics, numbers, todo = self._decisions.fill(self.clock, topic, fill.todo, fill.full, fill.bars)
        # What is decided here was left to us, so it is not among the entries decided below.
        whole = Run(run.first, run.count, run.publisher, run.request, run.topics + topics, run.numbers + numbers)
        if self._early and len(todo) < len(fill.todo):
            settled = tuple(x for x in fill.todo if x not in todo)
            piece = Piece(Run(run.first, run.count, run.publisher, run.request, topics, numbers), settled)
            out.append(Broadcast(topic, Pieces(topic, (piece,)), control=True))
        if todo:
            full = tuple(x for x in fill.full if x in todo)
            bars = {x: number for x, number in fill.bars.items() if x in todo}
            out.append(Send(self._above(), Fill(topic, whole, todo, full, bars)))
            return
        if self._stamping and not self._early:
            out.append(Broadcast(topic, Stamps(topic, (whole,)), control=True))
        if topic in self.hosted:
            self._complete(self.hosted[topic], whole, now, out)
        else:
            self._onward(topic, Done(topic, whole), now, out)

    def _seen(self, topic: Topic, number: int) -> None:
        """Rule K: only a topic's own messages raise what we know of it."""
        if topic in self.below and number > self.clock[topic]:
            self.clock[topic] = number
            self._decisions.note(topic, number)

    def _complete(self, home: HostedTopic, run: Run, now: Micros, out: list[Effect]) -> None:
        home.complete(run, self.clock[home.topic])
        self._tell_waiters(home, out)
        if self._stamping:
            self._mark(home.topic, now, out)
        else:
            home.leases[run.first] = (now, run)
            out.append(Send(run.publisher, Granted(home.topic, run)))
            self._set("leases", Micros(now + self.config.lease_us), out)

    def _tell_waiters(self, home: HostedTopic, out: list[Effect]) -> None:
        while home.waiters and home.waiters[0][0] <= home.high_water:
            _, publisher, request = home.waiters.popleft()
            home.finished[publisher] = request
            out.append(Send(publisher, Completed(home.topic, request)))

    def _published(self, home: HostedTopic, publisher: Address, ack: int, now: Micros, out: list[Effect]) -> None:
        """Ticket mode: the publisher has published everything below `ack`."""
        if home.published(publisher, ack):
            self._mark(home.topic, now, out)

    def _mark(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """Tells how far the topic is, soon and then at growing intervals: the last stamp may have been lost."""
        mark = self._marking.get(topic)
        if mark is None or mark[0]:
            due = Micros(now + self.config.mark_us)
            self._marking[topic] = (0, due)
            self._set("marks", due, out)

    def _answer_again(
        self, home: HostedTopic, publisher: Address, item: Wanted, taken: dict[Topic, int], out: list[Effect]
    ) -> None:
        """The requests are not new: the answer was lost, or they have overtaken others and have to wait."""
        last = item.first + item.count - 1
        if not self._stamping:
            for _, run in home.leases.values():
                if run.publisher == publisher and run.request <= last and run.request + run.count > item.first:
                    out.append(Send(publisher, Granted(item.topic, run)))
            return
        upto = home.requests.get(publisher, 1) - 1
        if upto >= item.first:
            taken[item.topic] = upto
        if home.finished.get(publisher, -1) >= item.first:
            out.append(Send(publisher, Completed(item.topic, home.finished[publisher])))

    def _tell(self, home: HostedTopic, ask: Ask, out: list[Effect]) -> None:
        run = home.find(ask.number) if ask.number else home.find_request(ask.publisher, ask.request)
        number = ask.number
        if run is not None and not number:
            number = run.first + ask.request - run.request
        fate: Fate = "published"
        if run is None:
            unknown = number > self.clock[home.topic] if number else home.requests.get(ask.publisher, 1) <= ask.request
            fate = "unissued" if unknown else "forgotten"
        elif run.first in home.open or run.first in home.leases:
            fate, run = "pending", None
        elif run.first in home.voids:
            fate = "void"
        out.append(Send(ask.sid, Told(home.topic, number, fate, run, home.floor)))

    # Subscriptions.

    def _register(self, message: Registration, now: Micros, out: list[Effect]) -> None:
        home = self.hosted[message.topic]
        unproven = self._unproven(home, message.left)
        if unproven:
            if len(home.parked) >= self.config.parked_max:
                out.append(Refuse(f"{len(home.parked)} registrations of topic {home.topic} wait for proofs"))
                return
            out.append(PERSIST)
            home.parked.append(message)
            for x in unproven:
                self._onward(x, Prove(x, message.left[x], home.topic), now, out)
            return
        out.append(PERSIST)
        match message:
            case Collect(sid=sid, version=version, topic=topic, new=new):
                if topic not in new:
                    home.register(sid, version, message.topics, message.left)
                part = Part(topic, self.clock[topic], sid, version, tuple(x for x in new if x != topic))
                self._climb(part, out)
            case Install(sid=sid, version=version, topic=topic, topics=topics):
                home.register(sid, version, topics, message.left)
                for x in topics:
                    if x != topic and not self._full:
                        home.fresh[x] = None  # also when this is a repeated Install: the base may be a later one
                gate = {x: number for x, number in home.hist.items() if x in topics}
                out.append(Send(sid, Installed(topic, version, self.clock[topic], gate)))
            case Update(sid=sid, version=version, topic=topic, topics=topics):
                home.register(sid, version, topics, message.left)
                out.append(Send(sid, Updated(topic, version)))

    def _pass_part(self, part: Part, out: list[Effect]) -> None:
        out.append(PERSIST)
        self._seen(part.topic, part.number)
        self._climb(part, out)

    def _climb(self, part: Part, out: list[Effect]) -> None:
        todo = tuple(x for x in part.todo if x not in self.clock)
        if todo and self._parent is not None:
            out.append(Send(self._parent, Part(part.topic, part.number, part.sid, part.version, todo)))
        else:
            out.append(Send(part.sid, Collected(part.topic, part.version)))

    # Numbers that clients name.

    def _unproven(self, home: HostedTopic, left: Entries) -> Topics:
        return tuple(
            x
            for x, number in left.items()
            if x != home.topic and number > self.clock.get(x, 0) and number > home.proven.get(x, 0)
        )

    def _prove(self, message: Prove, now: Micros, out: list[Effect]) -> None:
        """Answered at the meeting point if it has seen the number, else by the home of the topic."""
        topic, number, asker = message.topic, message.number, message.asker
        seen = self.clock.get(topic, 0)
        if number <= seen and (topic in self.hosted or asker in self.clock):
            self._onward(asker, Proven(asker, topic, seen), now, out)
        elif topic not in self.hosted and self._toward(topic) is not None:
            self._onward(topic, message, now, out)
        else:
            self._onward(asker, Disproved(asker, topic, number), now, out)

    def _unpark(self, home: HostedTopic, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        parked, home.parked = home.parked, []
        for message in parked:
            if self._unproven(home, message.left):
                home.parked.append(message)
            else:
                self._register(message, now, out)

    def _deny(self, home: HostedTopic, message: Disproved, out: list[Effect]) -> None:
        out.append(PERSIST)
        parked, home.parked = home.parked, []
        for waiting in parked:
            if waiting.left.get(message.topic, 0) < message.number:
                home.parked.append(waiting)
                continue
            reason = f"number {waiting.left[message.topic]} of topic {message.topic} was never issued"
            out.append(Refuse(f"{waiting.sid}: {reason}"))
            out.append(Send(waiting.sid, Denied(home.topic, waiting.version, reason)))

    # Ways through the tree.

    def _above(self) -> Address:
        if self._parent is None:
            raise InvariantError(f"{self.me} is the root: there is no node above to complete a timestamp")
        return self._parent

    def _toward(self, topic: Topic) -> Address | None:
        return self.below.get(topic, self._parent)

    def _onward(self, topic: Topic, message: PeerMessage, now: Micros, out: list[Effect]) -> None:
        """One hop towards the home of the topic; in line behind its Move, if it is moving."""
        if topic in self.hosted:
            out += self.handle(message, now)
            return
        to = self._toward(topic)
        out.append(Refuse(f"nobody hosts topic {topic}") if to is None else Send(to, message))

    def _here(self, topic: Topic, message: PeerMessage, now: Micros, out: list[Effect]) -> bool:
        """Whether we are the home; if not, a peer's message goes on."""
        if topic in self.hosted:
            return True
        self._onward(topic, message, now, out)
        return False

    def _home(self, topic: Topic, message: ClientMessage, out: list[Effect]) -> bool:
        """Whether we are the home; if not, a client's message goes on."""
        if topic in self.hosted:
            return True
        self._forward(topic, message, out)
        return False

    def _forward(self, topic: Topic, message: ClientMessage, out: list[Effect]) -> None:
        to = self._toward(topic)
        out.append(Refuse(f"nobody hosts topic {topic}") if to is None else Send(to, Routed(topic, message)))

    # Moving and new topics.

    def _move_out(self, message: Migrate, out: list[Effect]) -> None:
        topic, to = message.topic, message.to
        if topic not in self.hosted:
            out.append(Refuse(f"{self.me} is not the home of topic {topic}"))
            return
        if to != self._parent and to not in self._children:
            out.append(Refuse(f"{to} is no neighbour of {self.me}: topics move along one link at a time"))
            return
        out.append(PERSIST)
        home = self.hosted.pop(topic)
        number = self.clock[topic]
        self._marking.pop(topic, None)
        self._decisions.forget(topic)
        if to == self._parent:
            del self.clock[topic]
            self._decisions.split_anew()
            seen = dict(self.clock)
        else:
            self.below[topic] = to
            seen = {x: self.clock[x] for x in self.below}
        out.append(Send(to, Move(topic, {"number": number, "home": home.pack()}, seen)))

    def _move_in(self, message: Move, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        topic = message.topic
        self.below.pop(topic, None)
        self._decisions.forget(topic)
        self._decisions.split_anew()
        self.clock[topic] = message.state["number"]
        home = self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
        home.unpack(message.state["home"])
        for x, number in message.clock.items():
            self._seen(Topic(x), number)
        if home.high_water:
            self._mark(topic, now, out)
        if home.leases:
            self._set("leases", Micros(now + self.config.lease_us), out)

    def _host(self, topic: Topic, out: list[Effect]) -> None:
        if topic in self.clock:
            out.append(Refuse(f"topic {topic} exists"))
            return
        out.append(PERSIST)
        self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
        self.clock[topic] = 0
        self._decisions.split_anew()
        out.append(Deliver(Announced(topic)) if self._parent is None else Send(self._parent, Born(topic, self.me)))

    def _learn(self, topic: Topic, child: Address, out: list[Effect]) -> None:
        out.append(PERSIST)
        self.below[topic] = child
        self.clock.setdefault(topic, 0)
        self._decisions.split_anew()
        if self._parent is None:
            out.append(Send(child, Announced(topic)))
        else:
            out.append(Send(self._parent, Born(topic, self.me)))

    # Timers.

    def _set(self, key: str, at: Micros, out: list[Effect]) -> None:
        if key not in self._timers or at < self._timers[key]:
            self._timers[key] = at
            out.append(SetTimer(key, at))

    def _fired(self, key: str, now: Micros, out: list[Effect]) -> None:
        self._timers.pop(key, None)
        if key == "marks":
            out.append(PERSIST)
            for topic, (told, due) in list(self._marking.items()):
                if due > now:
                    continue
                number = self.hosted[topic].settled(self.clock[topic])
                out.append(Broadcast(topic, Mark(topic, number), control=True))
                self._marking[topic] = (told + 1, Micros(now + (self.config.mark_us << told + 1)))
                if told + 1 == self.config.mark_repeats:
                    del self._marking[topic]
            if self._marking:
                self._set("marks", min(due for _, due in self._marking.values()), out)
        elif key == "leases":
            self._end_leases(now, out)

    def _end_leases(self, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        earliest: list[Micros] = []
        for home in self.hosted.values():
            for first, (since, run) in list(home.leases.items()):
                end = Micros(since + self.config.lease_us)
                if end > now:
                    earliest.append(end)
                    continue
                del home.leases[first]
                home.voids[first] = None
                self._mark(home.topic, now, out)
                out.append(Broadcast(home.topic, Void(home.topic, run), control=True))
        if earliest:
            self._set("leases", min(earliest), out)

    # Durability.

    def snapshot(self) -> Any:
        return {
            "hosted": {topic: home.pack() for topic, home in self.hosted.items()},
            "below": dict(self.below),
            "clock": dict(self.clock),
            "given": self._decisions.snapshot(),
            "marking": {topic: list(mark) for topic, mark in self._marking.items()},
            "timers": dict(self._timers),
            "blocked": self._blocked,
        }

    def restore(self, snapshot: Any) -> None:
        self.hosted = {}
        for topic, packed in snapshot["hosted"].items():
            home = self.hosted[topic] = HostedTopic(topic, self.config.sgmin)
            home.unpack(packed)
        self.below = dict(snapshot["below"])
        self.clock = dict(snapshot["clock"])
        self._decisions.restore(snapshot["given"])
        self._marking = {topic: (told, due) for topic, (told, due) in snapshot["marking"].items()}
        self._timers = dict(snapshot["timers"])
        self._blocked = snapshot["blocked"]
