"""Delivery at a subscriber: what the broker brings is held back until the order allows it.

An item is a number of a topic with its timestamp and its payload (or the knowledge that the payload will not come).
It is processed iff (1) it is the next number of its topic, (2) every entry of a topic we subscribe to has been
reached, (3) no entry belongs to a topic we are just joining, (4) the gate given at joining has been reached, and
(5) with early stamps, no topic we subscribe to or are joining is still missing from its timestamp. Processing moves
the clock of its own topic only. Skips and voids obey the same rules and notify nobody.
"""

from collections.abc import Sequence
from typing import Any

from unisono.machine import Deliver, Effect, Gap, Heard, Refuse
from unisono.model.event import Event, Payload, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Entries, Mark, Piece, Pieces, Run, Stamps, Void
from unisono.protocols.sequencer.ordering_client.feed import Feed, KnownRun
from unisono.protocols.sequencer.ordering_client.timers import Timers
from unisono.structures.holdback import HoldBack

UNNUMBERED_PART = 16
"""At the bound so large a part of it is made free, where what has no number takes up most of it."""
BOUND_REACHED = "its payload did not come before as many others waited as may"


class Delivery:
    """What has come in on the topics of one client, and what of it may be told."""

    def __init__(self, config: SequencerConfig, timers: Timers) -> None:
        self.config, self.timers = config, timers
        self.hold = HoldBack()
        self.feeds: dict[Topic, Feed] = {}
        """Topics subscribed to (live) and topics being joined."""
        self.seen: Entries = {}
        """The last number *notified* per topic, over all subscription periods."""
        self.open: dict[tuple[Topic, int], dict[Topic, None]] = {}
        """Causal order with early stamps: notified runs (topic, first) whose timestamps are not complete yet."""

    def examine_anew(self) -> None:
        """What was found to hold nothing back may do so now."""
        for feed in self.feeds.values():
            feed.cleared, feed.awaited = 0, None
            if (head := feed.items.get(feed.head)) is not None:
                head.met = 0

    # What the broker brings.

    def heard(self, topic: Topic, message: Any, now: Micros, out: list[Effect]) -> None:
        feed = self.feeds.get(topic)
        if feed is None:
            if self.open and isinstance(message, Pieces):
                self._close_open(message)
            return
        match message:
            case Payload(publisher=publisher, request=request, event=event):
                if not self._hold_payload(topic, feed, publisher, request, event, now, out):
                    return
            case Payloads():
                if not self._hold_payloads(topic, feed, message, now, out):
                    return
            case Pieces(pieces=pieces):
                if self.open:
                    self._close_open(message)
                for piece in pieces:
                    if piece.missing is not None:
                        feed.brought = max(feed.brought, piece.run.last)
                    self._merge(topic, feed, piece, now)
                if self._are_ahead(topic, feed, [piece.run for piece in pieces], now, out):
                    return
            case Stamps(runs=runs):
                for run in runs:
                    feed.brought = max(feed.brought, run.last)
                    self.complete(topic, feed, run, now)
                if self._are_ahead(topic, feed, runs, now, out):
                    return
            case Void(run=run, first=first, count=count):
                self.void(topic, feed, run, first, count, now)
            case Mark(number=number):
                feed.mark, feed.brought = max(feed.mark, number), max(feed.brought, number)
            case _:
                out.append(Refuse(f"{type(message).__name__} is nothing the sequencer publishes"))
                return
        if feed.live and self.hold.wake(topic):
            self.examine_due(now, out)
            if self.open or self.waits(topic):  # what else waits has begun to before, and is asked about already
                self._ask_later(now, out)

    def _are_ahead(self, topic: Topic, feed: Feed, runs: Sequence[Run], now: Micros, out: list[Effect]) -> bool:
        """Whether these runs come after one that is still to come, so that they move nothing yet."""
        if not feed.live:
            return False
        following = self.hold.local[topic] + 1
        for run in runs:
            if run.first <= following:
                return False
        self._ask_later(now, out)
        return True

    def _ask_later(self, now: Micros, out: list[Effect]) -> None:
        if "ask" not in self.timers.running:
            self.timers.set("ask", Micros(now + self.config.ask_us), out)

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
        is_awaited = feed.awaited == (publisher, request)
        if feed.payloads.count >= self.config.buffer_max and not is_awaited:
            self._make_room(topic, feed, now, out)
        if feed.skipped and (publisher, request) in feed.skipped:
            self._late(topic, feed, (publisher, request), event, out)
            return False
        if feed.payloads.count >= self.config.buffer_max and not is_awaited:
            out.append(Refuse(f"{feed.payloads.count} payloads wait: this one counts as lost"))
            return False
        feed.payloads.put(publisher, request, event)
        if feed.live:
            self._ask_later(now, out)
        return is_awaited

    def _hold_payloads(self, topic: Topic, feed: Feed, row: Payloads, now: Micros, out: list[Effect]) -> bool:
        """The same for all of a row."""
        publisher, request, events = row.publisher, row.request, row.events
        if feed.skipped or feed.payloads.count + len(events) > self.config.buffer_max:
            awaited = [
                self._hold_payload(topic, feed, publisher, request + i, event, now, out)
                for i, event in enumerate(events)
            ]
            return any(awaited)
        feed.payloads.put_row(publisher, request, events)
        if feed.live:
            self._ask_later(now, out)
        return feed.awaited is not None and feed.awaited in feed.payloads

    def _make_room(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        """At the bound the next payload would be lost for certain, and waited for in its turn as long as the one that
        holds it up: a busy topic would never catch up. So the wait for payloads that may be lost ends here; and where
        most have no number, room is made of them first: somebody may send such, and never ask for numbers."""
        feed.drop_unnumbered(self.config.buffer_max // UNNUMBERED_PART)
        if not feed.live:
            return
        self.hold.wake(topic)
        self.examine_due(now, out)
        while feed.payloads.count >= self.config.buffer_max:
            awaited = self.hold.awaited(topic)
            if now >= self.feeds[awaited].lease_end or not self.skip_missing(awaited, BOUND_REACHED, out):
                return
            self.hold.wake(awaited)
            self.examine_due(now, out)

    def skip_missing(self, topic: Topic, reason: str, out: list[Effect]) -> bool:
        """If nothing but a payload holds up the head: goes on without all of its run that has not come, and says so."""
        feed = self.feeds[topic]
        item = self.head(topic)
        if item is None or not self.allows(topic, feed, item):
            return False
        number = last = self.hold.local[topic] + 1
        while last <= item.last and last not in feed.lost:
            if (item.publisher, item.request + last - item.first) in feed.payloads:
                break
            feed.lost[last] = None
            last += 1
        if last > number and not feed.muted:
            # Whether it was lost or published before we listened cannot be told apart, so it is always told.
            out.append(Deliver(Gap(topic, number, last - 1, reason)))
        return last > number

    def head(self, topic: Topic) -> KnownRun | None:
        """The run of the topic's next number."""
        feed = self.feeds[topic]
        return feed.items.get(feed.head) or feed.items.get(self.hold.local[topic] + 1)

    def _new_item(self, topic: Topic, feed: Feed, run: Run, now: Micros) -> KnownRun | None:
        """Of a run we did not know; None: it has been processed."""
        last = run.first + run.count - 1
        if feed.live and last <= self.hold.local[topic]:
            return None
        if last > feed.mark:
            feed.mark = last
        if len(feed.items) >= self.config.buffer_max and run.first > self.hold.local.get(topic, 0) + 1:
            return None  # the home is asked for it when its turn comes
        item = KnownRun(run.first, last, run.publisher, run.request, run.topics, run.numbers, now, short=run.short)
        feed.items[run.first] = item
        return item

    def complete(self, topic: Topic, feed: Feed, run: Run, now: Micros) -> None:
        """The whole timestamp of a run is known."""
        item = feed.items.get(run.first) or self._new_item(topic, feed, run, now)
        if item is not None and (item.missing != () or (item.short and not run.short)):
            item.topics, item.numbers, item.missing, item.met, item.short = run.topics, run.numbers, (), 0, run.short

    def _merge(self, topic: Topic, feed: Feed, piece: Piece, now: Micros) -> None:
        """What one node has decided of a run; pieces come in any order, and more than once."""
        run, missing = piece.run, piece.missing
        item = feed.items.get(run.first)
        if item is None:
            item = self._new_item(topic, feed, run, now)
            if item is None:
                return
        elif item.missing == ():
            return
        else:
            merged = {**dict(zip(item.topics, item.numbers)), **run.entries}
            item.topics, item.numbers = tuple(merged), tuple(merged.values())
        if item.missing is None:
            item.missing = missing
            item.settled += piece.settled
            if missing and item.settled:
                item.missing = tuple([x for x in missing if x not in item.settled])
        elif item.missing and piece.settled:
            item.missing = tuple([x for x in item.missing if x not in piece.settled])

    def void(self, topic: Topic, feed: Feed, run: Run, first: int, count: int, now: Micros) -> None:
        """Numbers of a run that nobody should wait for; those whose events have come all the same are delivered."""
        self.complete(topic, feed, run, now)
        processed = self.hold.local[topic] if feed.live else 0
        for number in range(max(first, processed + 1), first + count):
            feed.lost[number] = None

    def _close_open(self, message: Pieces) -> None:
        for piece in message.pieces:
            missing = self.open.get((message.topic, piece.run.first))
            if missing is not None:
                for x in piece.settled:
                    missing.pop(x, None)
                if not missing:
                    del self.open[message.topic, piece.run.first]

    # The delivery rule.

    def process(self, now: Micros, out: list[Effect]) -> None:
        self.examine_due(now, out)
        if "ask" not in self.timers.running and (
            self.open or any(feed.live and self.waits(t) for t, feed in self.feeds.items())
        ):
            self._ask_later(now, out)

    def waits(self, topic: Topic) -> bool:
        feed = self.feeds[topic]
        return bool(feed.payloads.count or feed.items or feed.missed or feed.mark > self.hold.local[topic])

    def examine_due(self, now: Micros, out: list[Effect]) -> list[Topic]:
        """Delivers what may be delivered; returns whose turn it was."""
        examined = []
        for topic in self.hold.due():
            self._examine(topic, now, out)
            examined.append(topic)
        return examined

    def _examine(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        feed = self.feeds[topic]
        if now >= feed.lease_end:  # others may no longer be ordered against us
            feed.awaited = None
            return
        local, items = self.hold.local, feed.items
        while True:
            number = local[topic] + 1
            item = items.get(feed.head)
            if item is None:
                item = items.get(number)
                if item is None:
                    feed.awaited = None
                    return
                feed.head = number
            if feed.cleared != item.first:
                feed.awaited = None
                if not self.allows(topic, feed, item):
                    return
                feed.cleared = item.first
            if not self._deliver_run(topic, feed, item, number, out):
                return

    def lacks(self, item: KnownRun | None) -> bool:
        """Whether something of its timestamp that may concern us is not known to us."""
        if item is None or item.missing is None:
            return True
        feeds = self.feeds
        for x in item.missing:
            if x in feeds:
                return True
        if not item.short:
            return False
        # What it stands for we have processed with the event it names, if that came in its turn while we listened.
        feed = feeds.get(item.topics[0])
        return feed is None or feed.base >= item.numbers[0]

    def allows(self, topic: Topic, feed: Feed, item: KnownRun) -> bool:
        """Rules 2 to 5, for the head of a topic; what it waits for in vain is noted."""
        if self.lacks(item):
            return False
        feeds, local = self.feeds, self.hold.local
        met = item.met
        for x, number in zip(item.topics[met:], item.numbers[met:]):
            reached = local.get(x)
            if reached is not None:
                if reached < number and x != topic:
                    item.met = item.topics.index(x)
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

    def _deliver_run(self, topic: Topic, feed: Feed, item: KnownRun, first: int, out: list[Effect]) -> bool:
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
            if number not in feed.lost:
                break
            feed.skip((publisher, offset + number), number, self.config.buffer_max)
            number += 1
        if notified:
            self.seen[topic] = notified
            if item.missing and self.config.causal:
                self.open[topic, item.first] = dict.fromkeys(item.missing)
        if number > first:
            self.hold.advance(topic, number - 1)
            if feed.lost:
                for processed in range(first, number):
                    feed.lost.pop(processed, None)
        if number <= last:
            feed.awaited = (publisher, offset + number)
            return False
        del feed.items[item.first]
        feed.payloads.forget_before(publisher, item.request)
        return True

    def _late(self, topic: Topic, feed: Feed, key: tuple[Address, int], event: Event, out: list[Effect]) -> None:
        """Its number has gone by without it, so it can only be told apart; a mere repetition is dropped."""
        if (number := feed.skipped.pop(key, 0)) and not feed.muted:
            out.append(Deliver(Heard(topic, event, number=number, late=True)))
