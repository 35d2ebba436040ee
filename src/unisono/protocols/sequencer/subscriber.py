"""The subscriber half of the ordering module: two-phase subscription, hold-back, and a deadline on every wait.

`joining` holds the subscription at the homes, `delivery` what has come in and the rule by which it may be told. Here
are the deadlines: whoever has waited too long asks the home of the topic, a payload that does not come ends in a Gap,
and an answer that does not come in Stalled. No timer decides an order.
"""

from unisono.machine import Deliver, Effect, Gap, Heard, Send, Stalled
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.delivery import Delivery
from unisono.protocols.sequencer.feed import Feed, Item, singles
from unisono.protocols.sequencer.joining import Joining
from unisono.protocols.sequencer.messages import Ask, Told, Topics
from unisono.protocols.sequencer.timers import Timers


class Subscriber:
    """All subscriptions of one client (one `sid`)."""

    def __init__(self, sid: Address, homes: dict[Topic, Address], config: SequencerConfig) -> None:
        self.sid, self.homes, self.config = sid, homes, config
        self._timers = Timers()
        self.delivery = Delivery(config, self._timers)
        self.subscription = Joining(sid, homes, self.delivery)
        self.hold, self.feeds, self.open = self.delivery.hold, self.delivery.feeds, self.delivery.open

    @property
    def joining(self) -> Topics:
        return self.subscription.topics

    @property
    def subscribed(self) -> Topics:
        return self.subscription.subscribed

    def fired(self, key: str, now: Micros, out: list[Effect]) -> None:
        self._timers.fired(key)
        if key == "subscribe":
            self.subscription.fired(now, out)
        elif key == "lease":
            self.subscription.renew(now, out)
        elif key == "ask":
            self._give_up(now, out)
            for topic, feed in list(self.feeds.items()):
                if feed.live and self.delivery.waits(topic) and now < feed.lease_end:
                    feed.payloads.look(now)
                    self._check_wait(topic, feed, now, out)
            out += [Send(self.homes[topic], Ask(self.sid, topic, first)) for topic, first in self.open]
            self.delivery.process(now, out)
            if self.open:
                self._timers.set("ask", Micros(now + self.config.ask_us), out)

    def missed(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The broker may have lost something here: the home knows how far the topic is."""
        feed = self.feeds.get(topic)
        if feed is None:
            return
        feed.missed = True
        if feed.live:
            self._ask_how_far(topic, feed, out)
            self.delivery.process(now, out)

    def _ask_how_far(self, topic: Topic, feed: Feed, out: list[Effect]) -> None:
        out.append(Send(self.homes[topic], Ask(self.sid, topic, max(feed.mark, self.hold.local[topic]) + 1)))

    def _give_up(self, now: Micros, out: list[Effect]) -> None:
        """Skips all that has waited long enough. What one topic gives up lets another go on, and give up in turn."""
        todo = dict.fromkeys(self.feeds)
        while todo:
            topic, _ = todo.popitem()
            feed = self.feeds[topic]
            # The end of a lease has been told, and only the home can undo it.
            while feed.live and now < feed.lease_end and self._gives_up(topic, feed, now, out):
                self.hold.wake(topic)
                todo.update(dict.fromkeys(self.delivery.examine_due(now, out)))

    def _check_wait(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        number = self.hold.local[topic] + 1
        out += [Send(self.homes[topic], Ask(self.sid, topic, n)) for n in feed.overdue(number, self.feeds)]
        if feed.missed:
            self._ask_how_far(topic, feed, out)
        if feed.waiting_for != number:
            feed.waiting_for, feed.waiting_since, feed.stalled = number, now, False
            feed.heard = now
            return
        item = self._head(topic, feed)
        if item is None or item.missing is None or any(x in self.feeds for x in item.missing):
            self._ask_for_payloads(topic, feed, now, out)
            answers = now - feed.heard < self.config.stall_us
            if feed.mark < number and answers:
                return  # payloads whose requests have not come to the home
            reason = "its timestamps are not completed" if answers else "its home does not answer"
        elif self.delivery.allows(topic, feed, item):
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
        if not self.delivery.allows(topic, feed, item):
            return False
        number = last = self.hold.local[topic] + 1
        while last <= item.last and last not in feed.lost:
            if (item.publisher, item.request + last - item.first) in feed.payloads:
                break
            feed.lost[last] = None
            last += 1
        if last > number and not feed.muted:
            # Whether it was lost or published before we listened cannot be told apart, so it is always told.
            out.append(Deliver(Gap(topic, number, last - 1, "its payload did not come in time")))
        return last > number

    def _ask_for_payloads(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        """Of the payloads that nobody has numbered the oldest is asked for."""
        oldest = feed.payloads.oldest()
        if oldest is not None and now - oldest[2] >= self.config.ask_us:
            out.append(Send(self.homes[topic], Ask(self.sid, topic, 0, oldest[0], oldest[1])))

    def _drop_orphans(self, feed: Feed, now: Micros) -> None:
        """The home has no number for the oldest payload. Age alone proves nothing: a node may have been away, and then
        publishers that live ask again. Old while the home could be asked all the time: its publisher is gone."""
        oldest = feed.payloads.oldest()
        if oldest is not None and now - max(oldest[2], feed.answers_since) >= self.config.payload_keep_us:
            feed.payloads.drop(oldest[0])

    def told(self, message: Told, now: Micros, out: list[Effect]) -> None:
        topic, run = message.topic, message.run
        if message.fate != "pending":  # forgotten or lost by its home, it was complete or never will be
            self.open.pop((topic, message.number if run is None else run.first), None)
        feed = self.feeds.get(topic)
        if feed is None or not feed.live:
            return
        if now - feed.heard >= self.config.stall_us:
            feed.answers_since = now
        feed.heard = now
        feed.missed = False
        feed.mark = max(feed.mark, message.mark)
        if message.fate != "unissued":
            feed.mark = max(feed.mark, message.number)
        if message.fate in ("unissued", "forgotten") and not message.number:
            self._drop_orphans(feed, now)
        if message.fate == "forgotten":
            if message.number == self.hold.local[topic] + 1 and not feed.muted:
                self.subscription.start_again(topic, now, out)
            return
        if run is None:
            return
        for one in singles(run):
            if one.first <= self.hold.local[topic]:  # from before our time, or a repetition
                feed.payloads.take(one.publisher, one.request, 1)
        if message.fate == "void":
            self.delivery.void(topic, feed, run, message.number, 1, now)
        else:
            self.delivery.complete(topic, feed, run, now)
        self.hold.wake(topic)
        self.delivery.process(now, out)
