"""The subscriber half of the ordering module: two-phase subscription, hold-back, and a deadline on every wait.

`joining` holds the subscription at the homes, `delivery` what has come in and the rule by which it may be told. Here
are the deadlines: whoever has waited too long asks the home of the topic, a payload that does not come ends in a Gap,
and an answer that does not come in Stalled. No timer decides an order.
"""

from unisono.machine import Deliver, Effect, Heard, Send, Stalled
from unisono.model.ids import Address, Topic
from unisono.model.time import NEVER, Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Ask, Told, Topics
from unisono.protocols.sequencer.ordering_client.delivery import Delivery
from unisono.protocols.sequencer.ordering_client.feed import Feed, singles
from unisono.protocols.sequencer.ordering_client.joining import Joining
from unisono.protocols.sequencer.ordering_client.timers import AskPatience, Timers


class OrderingSubscriber:
    """All subscriptions of one client (one `sid`)."""

    def __init__(self, sid: Address, homes: dict[Topic, Address], config: SequencerConfig) -> None:
        self.sid, self.homes, self.config = sid, homes, config
        self._timers = Timers()
        self._patience: dict[Address, AskPatience] = {}
        self._brought_since = Micros(0)  # before that the broker was not read from
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

    def pause(self, is_paused: bool, now: Micros) -> None:
        """What our own reader has no room for is not lost, however long that takes."""
        self._brought_since = NEVER if is_paused else now

    def missed(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The broker may have lost something here: the home knows how far the topic is."""
        feed = self.feeds.get(topic)
        if feed is None:
            return
        feed.missed, feed.missed_at = True, now
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
            while feed.live and now < feed.lease_end and self._gives_up(topic, now, out):
                self.hold.wake(topic)
                todo.update(dict.fromkeys(self.delivery.examine_due(now, out)))

    def _check_wait(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        number = self.hold.local[topic] + 1
        self._ask(topic, feed, number, now, out)
        if feed.waiting_for != number:
            feed.waiting_for, feed.waiting_since, feed.stalled = number, now, False
            feed.heard = now
            return
        item = self.delivery.head(topic)
        if item is None or self.delivery.lacks(item):
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

    def _gives_up(self, topic: Topic, now: Micros, out: list[Effect]) -> bool:
        """Skips the payloads the head has waited for long enough."""
        item, missed_at, config = self.delivery.head(topic), self.feeds[topic].missed_at, self.config
        if item is None:
            return False
        since = max(item.since, self._brought_since)
        given_up_at = since + config.payload_wait_us
        if item.since <= missed_at + config.missed_wait_us:
            given_up_at = min(given_up_at, max(since, missed_at) + config.missed_wait_us)
        if now < given_up_at:
            return False
        return self.delivery.skip_missing(topic, "its payload did not come in time", out)

    def _ask(self, topic: Topic, feed: Feed, number: int, now: Micros, out: list[Effect]) -> None:
        """Asks the home for what has been missing for two looks, and where the topic waits for a number also for the
        oldest payload that nobody has numbered. Not before a pause has gone by: what is on its way comes by itself, and
        a home that is farther away than was thought is not asked the faster for it."""
        overdue, said = feed.overdue(number, self.delivery.lacks), len(out)
        patience = self._patience.setdefault(self.homes[topic], AskPatience(self.config))
        pause = patience.pause_us(now)
        begin = feed.waiting_since if feed.waiting_for == number else now
        if now - feed.asked_at < pause or (pause > self.config.ask_us and now - begin < pause):
            return
        out += [Send(self.homes[topic], Ask(self.sid, topic, n)) for n in overdue]
        if feed.missed:
            self._ask_how_far(topic, feed, out)
        item, oldest = self.delivery.head(topic), feed.payloads.oldest()
        if self.delivery.lacks(item) and oldest is not None and now - oldest[2] >= self.config.ask_us:
            out.append(Send(self.homes[topic], Ask(self.sid, topic, 0, oldest[0], oldest[1])))
        if len(out) > said:
            feed.asked_at = now
            patience.asked(now)

    def _drop_orphans(self, feed: Feed, now: Micros) -> None:
        """The home has no number for the oldest payload. Age alone proves nothing: a node may have been away, and then
        publishers that live ask again. Old while the home could be asked all the time: its publisher is gone."""
        oldest = feed.payloads.oldest()
        if oldest is not None and now - max(oldest[2], feed.answers_since) >= self.config.payload_keep_us:
            feed.payloads.drop(oldest[0])

    def _has_passed_by(self, topic: Topic, feed: Feed, now: Micros) -> bool:
        """Whether the broker will not bring the next number any more: it has brought a later one of the same home, has
        said that it lost something, or is waited for long enough. Where much is published the home has soon forgotten
        what is still on its way."""
        number, config = self.hold.local[topic] + 1, self.config
        if feed.brought >= number or now - feed.missed_at < config.missed_wait_us:
            return True
        since = max(feed.waiting_since, self._brought_since)
        return feed.waiting_for == number and now - since >= config.payload_wait_us

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
            passed_by = self._has_passed_by(topic, feed, now)
            if message.number == self.hold.local[topic] + 1 and not feed.muted and passed_by:
                self.subscription.start_again(topic, now, out)
            return
        if run is None:
            return
        known = feed.items.get(run.first)
        if run.last > self.hold.local[topic] and (known is None or known.missing != () or known.short):
            self._patience.pop(self.homes[topic], None)
        for one in singles(run):
            if one.first <= self.hold.local[topic]:  # from before our time, or a repetition
                feed.payloads.take(one.publisher, one.request, 1)
        if message.fate == "void":
            self.delivery.void(topic, feed, run, message.number, 1, now)
        else:
            self.delivery.complete(topic, feed, run, now)
        self.hold.wake(topic)
        self.delivery.process(now, out)
