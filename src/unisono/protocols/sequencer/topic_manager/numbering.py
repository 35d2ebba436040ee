"""Numbers and timestamps: requests are numbered at the home of their topic, and climb until their group is filled in.

The pair of topics (T, X) is ordered where the paths of their homes to the root meet. A request of T starts at the
home of T and climbs parent by parent until the whole group of T lies in the subtree; every node fills in the topics
it knows. Its clock is all a node needs for that: the last number issued for the topics it hosts, and for the topics
hosted below it the highest number of their own messages that passed here. The first node on a climb that has X in its
clock is the meeting point; nobody computes one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unisono.machine import PERSIST, Broadcast, Effect, Refuse, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import (
    Ask,
    Completed,
    Creates,
    Done,
    Entries,
    Fate,
    Fill,
    Mark,
    Numbers,
    Piece,
    Pieces,
    Run,
    Stamps,
    Taken,
    Told,
    Topics,
    Void,
    Wanted,
    Withdraw,
    Withdrawn,
)
from unisono.protocols.sequencer.topic_manager.circles import Place
from unisono.protocols.sequencer.topic_manager.site import Site
from unisono.protocols.sequencer.topic_manager.topic import Accepted, HostedTopic, as_runs, total

if TYPE_CHECKING:
    from unisono.protocols.sequencer.topic_manager.bulk import BulkDecisions

BULK_TOPICS_MIN = 8
"""From so many topics in a turn on the kernel is worth the way into it."""

NOTHING: tuple[Topics, Numbers, Topics] = ((), (), ())
"""No entries, and nothing that another node has to decide."""


class Numbering:
    """The numbers of the topics at one node, and the timestamps that pass it."""

    def __init__(self, site: Site) -> None:
        self._site, self._config = site, site.config
        self._hosted, self._clock = site.hosted, site.clock
        self._bulk: BulkDecisions | None = None  # the decisions of the site, when the kernel is used
        self._early = self._config.early
        self.marking: dict[Topic, tuple[int, Micros]] = {}  # marks told since the last change, when the next is due
        self.followed: dict[Topic, None] = {}  # topics without marks: a later event of their group names their last
        self.shared_subscriptions_min = site.config.shared_subscriptions_min
        self.blocked = False  # the link to the parent is full

    def create(self, messages: tuple[Creates, ...], now: Micros, out: list[Effect], is_direct: bool = True) -> None:
        """Numbers what is new. Requests handled together are concurrent, so those on one topic get theirs in a row.
        What has come by way of another node is not direct."""
        out.append(PERSIST)
        hosted, requests_max = self._hosted, self._config.requests_max
        answers: list[Effect] = []
        elsewhere: list[tuple[Creates, Wanted]] = []
        wanted: dict[Topic, list[Accepted]] = {}
        stamps: list[Effect] = []
        for message in messages:
            publisher, items, wait, in_line = message.publisher, message.items, message.wait, message.in_line
            if publisher in self._site.gone:  # its requests count anew: what was numbered would be numbered again
                out.append(Refuse(f"{publisher} has said goodbye"))
                continue
            taken: dict[Topic, int] = {}
            for item in items if in_line or len(items) == 1 else as_runs(items):
                if in_line and wanted:
                    stamps += self._issue(wanted, now, out)
                    wanted = {}
                topic = item.topic
                home = hosted.get(topic)
                if home is None:
                    elsewhere.append((message, item))
                    continue
                if home.aware is not None and not home.may_ask(publisher, is_direct, item.since):
                    if is_direct:
                        answers.append(Send(publisher, home.moved_to(self._site.me)))
                    out.append(Refuse(f"the home of topic {topic} has forgotten, and {publisher} may not know"))
                    continue
                # Request 0 is never new: it asks how far we are with this publisher.
                if item.first < 0 or not 0 < item.count <= requests_max:
                    out.append(Refuse(f"{publisher} asks for {item.count} numbers at once"))
                    continue
                if self.blocked and any(x not in self._clock for x in home.group.listed()):
                    continue  # not taken: the publisher asks again
                first, count = home.accept(publisher, item, requests_max)
                if not count:
                    self._answer_again(home, publisher, item, taken, answers)
                else:
                    taken[topic] = first + count - 1
                    if topic in wanted:
                        wanted[topic].append((publisher, first, count, wait))
                    else:
                        wanted[topic] = [(publisher, first, count, wait)]
            if taken:
                answers.append(Send(publisher, Taken(taken)))
        stamps += self._issue(wanted, now, out)
        out += answers
        out += stamps
        for message, item in elsewhere:
            self._site.forward(item.topic, Creates(message.publisher, (item,), message.wait, message.in_line), out)

    def _issue(self, wanted: dict[Topic, list[Accepted]], now: Micros, out: list[Effect]) -> list[Effect]:
        """Gives numbers and timestamps; returns what is to be broadcast."""
        stamps: list[Effect] = []
        clock, early, keep, circles = self._clock, self._early, self._config.issued_max, self._site.circles
        whole = self._site.is_full
        bulk = self._fill_all(wanted)
        for topic, accepted in wanted.items():
            home, first = self._hosted[topic], clock[topic] + 1
            number = clock[topic] = clock[topic] + total(accepted)
            full: Topics = ()
            bars: Entries = {}
            place = circles.follow(home, number)
            topics, numbers, todo = next(bulk) if bulk is not None else NOTHING
            if bulk is None:
                self._site.decisions.note(topic, number)
                if home.is_special:
                    topics, numbers, todo, full, bars = self._fill_specially(home)
                    place = None
                elif place is None:
                    topics, numbers, todo = self._site.decisions.fill(clock, topic, home.group.listed(), (), {})
            short = False
            if place is not None:
                topics, numbers, todo = self._follow(topic, place)
                short = bool(topics)
            runs: list[Run] = []
            for publisher, request, count, wait in accepted:
                run = Run(first, count, publisher, request, topics, numbers, short)
                runs.append(run)
                home.record(run, keep)
                if short and place is not None:
                    home.places[first], short = place, False
                first += count
                if wait:
                    home.waiters.append((first - 1, publisher, request + count - 1))
                if not whole:
                    topics = numbers = ()  # nothing has changed since
            if early:
                stamps.append(Broadcast(topic, Pieces(topic, tuple([Piece(run, (), todo) for run in runs])), True))
            elif not todo:
                stamps.append(Broadcast(topic, Stamps(topic, tuple(runs)), True))
            if todo:
                self._send_up(home, runs, todo, full, bars, out)
            elif not home.open:  # the usual way: nothing had or has to climb
                home.high_water = number
                if home.waiters:
                    self.tell_waiters(home, out)
                self.mark(topic, now, out)
            else:
                for run in runs:
                    self.complete(home, run, now, out)
        return stamps

    def _follow(self, topic: Topic, place: Place) -> tuple[Topics, Numbers, Topics]:
        """The event before it in its circle is all that has to be named: nothing, if that is the topic's own."""
        circle, index = place
        before, number = circle.links[index - 1]
        if before == topic:
            return NOTHING
        if self.marking.pop(before, None):
            self.followed[before] = None
        return (before,), (number,), ()

    def _fill_specially(self, home: HostedTopic) -> tuple[Topics, Numbers, Topics, Topics, Entries]:
        """Somebody has joined or left: some entries must be explicit, and some numbers must be among them."""
        full, left, bars = home.take_special()
        topics, numbers, todo = self._site.decisions.fill(self._clock, home.topic, home.group.listed(), full, bars)
        return (*topics, *left), (*numbers, *left.values()), todo, full, bars

    def _send_up(
        self, home: HostedTopic, runs: list[Run], todo: Topics, full: Topics, bars: Entries, out: list[Effect]
    ) -> None:
        full = tuple(x for x in full if x not in self._clock)
        bars = {x: number for x, number in bars.items() if x not in self._clock}
        for run in runs:
            home.open[run.first] = run.count
            out.append(Send(self._site.above(), Fill(home.topic, run, todo, full, bars)))
            full, bars = (), {}

    def _fill_all(self, wanted: dict[Topic, list[Accepted]]) -> Iterator[tuple[Topics, Numbers, Topics]] | None:
        """The entries of all topics at once, where that pays; None: they are filled one by one."""
        if self._bulk is None or len(wanted) < BULK_TOPICS_MIN or self._site.circles.are_used:
            return None
        todos, counts = [], []
        for topic, accepted in wanted.items():
            home = self._hosted[topic]
            if home.is_special:
                return None
            todos.append(home.group.listed())
            counts.append(total(accepted))
        return self._bulk.fill_all(self._clock, wanted, todos, counts)

    def use_compiled_kernel(self) -> bool:
        """Large turns are stamped by the kernel from now on; False: it is not ready. Full stamps would gain nothing."""
        from unisono.protocols.sequencer.topic_manager.bulk import BulkDecisions
        from unisono.protocols.sequencer.topic_manager.changes import KERNEL, Changes

        kernel = KERNEL.ready()
        if self._bulk is None and kernel is not None and not self._site.is_full:
            self._bulk = BulkDecisions(self._site.parent is None, Changes(kernel))
            self._bulk.restore(self._site.decisions.snapshot())
            self._site.decisions = self._bulk
        return self._bulk is not None or self._site.is_full

    @property
    def is_quick(self) -> bool:
        return self._bulk is not None

    def pass_fill(self, fill: Fill, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        topic, run = fill.topic, fill.run
        self._site.saw(topic, run.last)
        topics, numbers, todo = self._site.decisions.fill(self._clock, topic, fill.todo, fill.full, fill.bars)
        # What is decided here was left to us, so it is not among the entries decided below.
        whole = Run(run.first, run.count, run.publisher, run.request, run.topics + topics, run.numbers + numbers)
        if self._early and len(todo) < len(fill.todo):
            settled = tuple(x for x in fill.todo if x not in todo)
            piece = Piece(Run(run.first, run.count, run.publisher, run.request, topics, numbers), settled)
            out.append(Broadcast(topic, Pieces(topic, (piece,)), control=True))
        if todo:
            full = tuple(x for x in fill.full if x in todo)
            bars = {x: number for x, number in fill.bars.items() if x in todo}
            out.append(Send(self._site.above(), Fill(topic, whole, todo, full, bars)))
            return
        if not self._early:
            out.append(Broadcast(topic, Stamps(topic, (whole,)), control=True))
        if topic in self._hosted:
            self.complete(self._hosted[topic], whole, now, out)
        else:
            self._site.onward(topic, Done(topic, whole), out)

    # What follows a number: completion, marks, answers, voids.

    def complete(self, home: HostedTopic, run: Run, now: Micros, out: list[Effect]) -> None:
        home.complete(run, self._clock[home.topic])
        self.tell_waiters(home, out)
        self.mark(home.topic, now, out)
        if home.voids:
            out += [self._void(home, run, first, count) for first, count in home.voids_of(run)]

    def tell_waiters(self, home: HostedTopic, out: list[Effect]) -> None:
        while home.waiters and home.waiters[0][0] <= home.high_water:
            _, publisher, request = home.waiters.popleft()
            home.finished[publisher] = request
            out.append(Send(publisher, Completed(home.topic, request)))

    def withdraw(self, home: HostedTopic, message: Withdraw, out: list[Effect]) -> None:
        """Tells subscribers not to wait for these payloads; of an incomplete timestamp when it is complete, because a
        void without its entries would let others pass that have to wait for them."""
        publisher, first, count = message.publisher, message.first, message.count
        if first < 1 or not 0 < count <= self._config.requests_max:
            out.append(Refuse(f"{publisher} withdraws {count} requests from {first} on"))
            return
        if first + count > home.requests.get(publisher, 1):
            return
        out.append(PERSIST)
        for run, number, length in home.void(publisher, first, count):
            if run.first not in home.open:
                out.append(self._void(home, run, number, length))
        out.append(Send(publisher, Withdrawn(home.topic, first, count)))

    def _void(self, home: HostedTopic, run: Run, first: int, count: int) -> Effect:
        return Broadcast(home.topic, Void(home.topic, home.whole(run), first, count), control=True)

    def mark(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """Tells how far the topic is when it is quiet, and then at growing intervals: the last stamp may have got lost.
        Until then the next stamp says it."""
        due = Micros(now + self._config.mark_us)
        self.marking[topic] = (0, due)
        self.followed.pop(topic, None)
        self._site.set_timer("marks", due, out)

    def mark_again(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        """Somebody has left others, and may not hear those events any more that name the last of these."""
        for topic in topics:
            if topic in self.followed:
                self.mark(topic, now, out)

    def _answer_again(
        self, home: HostedTopic, publisher: Address, item: Wanted, taken: dict[Topic, int], out: list[Effect]
    ) -> None:
        """The requests are not new: the answer was lost, or they have overtaken others and have to wait."""
        upto = home.requests.get(publisher, 1) - 1
        if upto >= item.first:
            taken[item.topic] = upto
        if home.finished.get(publisher, -1) >= item.first:
            out.append(Send(publisher, Completed(item.topic, home.finished[publisher])))

    def tell(self, home: HostedTopic, ask: Ask, out: list[Effect]) -> None:
        run = home.find(ask.number) if ask.number else home.find_request(ask.publisher, ask.request)
        number = ask.number
        if run is not None and not number:
            number = run.first + ask.request - run.request
        fate: Fate = "published"
        if run is None:
            unknown = number > self._clock[home.topic] if number else home.requests.get(ask.publisher, 1) <= ask.request
            fate = "unissued" if unknown else "forgotten"
        elif run.first in home.open:
            fate, run = "pending", None
        elif number in home.voids:
            fate = "void"
        whole = home.whole(run) if run is not None else None
        out.append(Send(ask.sid, Told(home.topic, number, fate, whole, home.floor, home.high_water)))

    def tell_marks(self, now: Micros, out: list[Effect]) -> None:
        out.append(PERSIST)
        for topic, (told, due) in list(self.marking.items()):
            if due > now:
                continue
            out.append(Broadcast(topic, Mark(topic, self._hosted[topic].high_water), control=True))
            self.marking[topic] = (told + 1, Micros(now + (self._config.mark_us << told + 1)))
            if told + 1 == self._config.mark_repeats:
                del self.marking[topic]
        if self.marking:
            self._site.set_timer("marks", min(due for _, due in self.marking.values()), out)

    def restarted(self, now: Micros, out: list[Effect]) -> None:
        if self.marking:
            self._site.set_timer("marks", min(due for _, due in self.marking.values()), out)
