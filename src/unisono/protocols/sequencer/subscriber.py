"""The subscriber half of the ordering module: two-phase subscription, hold-back, and a deadline on every wait.

An item is a number of a topic with its timestamp and its payload (or the knowledge that the payload will not come).
It is processed iff (1) it is the next number of its topic, (2) every entry of a topic we subscribe to has been
reached, (3) no entry belongs to a topic we are just joining, (4) the gate given at joining has been reached, and
(5) with early stamps, no topic we subscribe to or are joining is still missing from its timestamp. Processing moves
the clock of its own topic only. Skips and voids obey the same rules and notify nobody.

`seen` remembers the last number *notified* per topic over all subscription periods; what is seen of topics we left
goes with every registration (`left`), so that those who hear both sides of our leaving agree with us.
"""

from collections import deque
from typing import Any

from unisono.machine import (
    Deliver,
    Effect,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Refuse,
    Send,
    SetTimer,
    Stalled,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.feed import Feed, Item, singles
from unisono.protocols.sequencer.messages import (
    Ask,
    Collect,
    Collected,
    Denied,
    Entries,
    Install,
    Installed,
    Mark,
    Payload,
    Payloads,
    Pieces,
    Run,
    Stamps,
    Ticketed,
    Told,
    Topics,
    Update,
    Updated,
    Void,
)
from unisono.protocols.sequencer.unreliable import Patience
from unisono.structures.holdback import HoldBack

NOBODY = Address("")


class Subscriber:
    """All subscriptions of one client (one `sid`)."""

    def __init__(self, sid: Address, homes: dict[Topic, Address], config: SequencerConfig) -> None:
        self.sid = sid
        self.config = config
        self.homes = homes
        self.hold = HoldBack()
        self.feeds: dict[Topic, Feed] = {}
        """Topics subscribed to (live) and topics being joined."""
        self.seen: Entries = {}
        self._now = Micros(0)
        self.version = 0
        self.joining: Topics = ()
        self._joining_since = Micros(0)
        self._unjoined: dict[Topic, None] = {}  # the broker has not confirmed these yet
        self._requests: deque[tuple[str, Topics]] = deque()
        self._uncollected: dict[Topic, Collect] = {}
        self._uninstalled: dict[Topic, Install] = {}
        self._installed: dict[Topic, Installed] = {}
        self._updates: dict[Topic, Update] = {}
        self._forgotten: Entries = {}  # topics that start again, and the first number that will be missing
        self._timers: dict[str, None] = {}
        self.patience = Patience(config.patience_us, config.patience_events_max) if config.unreliable else None
        self.open: dict[tuple[Topic, int], dict[Topic, None]] = {}
        """Causal order with early stamps: notified runs (topic, first) whose timestamps are not complete yet."""

    @property
    def subscribed(self) -> Topics:
        return tuple(topic for topic, feed in self.feeds.items() if feed.live)

    @property
    def left(self) -> Entries:
        live = self.feeds
        return {t: number for t, number in self.seen.items() if not (t in live and live[t].live)}

    # Subscribing and leaving.

    def subscribe(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        self._requests.append(("subscribe", topics))
        self._next_request(now, out)

    def unsubscribe(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        for topic in topics:
            if topic in self.feeds:
                self.feeds[topic].muted = True
        self._requests.append(("unsubscribe", topics))
        if self.joining and all(self.feeds[topic].muted for topic in self.joining):
            self._give_up_joining(now, out)
        self._next_request(now, out)

    def _next_request(self, now: Micros, out: list[Effect]) -> None:
        while self._requests and not self.joining:
            what, topics = self._requests.popleft()
            if what == "unsubscribe":
                self._leave(tuple(t for t in topics if t in self.feeds), now, out)
                continue
            new = tuple(dict.fromkeys(t for t in topics if t not in self.feeds))
            if not new:
                continue
            self.joining = new
            self._joining_since = now
            self._set("subscribe", self.config.resend_us, now, out)
            for topic in new:
                self.feeds[topic] = Feed()
                self._unjoined[topic] = None
                out.append(Join(topic))
            self._examine_anew()

    def _examine_anew(self) -> None:
        """What was found to hold nothing back may do so now."""
        for feed in self.feeds.values():
            feed.cleared, feed.awaited = 0, None

    def joined(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The broker delivers what is published on the topic from now on."""
        if topic not in self._unjoined:
            return
        del self._unjoined[topic]
        if not self._unjoined:
            self._begin_joining(now, out)

    def _begin_joining(self, now: Micros, out: list[Effect]) -> None:
        old, new, left = self.subscribed, self.joining, self.left
        self.version += 1
        visit = dict.fromkeys([*old, *left])
        if len(new) == 1:
            visit.pop(new[0], None)
        topics = old + new
        for topic in visit:
            self._uncollected[topic] = Collect(self.sid, self.version, topic, topics, new, left)
        for topic in new:
            self._uninstalled[topic] = Install(self.sid, self.version, topic, topics, left)
        self._advance_joining(now, out)

    def _advance_joining(self, now: Micros, out: list[Effect]) -> None:
        """No Install leaves before every part has reached its height."""
        messages = self._uncollected.values() or self._uninstalled.values()
        out += [Send(self._home(message.topic), message) for message in messages]
        self._set("subscribe", self.config.resend_us, now, out)

    def collected(self, message: Collected, now: Micros, out: list[Effect]) -> None:
        if message.version != self.version or self._uncollected.pop(message.topic, None) is None:
            return
        if not self._uncollected:
            self._advance_joining(now, out)

    def installed(self, message: Installed, now: Micros, out: list[Effect]) -> None:
        if message.version != self.version or self._uninstalled.pop(message.topic, None) is None:
            return
        self._installed[message.topic] = message
        if self._uninstalled:
            return
        for topic, answer in self._installed.items():
            feed = self.feeds[topic]
            feed.live, feed.base, feed.gate = True, answer.base, answer.gate
            feed.items = {first: item for first, item in feed.items.items() if item.last > answer.base}
            self.hold.open(topic, answer.base)
            if 0 < (forgotten := self._forgotten.pop(topic, 0)) <= answer.base:
                out.append(Deliver(Gap(topic, forgotten, answer.base, "its home no longer knows these numbers")))
            if not feed.muted:  # it has been left meanwhile: that is the next request
                out.append(Deliver(Joined(topic, answer.base, answer.gate)))
        self._installed.clear()
        self.joining = ()
        self._examine_anew()
        self.hold.wake_all()
        self._process(now, out)
        self._next_request(now, out)

    def denied(self, message: Denied, now: Micros, out: list[Effect]) -> None:
        """Our own numbers are true, so this is a home that lost its state; saying so is all we can do."""
        out.append(Refuse(f"topic {message.topic}: {message.reason}"))

    def _give_up_joining(self, now: Micros, out: list[Effect]) -> None:
        """As if joined and left at once: the newer version makes stale what is still under way to silent homes."""
        topics, self.joining = self.joining, ()
        for waiting in (self._unjoined, self._uncollected, self._uninstalled, self._installed):
            waiting.clear()
        self._forgotten = {topic: number for topic, number in self._forgotten.items() if topic not in topics}
        self._examine_anew()
        self._leave(topics, now, out)

    def _leave(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        if not topics:
            return
        for topic in topics:
            if self.feeds.pop(topic).live:
                self.hold.close(topic)
            out.append(Leave(topic))
        self.version += 1
        rest, left = self.subscribed, self.left
        for topic in rest:
            self._updates[topic] = Update(self.sid, self.version, topic, rest, left)
        for topic in topics:
            self._updates[topic] = Update(self.sid, self.version, topic, ())
        latest = [message for message in self._updates.values() if message.version == self.version]
        out += [Send(self._home(message.topic), message) for message in latest]
        self._set("subscribe", self.config.resend_us, now, out)
        self.hold.wake_all()
        self._process(now, out)

    def updated(self, message: Updated) -> None:
        update = self._updates.get(message.topic)
        if update is not None and update.version <= message.version:
            del self._updates[message.topic]

    # What the broker brings.

    def heard(self, topic: Topic, message: Any, now: Micros, out: list[Effect]) -> None:
        self._now = now
        feed = self.feeds.get(topic)
        if isinstance(message, Pieces) and self.open:
            self._close_open(message)
        if feed is None:
            return
        match message:
            case Payloads():
                if not self._hold_payloads(topic, feed, message, now, out):
                    return
            case Payload(publisher=publisher, request=request, event=event):
                if not self._hold_payload(topic, feed, publisher, request, event, now, out):
                    return
            case Stamps(runs=runs):
                for run in runs:
                    self._complete(topic, feed, run)
                if self._are_ahead(topic, feed, [run.first for run in runs], now, out):
                    return
            case Pieces(pieces=pieces):
                for piece in pieces:
                    self._merge(topic, feed, piece.run, piece.settled, piece.missing)
                if self._are_ahead(topic, feed, [piece.run.first for piece in pieces], now, out):
                    return
            case Ticketed(publisher=publisher, request=request, number=number, entries=entries, event=event):
                if feed.live and number <= self.hold.local[topic]:
                    key = (publisher, request)
                    self._late(topic, feed, key if key in feed.skipped else (NOBODY, number), event, out)
                elif self._room(feed, out):
                    feed.payloads.put(publisher, request, event, now)
                    run = Run(number, 1, publisher, request, tuple(entries), tuple(entries.values()))
                    self._complete(topic, feed, run)
                    if self.patience is not None:
                        self.patience.add(topic, number, now)
            case Void(run=run):
                self._void(topic, feed, run)
            case Mark(number=number):
                feed.mark = max(feed.mark, number)
            case _:
                out.append(Refuse(f"{type(message).__name__} is nothing the sequencer publishes"))
                return
        if feed.live:
            self.hold.wake(topic)
            self._process(now, out)

    def _are_ahead(self, topic: Topic, feed: Feed, firsts: list[int], now: Micros, out: list[Effect]) -> bool:
        """Whether these runs lie behind one that is still to come, so that they move nothing yet."""
        if not feed.live or min(firsts, default=0) <= self.hold.local[topic] + 1:
            return False
        self._set("ask", self.config.ask_us, now, out)
        return True

    def _hold_payload(
        self,
        topic: Topic,
        feed: Feed,
        publisher: Address,
        request: int,
        event: Event,
        now: Micros,
        out: list[Effect],
    ) -> bool:
        """Keeps it; tells whether the head of the topic has waited for it."""
        key = (publisher, request)
        if key in feed.skipped:
            self._late(topic, feed, key, event, out)
            return False
        if len(feed.payloads) >= self.config.buffer_max:
            return self._room(feed, out)
        feed.payloads.put(publisher, request, event, now)
        if "ask" not in self._timers and feed.live:
            self._set("ask", self.config.ask_us, now, out)
        return key == feed.awaited

    def _hold_payloads(self, topic: Topic, feed: Feed, row: Payloads, now: Micros, out: list[Effect]) -> bool:
        """The same for all of a row."""
        publisher, request, events = row.publisher, row.request, row.events
        if feed.skipped or len(feed.payloads) + len(events) > self.config.buffer_max:
            awaited = [
                self._hold_payload(topic, feed, publisher, request + i, event, now, out)
                for i, event in enumerate(events)
            ]
            return any(awaited)
        feed.payloads.put_row(publisher, request, events, now)
        if "ask" not in self._timers and feed.live:
            self._set("ask", self.config.ask_us, now, out)
        return feed.awaited is not None and feed.awaited in feed.payloads

    def _room(self, feed: Feed, out: list[Effect]) -> bool:
        if len(feed.payloads) < self.config.buffer_max:
            return True
        out.append(Refuse(f"{len(feed.payloads)} payloads wait: this one counts as lost"))
        return False

    def _item(self, topic: Topic, feed: Feed, run: Run) -> Item | None:
        """The item of a run that is still to be processed."""
        last = run.first + run.count - 1
        if feed.live and last <= self.hold.local[topic]:
            return None
        if last > feed.mark:
            feed.mark = last
        item = feed.items.get(run.first)
        if item is None:
            item = feed.items[run.first] = Item(run, self._now)
        return item

    def _complete(self, topic: Topic, feed: Feed, run: Run) -> None:
        if run.count > 1 and self.config.mode == "ticket":  # there, events come one by one
            for one in singles(run):
                self._complete(topic, feed, one)
            return
        item = self._item(topic, feed, run)
        if item is not None and item.missing != {}:
            item.topics, item.numbers = run.topics, run.numbers
            item.missing = {}

    def _merge(self, topic: Topic, feed: Feed, run: Run, settled: Topics, missing: Topics | None) -> None:
        item = self._item(topic, feed, run)
        if item is None:
            return
        if item.topics is not run.topics or item.numbers is not run.numbers:
            merged = {**dict(zip(item.topics, item.numbers)), **run.entries}
            item.topics, item.numbers = tuple(merged), tuple(merged.values())
        if missing is not None and item.missing is None:
            item.missing = {x: None for x in missing if x not in item.settled} if missing else {}
        for x in settled:
            if item.missing is None:
                item.settled[x] = None
            else:
                item.missing.pop(x, None)

    def _void(self, topic: Topic, feed: Feed, run: Run) -> None:
        """A run of numbers that will not be published; those whose events have come all the same are delivered."""
        for one in singles(run):
            item = self._item(topic, feed, one)
            if item is not None:
                self._complete(topic, feed, one)
                item.void = True

    # Delivery.

    def _process(self, now: Micros, out: list[Effect]) -> None:
        self._examine_due(now, out)
        if self.patience is not None:
            self._lose_patience(self.patience, now, out)
        if "ask" not in self._timers and any(feed.live and self._waits(t, feed) for t, feed in self.feeds.items()):
            self._set("ask", self.config.ask_us, now, out)

    def _examine_due(self, now: Micros, out: list[Effect]) -> None:
        while (topic := self.hold.next_due()) is not None:
            self._examine(topic, now, out)

    def _examine(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        feed = self.feeds[topic]
        local = self.hold.local
        while True:
            number = local[topic] + 1
            item = feed.items.get(feed.head)
            if item is None:
                item = feed.items.get(number)
                if item is None:
                    feed.awaited = None
                    return
                feed.head = number
            if feed.cleared != item.first:
                feed.awaited = None
                if not self._allowed(topic, feed, item):
                    return
                feed.cleared = item.first
            if not self._deliver_run(topic, feed, item, number, out):
                return

    def _deliver_run(self, topic: Topic, feed: Feed, item: Item, first: int, out: list[Effect]) -> bool:
        """Processes the numbers of an allowed run from `first` on; tells whether it came to its end."""
        take, publisher, offset = feed.payloads.take, item.publisher, item.request - item.first
        number, last, muted, notified = first, item.last, feed.muted, 0
        while number <= last:
            events = take(publisher, offset + number, last - number + 1)
            if events:
                if not muted:
                    out.append(Deliver(Heard(topic, events[0] if len(events) == 1 else events, False, number)))
                    notified = number + len(events) - 1
                number += len(events)
                continue
            if feed.tagged and feed.tagged.pop((publisher, offset + number), 1) is None:
                number += 1
                continue
            if not item.void and number not in feed.lost:
                break
            feed.lost.pop(number, None)
            feed.skip((publisher, offset + number), number, self.config.buffer_max)
            number += 1
        if notified:
            self.seen[topic] = notified
            if item.missing and self.config.causal:
                self.open[topic, item.first] = dict(item.missing)
        if number > first:
            self.hold.advance(topic, number - 1)
            if self.patience is not None:
                for processed in range(first, number):
                    self.patience.discard(topic, processed)
        if number <= last:
            feed.awaited = (publisher, offset + number)
            return False
        del feed.items[item.first]
        return True

    def _allowed(self, topic: Topic, feed: Feed, item: Item) -> bool:
        feeds, local = self.feeds, self.hold.local
        if item.missing is None:
            return False
        for x in item.missing:
            if x in feeds:
                return False
        for x, number in zip(item.topics, item.numbers):
            reached = local.get(x)
            if reached is not None:
                if reached < number and x != topic:
                    self._sleep(topic, x, number)
                    return False
            elif x in feeds:
                return False  # we are joining it: what we may deliver is not known before we have its base
        for x, number in feed.gate.items():
            if x in local and local[x] < number:
                self._sleep(topic, x, number)
                return False
        return True

    def _sleep(self, topic: Topic, awaited: Topic, number: int) -> None:
        self.hold.sleep(topic, awaited, number)
        feed = self.feeds[awaited]
        if number > feed.mark:  # it exists, so it may be asked for
            feed.mark = number

    def _late(self, topic: Topic, feed: Feed, key: tuple[Address, int], event: Event, out: list[Effect]) -> None:
        """Its number has gone by without it, so it can only be told apart; a mere repetition is dropped."""
        if (number := feed.skipped.pop(key, 0)) and not feed.muted:
            out.append(Deliver(Heard(topic, event, number=number, late=True)))

    # A broker that is allowed to lose events.

    def _lose_patience(self, patience: Patience, now: Micros, out: list[Effect]) -> None:
        for topic, number in patience.due(now):
            self._force(topic, number, now, out)
            self._examine_due(now, out)
        if (deadline := patience.deadline(now)) is not None and "patience" not in self._timers:
            self._timers["patience"] = None
            out.append(SetTimer("patience", deadline))

    def _force(self, topic: Topic, number: int, now: Micros, out: list[Effect]) -> None:
        """Delivers an event without what is missing before it. Its whole timestamp counts as reached: whatever of it
        comes later is tagged, so nobody is notified of the two in another order."""
        feed = self.feeds.get(topic)
        if feed is not None and not feed.live:
            return
        item = None if feed is None else feed.items.get(number)
        if feed is None or item is None:
            self._discard(topic, number)
            return
        if any(x in self.feeds and not self.feeds[x].live for x in item.topics):
            return  # we are joining a topic it speaks of; that ends soon
        for x, upto in [*feed.gate.items(), *zip(item.topics, item.numbers), (topic, number - 1)]:
            if self.hold.local.get(x, upto) < upto:
                self._pass_over(x, upto, now, out)
        self._examine(topic, now, out)

    def _pass_over(self, topic: Topic, upto: int, now: Micros, out: list[Effect]) -> None:
        """Brings the clock of a topic to `upto`: what is here is delivered first, what is not here is given up."""
        feed, local = self.feeds[topic], self.hold.local
        for number in sorted(n for n in feed.items if n <= upto):
            self._force(topic, number, now, out)
        if local[topic] >= upto:
            return
        for number in range(local[topic] + 1, upto + 1):
            feed.items.pop(number, None)
            self._discard(topic, number)
            feed.skip((NOBODY, number), number, self.config.buffer_max)
        if not feed.muted:
            out.append(Deliver(Gap(topic, local[topic] + 1, upto, "later events could not wait for it")))
        self.hold.advance(topic, upto)

    def _discard(self, topic: Topic, number: int) -> None:
        if self.patience is not None:
            self.patience.discard(topic, number)

    # Deadlines.

    def _waits(self, topic: Topic, feed: Feed) -> bool:
        return bool(feed.payloads or feed.items or feed.mark > self.hold.local[topic])

    def fired(self, key: str, now: Micros, out: list[Effect]) -> None:
        self._timers.pop(key, None)
        if key == "subscribe":
            again: list[Collect | Install | Update] = [*self._updates.values()]
            again += self._uncollected.values() or self._uninstalled.values()
            out += [Send(self._home(message.topic), message) for message in again]
            if self.joining and now - self._joining_since >= self.config.stall_us:
                silent = dict.fromkeys([*self._unjoined, *self._uncollected, *self._uninstalled])
                reason = "its part of a subscription is not answered"
                out += [Deliver(Stalled(topic, self._joining_since, reason)) for topic in silent]
                self._joining_since = now  # told again after as long a silence
            if again or self.joining:
                self._set("subscribe", self.config.resend_us, now, out)
        elif key == "patience":
            self._process(now, out)
        elif key == "ask":
            for topic in list(self.feeds):
                feed = self.feeds[topic]
                if feed.live and self._waits(topic, feed):
                    self._check_wait(topic, feed, now, out)
            out += [Send(self._home(topic), Ask(self.sid, topic, first)) for topic, first in self.open]
            self._process(now, out)
            if self.open:
                self._set("ask", self.config.ask_us, now, out)

    def _check_wait(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        while self._gives_up(topic, feed, now, out):
            self.hold.wake(topic)
            self._examine_due(now, out)
        if not self._waits(topic, feed):
            return
        number = self.hold.local[topic] + 1
        if feed.waiting_for != number:
            feed.waiting_for, feed.waiting_since, feed.stalled = number, now, False
            feed.heard = now
            return
        item = self._head(topic, feed)
        if item is None or item.missing is None or any(x in self.feeds for x in item.missing):
            out += [Send(self._home(topic), Ask(self.sid, topic, n)) for n in feed.unknown(number, self.feeds)]
            self._ask_for_payloads(topic, feed, now, out)
            answers = now - feed.heard < self.config.stall_us
            if feed.mark < number and answers:
                return  # payloads whose requests have not come to the home
            reason = "its timestamps are not completed" if answers else "its home does not answer"
        elif self._allowed(topic, feed, item):
            return  # for a payload; that ends in a gap
        else:
            reason = "another topic it is ordered against"
        if now - feed.waiting_since >= self.config.stall_us and not feed.stalled:
            feed.stalled = True
            out.append(Deliver(Stalled(topic, feed.waiting_since, reason)))
        if feed.stalled and self.config.tag_stalled and not feed.muted:
            out += [Deliver(Heard(topic, event, late=True)) for event in feed.tag_all(self.config.buffer_max)]

    def _head(self, topic: Topic, feed: Feed) -> Item | None:
        return feed.items.get(feed.head) or feed.items.get(self.hold.local[topic] + 1)

    def _gives_up(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> bool:
        """Skips the payloads the head has waited for long enough, all of its run at once, and says so."""
        item = self._head(topic, feed)
        if item is None or now - item.since < self.config.payload_wait_us or item.missing is None:
            return False
        if not self._allowed(topic, feed, item):
            return False
        number = last = self.hold.local[topic] + 1
        while last <= item.last and (item.publisher, item.request + last - item.first) not in feed.payloads:
            feed.lost[last] = None
            last += 1
        if last > number and not feed.muted:
            # Whether it was lost or published before we listened cannot be told apart, so it is always told.
            out.append(Deliver(Gap(topic, number, last - 1, "its payload did not come in time")))
        return last > number

    def _ask_for_payloads(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        """Payloads nobody has numbered: ask for the oldest, forget the very old."""
        feed.payloads.drop_before(Micros(now - self.config.payload_keep_us))
        oldest = feed.payloads.oldest()
        if oldest is not None and now - oldest[2] >= self.config.ask_us:
            out.append(Send(self._home(topic), Ask(self.sid, topic, 0, oldest[0], oldest[1])))

    def told(self, message: Told, now: Micros, out: list[Effect]) -> None:
        topic, run = message.topic, message.run
        self._now = now
        if run is not None:
            self.open.pop((topic, run.first), None)
        feed = self.feeds.get(topic)
        if feed is None or not feed.live:
            return
        feed.heard = now
        if message.fate != "unissued":
            feed.mark = max(feed.mark, message.number)
        if message.fate == "forgotten":
            self._start_again(topic, message, now, out)
            return
        if run is None:
            return
        for one in singles(run):
            if one.first <= self.hold.local[topic]:  # from before our time, or a repetition
                feed.payloads.take(one.publisher, one.request, 1)
        if message.fate == "void":
            self._void(topic, feed, run)
        else:
            self._complete(topic, feed, run)
        self.hold.wake(topic)
        self._process(now, out)

    def _start_again(self, topic: Topic, message: Told, now: Micros, out: list[Effect]) -> None:
        """The home has forgotten what we wait for: open a new subscription window, and tell what it leaves out."""
        number = self.hold.local[topic] + 1
        if message.number != number:
            return
        self._forgotten[topic] = number
        self._requests.appendleft(("subscribe", (topic,)))
        self._requests.appendleft(("unsubscribe", (topic,)))
        self._next_request(now, out)

    def _close_open(self, message: Pieces) -> None:
        for piece in message.pieces:
            missing = self.open.get((message.topic, piece.run.first))
            if missing is not None:
                for x in piece.settled:
                    missing.pop(x, None)
                if not missing:
                    del self.open[message.topic, piece.run.first]

    def _home(self, topic: Topic) -> Address:
        return self.homes[topic]

    def _set(self, key: str, delay: Micros, now: Micros, out: list[Effect]) -> None:
        if key not in self._timers:
            self._timers[key] = None
            out.append(SetTimer(key, Micros(now + delay)))
