"""Joining and leaving topics: the two-phase subscription of a client, one at a time, and its registrations.

All parts of the old subscription have reached their height (Collected) before the first new topic is installed. What
is seen of topics we left goes with every registration (`left`), so that those who hear both sides of our leaving
agree with us. A home is told once what concerns all its topics, and again what it has not answered: after a pause that
doubles, and at once when the way there is a new one.
"""

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from unisono.machine import Deliver, Effect, Gap, Join, Joined, Leave, Refuse, Send, Stalled
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
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
from unisono.protocols.sequencer.ordering_client.delivery import Delivery
from unisono.protocols.sequencer.ordering_client.feed import Feed
from unisono.protocols.sequencer.ordering_client.timers import Patience


class Joining:
    """The subscription of one client (one `sid`) at the homes of its topics."""

    def __init__(self, sid: Address, homes: dict[Topic, Address], delivery: Delivery) -> None:
        self._sid, self._homes, self._delivery = sid, homes, delivery
        self._feeds, self._hold = delivery.feeds, delivery.hold
        self._config, self._timers = delivery.config, delivery.timers
        self.version = 0
        self.topics: Topics = ()
        """Those being joined."""
        self._together: list[Topics] = []  # the same, as they were asked for
        self._since = Micros(0)
        self._unjoined: dict[Topic, None] = {}  # the broker has not confirmed these yet
        self._requests: deque[tuple[str, Topics]] = deque()
        self._left: Entries = {}  # as it was when the joining began
        self._uncollected: dict[Topic, None] = {}
        self._uninstalled: dict[Topic, None] = {}
        self._installed: dict[Topic, Installed] = {}
        self._updates: dict[Topic, Update] = {}  # one for all topics that are told the same
        self._patience = Patience(self._config.resend_us)
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
        rest = [part for part in self._together if not all(self._feeds[topic].muted for topic in part)]
        if len(rest) < len(self._together):
            self._give_up_joining(now, out)
            self._requests.extendleft(("subscribe", part) for part in reversed(rest))
        self._next_request(now, out)

    def _next_request(self, now: Micros, out: list[Effect]) -> None:
        while self._requests and not self.topics:
            what, topics = self._requests.popleft()
            if what == "unsubscribe":
                self._leave(tuple(t for t in topics if t in self._feeds), now, out)
                continue
            # What was asked for one by one while another joining was under way is joined together.
            new = self._add_part(topics)
            while self._requests and self._requests[0][0] == "subscribe":
                new += self._add_part(self._requests.popleft()[1])
            if not new:
                continue
            self.topics = new
            self._since = now
            self._begin_waiting(now, out)
            self._unjoined.update(dict.fromkeys(new))
            out += [Join(topic) for topic in new]
            self._delivery.examine_anew()
            self._hold.wake_all()  # so that it is known again which payload would be enough
            self._delivery.process(now, out)

    def _add_part(self, topics: Topics) -> Topics:
        new = tuple(dict.fromkeys(t for t in topics if t not in self._feeds))
        self._feeds.update((topic, Feed()) for topic in new)
        if new:
            self._together.append(new)
        return new

    def joined(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        """The broker delivers what is published on the topic from now on."""
        if topic not in self._unjoined:
            return
        del self._unjoined[topic]
        if not self._unjoined:
            self._begin_joining(now, out)

    def _begin_joining(self, now: Micros, out: list[Effect]) -> None:
        new, self._left = self.topics, self.left
        self.version += 1
        visit = dict.fromkeys([*self.subscribed, *self._left])
        if len(new) == 1:
            visit.pop(new[0], None)
        self._uncollected, self._uninstalled = visit, dict.fromkeys(new)
        self._advance_joining(now, out)

    def _advance_joining(self, now: Micros, out: list[Effect]) -> None:
        """No Install leaves before every part has reached its height."""
        self._installing_since = now
        self._ask(out)
        self._begin_waiting(now, out)

    def _ask(self, out: list[Effect]) -> None:
        """Tells every home what it has not answered of the joining."""
        sid, version, new, left = self._sid, self.version, self.topics, self._left
        topics = self.subscribed + new
        collects = [Collect(sid, version, here, topics, new, left, True) for here in self._by_home(self._uncollected)]
        installs = [Install(sid, version, here, topics, left, True) for here in self._by_home(self._uninstalled)]
        out += [self._to_home(message) for message in collects or installs]

    def _by_home(self, topics: Iterable[Topic]) -> list[Topics]:
        homes: dict[Address, list[Topic]] = {}
        for topic in topics:
            homes.setdefault(self._homes[topic], []).append(topic)
        return [tuple(here) for here in homes.values()]

    def _to_home(self, message: Collect | Install | Update | Renew) -> Send:
        return Send(self._homes[Topic(message.here[0])], message)

    def collected(self, message: Collected, now: Micros, out: list[Effect]) -> None:
        if message.version != self.version or self._uncollected.pop(message.topic, 0) is not None:
            return
        if not self._uncollected:
            self._advance_joining(now, out)

    def installed(self, message: Installed, now: Micros, out: list[Effect]) -> None:
        if message.version != self.version or self._uninstalled.pop(message.topic, 0) is not None:
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
        self.topics, self._together = (), []
        self._delivery.examine_anew()
        self._hold.wake_all()
        self._delivery.process(now, out)
        self._next_request(now, out)

    def denied(self, message: Denied, now: Micros, out: list[Effect]) -> None:
        """Our own numbers are true, so this is a home that lost its state; saying so is all we can do."""
        out.append(Refuse(f"topic {message.topic}: {message.reason}"))

    def _give_up_joining(self, now: Micros, out: list[Effect]) -> None:
        """As if joined and left at once: the newer version makes stale what is still under way to silent homes."""
        topics, self.topics, self._together = self.topics, (), []
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
        rest = self.subscribed
        self._updates.update(dict.fromkeys(rest, Update(self._sid, self.version, (), rest, self.left, True)))
        self._updates.update(dict.fromkeys(topics, Update(self._sid, self.version, (), ())))
        self._tell(self.version, out)
        self._begin_waiting(now, out)
        self._hold.wake_all()
        self._delivery.process(now, out)

    def _tell(self, version: int, out: list[Effect]) -> None:
        """Tells every home what it has not answered of what was left, from this version on."""
        alike: dict[int, list[Topic]] = {}
        for topic, update in self._updates.items():
            if update.version >= version:
                alike.setdefault(id(update), []).append(topic)
        for topics in alike.values():
            update = self._updates[topics[0]]
            out += [self._to_home(replace(update, here=here)) for here in self._by_home(topics)]

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
        subscribed = self.subscribed
        out += [self._to_home(Renew(self._sid, here, now)) for here in self._by_home(subscribed)]
        for topic in subscribed:
            if now >= self._feeds[topic].lease_end and topic not in self._lapsed:
                self._lapsed[topic] = None
                out.append(Deliver(Stalled(topic, self._feeds[topic].lease_end, "its home may have forgotten us")))
        if subscribed:
            self._timers.set("lease", Micros(now + self._lease_us // 4), out)

    def _end_lease(self, topic: Topic, feed: Feed, now: Micros, out: list[Effect]) -> None:
        """We may have missed being ordered: nothing more can be told under this name."""
        if feed.lease_end:
            feed.lease_end = Micros(0)
            self._lapsed[topic] = None
            out.append(Refuse(f"topic {topic}: its home has forgotten us, we have to come back as another"))
            out.append(Deliver(Stalled(topic, now, "its home has forgotten us", ends=True)))

    def renewed(self, message: Renewed, now: Micros, out: list[Effect]) -> None:
        for topic in map(Topic, message.here):
            feed = self._feeds.get(topic)
            if feed is None or not feed.live:
                continue
            if not message.known:
                self._end_lease(topic, feed, now, out)
            elif feed.lease_end:  # once forgotten, for ever
                feed.lease_end = max(feed.lease_end, self._safe_until(message.sent))
                self._lapsed.pop(topic, None)
                self._hold.wake(topic)
        self._delivery.process(now, out)

    def fired(self, now: Micros, out: list[Effect]) -> None:
        """Repeats what has not been answered."""
        self._tell(0, out)
        self._ask(out)
        if self.topics and now - self._since >= self._config.stall_us:
            silent = dict.fromkeys([*self._unjoined, *self._uncollected, *self._uninstalled])
            reason = "its part of a subscription is not answered"
            out += [Deliver(Stalled(topic, self._since, reason)) for topic in silent]
            self._since = now  # told again after as long a silence
        if self._updates or self.topics:
            self._timers.set("subscribe", self._in_time(now, self._patience.lose()), out)

    def _in_time(self, now: Micros, pause: Micros) -> Micros:
        """When to look again: whoever waits for a subscription is told in time that it stalls."""
        due = self._since + self._config.stall_us
        return Micros(min(now + pause, due) if self.topics and due > now else now + pause)

    def reconnected(self, now: Micros, out: list[Effect]) -> None:
        """What was under way may be lost."""
        if self._updates or self.topics:
            self._tell(0, out)
            self._ask(out)
            self._begin_waiting(now, out)

    def _begin_waiting(self, now: Micros, out: list[Effect]) -> None:
        """Something new is asked for: the pauses between repetitions are short again."""
        self._timers.move("subscribe", self._in_time(now, self._patience.renew()), out)
