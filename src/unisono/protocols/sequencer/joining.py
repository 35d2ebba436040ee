"""Joining and leaving topics: the two-phase subscription of a client, one at a time, and its registrations.

All parts of the old subscription have reached their height (Collected) before the first new topic is installed. What
is seen of topics we left goes with every registration (`left`), so that those who hear both sides of our leaving
agree with us. Every message is repeated until it is answered.
"""

from collections import deque

from unisono.machine import Deliver, Effect, Gap, Join, Joined, Leave, Refuse, Send, Stalled
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.delivery import Delivery
from unisono.protocols.sequencer.feed import Feed
from unisono.protocols.sequencer.messages import (
    Collect,
    Collected,
    Denied,
    Entries,
    Install,
    Installed,
    Renew,
    Renewed,
    Topics,
    Update,
    Updated,
)


class Joining:
    """The subscription of one client (one `sid`) at the homes of its topics."""

    def __init__(self, sid: Address, homes: dict[Topic, Address], delivery: Delivery) -> None:
        self._sid, self._homes, self._delivery = sid, homes, delivery
        self._feeds, self._hold = delivery.feeds, delivery.hold
        self._config, self._timers = delivery.config, delivery.timers
        self.version = 0
        self.topics: Topics = ()
        """Those being joined."""
        self._since = Micros(0)
        self._unjoined: dict[Topic, None] = {}  # the broker has not confirmed these yet
        self._requests: deque[tuple[str, Topics]] = deque()
        self._uncollected: dict[Topic, Collect] = {}
        self._uninstalled: dict[Topic, Install] = {}
        self._installed: dict[Topic, Installed] = {}
        self._updates: dict[Topic, Update] = {}
        self._lease_us = self._config.subscriber_lease_us
        self._installing_since = Micros(0)
        self._lapsed: dict[Topic, None] = {}  # told as stalled: their homes may have forgotten us
        self._forgotten: Entries = {}  # topics that start again, and the first number that will be missing

    @property
    def subscribed(self) -> Topics:
        return tuple(topic for topic, feed in self._feeds.items() if feed.live)

    @property
    def left(self) -> Entries:
        live, seen = self._feeds, self._delivery.seen
        return {t: number for t, number in seen.items() if not (t in live and live[t].live)}

    def subscribe(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        self._requests.append(("subscribe", topics))
        self._next_request(now, out)

    def unsubscribe(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        for topic in topics:
            self._forgotten.pop(topic, None)
            if topic in self._feeds:
                self._feeds[topic].muted = True
        # What has not begun yet to be joined is not joined.
        self._requests = deque(
            (what, tuple(t for t in asked if t not in topics) if what == "subscribe" else asked)
            for what, asked in self._requests
        )
        self._requests.append(("unsubscribe", topics))
        if self.topics and all(self._feeds[topic].muted for topic in self.topics):
            self._give_up_joining(now, out)
        self._next_request(now, out)

    def _next_request(self, now: Micros, out: list[Effect]) -> None:
        while self._requests and not self.topics:
            what, topics = self._requests.popleft()
            if what == "unsubscribe":
                self._leave(tuple(t for t in topics if t in self._feeds), now, out)
                continue
            new = tuple(dict.fromkeys(t for t in topics if t not in self._feeds))
            if not new:
                continue
            self.topics = new
            self._since = now
            self._repeat(now, out)
            for topic in new:
                self._feeds[topic] = Feed()
                self._unjoined[topic] = None
                out.append(Join(topic))
            self._delivery.examine_anew()
            self._hold.wake_all()  # so that it is known again which payload would be enough
            self._delivery.process(now, out)

    def joined(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The broker delivers what is published on the topic from now on."""
        if topic not in self._unjoined:
            return
        del self._unjoined[topic]
        if not self._unjoined:
            self._begin_joining(now, out)

    def _begin_joining(self, now: Micros, out: list[Effect]) -> None:
        old, new, left = self.subscribed, self.topics, self.left
        self.version += 1
        visit = dict.fromkeys([*old, *left])
        if len(new) == 1:
            visit.pop(new[0], None)
        topics = old + new
        for topic in visit:
            self._uncollected[topic] = Collect(self._sid, self.version, topic, topics, new, left)
        for topic in new:
            self._uninstalled[topic] = Install(self._sid, self.version, topic, topics, left)
        self._advance_joining(now, out)

    def _advance_joining(self, now: Micros, out: list[Effect]) -> None:
        """No Install leaves before every part has reached its height."""
        messages = self._uncollected.values() or self._uninstalled.values()
        self._installing_since = now
        out += [Send(self._homes[message.topic], message) for message in messages]
        self._repeat(now, out)

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
            feed = self._feeds[topic]
            feed.live, feed.base, feed.gate = True, answer.base, answer.gate
            if self._lease_us:
                feed.lease_end = self._safe_until(self._installing_since)
                self._timers.set("lease", Micros(now + self._lease_us // 4), out)
            feed.items = {first: item for first, item in feed.items.items() if item.last > answer.base}
            feed.lost = {number: None for number in feed.lost if number > answer.base}
            self._hold.open(topic, answer.base)
            if 0 < (forgotten := self._forgotten.pop(topic, 0)) <= answer.base:
                out.append(Deliver(Gap(topic, forgotten, answer.base, "its home no longer knows these numbers")))
            if not feed.muted:  # it has been left meanwhile: that is the next request
                out.append(Deliver(Joined(topic, answer.base, answer.gate)))
        self._installed.clear()
        self.topics = ()
        self._delivery.examine_anew()
        self._hold.wake_all()
        self._delivery.process(now, out)
        self._next_request(now, out)

    def denied(self, message: Denied, now: Micros, out: list[Effect]) -> None:
        """Our own numbers are true, so this is a home that lost its state; saying so is all we can do."""
        out.append(Refuse(f"topic {message.topic}: {message.reason}"))

    def _give_up_joining(self, now: Micros, out: list[Effect]) -> None:
        """As if joined and left at once: the newer version makes stale what is still under way to silent homes."""
        topics, self.topics = self.topics, ()
        for waiting in (self._unjoined, self._uncollected, self._uninstalled, self._installed):
            waiting.clear()
        self._forgotten = {topic: number for topic, number in self._forgotten.items() if topic not in topics}
        self._delivery.examine_anew()
        self._leave(topics, now, out)

    def _leave(self, topics: Topics, now: Micros, out: list[Effect]) -> None:
        if not topics:
            return
        for topic in topics:
            self._lapsed.pop(topic, None)
            if self._feeds.pop(topic).live:
                self._hold.close(topic)
            out.append(Leave(topic))
        self.version += 1
        rest, left = self.subscribed, self.left
        for topic in rest:
            self._updates[topic] = Update(self._sid, self.version, topic, rest, left)
        for topic in topics:
            self._updates[topic] = Update(self._sid, self.version, topic, ())
        latest = [message for message in self._updates.values() if message.version == self.version]
        out += [Send(self._homes[message.topic], message) for message in latest]
        self._repeat(now, out)
        self._hold.wake_all()
        self._delivery.process(now, out)

    def updated(self, message: Updated) -> None:
        update = self._updates.get(message.topic)
        if update is not None and update.version <= message.version:
            del self._updates[message.topic]

    def start_again(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The home has forgotten what we wait for: open a new subscription window, and tell what it leaves out."""
        if topic in self._forgotten:
            return  # we are about to
        self._forgotten[topic] = self._hold.local[topic] + 1
        self._requests.appendleft(("subscribe", (topic,)))
        self._requests.appendleft(("unsubscribe", (topic,)))
        self._next_request(now, out)

    # The lease of our registrations.

    def _safe_until(self, sent: Micros) -> Micros:
        """The home has heard of us after `sent`, so it remembers us for longer than this, by any clock."""
        return Micros(sent + self._lease_us * 3 // 4)

    def renew(self, now: Micros, out: list[Effect]) -> None:
        for topic in self.subscribed:
            out.append(Send(self._homes[topic], Renew(self._sid, topic, now)))
            if now >= self._feeds[topic].lease_end and topic not in self._lapsed:
                self._lapsed[topic] = None
                out.append(Deliver(Stalled(topic, self._feeds[topic].lease_end, "its home may have forgotten us")))
        if self.subscribed:
            self._timers.set("lease", Micros(now + self._lease_us // 4), out)

    def _end_lease(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        """We may have missed being ordered: nothing more can be told under this name."""
        if feed.lease_end:
            feed.lease_end = Micros(0)
            self._lapsed[topic] = None
            out.append(Refuse(f"topic {topic}: its home has forgotten us, we have to come back as another"))
            out.append(Deliver(Stalled(topic, now, "its home has forgotten us", ends=True)))

    def renewed(self, message: Renewed, now: Micros, out: list[Effect]) -> None:
        feed = self._feeds.get(message.topic)
        if feed is None or not feed.live:
            return
        if not message.known:
            self._end_lease(message.topic, feed, now, out)
        elif feed.lease_end:  # once forgotten, for ever
            feed.lease_end = max(feed.lease_end, self._safe_until(message.sent))
            self._lapsed.pop(message.topic, None)
            self._hold.wake(message.topic)
            self._delivery.process(now, out)

    def fired(self, now: Micros, out: list[Effect]) -> None:
        """Repeats what has not been answered."""
        again: list[Collect | Install | Update] = [*self._updates.values()]
        again += self._uncollected.values() or self._uninstalled.values()
        out += [Send(self._homes[message.topic], message) for message in again]
        if self.topics and now - self._since >= self._config.stall_us:
            silent = dict.fromkeys([*self._unjoined, *self._uncollected, *self._uninstalled])
            reason = "its part of a subscription is not answered"
            out += [Deliver(Stalled(topic, self._since, reason)) for topic in silent]
            self._since = now  # told again after as long a silence
        if again or self.topics:
            self._repeat(now, out)

    def _repeat(self, now: Micros, out: list[Effect]) -> None:
        self._timers.set("subscribe", Micros(now + self._config.resend_us), out)
