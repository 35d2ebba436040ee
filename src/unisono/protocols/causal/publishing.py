"""How a client's publication becomes a frame: an author with one publication under way, an emitter at the broker.

Causality goes through clients: what a client knows travels with its publication and becomes the broker's knowledge,
never part of its receive test. The answer brings back what the broker knew. A publication that is not answered in time
may have left at any stamp up to `until`, so from then on the client knows of a frame with that stamp, which is the
safe side: at worst somebody waits for it in vain until its deadline.
"""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.causal.config import ENTRIES_MAX, PAYLOAD_BYTES_MAX
from unisono.protocols.causal.messages import (
    CausalEmitted,
    CausalFrame,
    CausalPublication,
    CausalRefused,
    Key,
    past_of,
    rows_of,
)
from unisono.protocols.causal.order import CausalOrder

FRAME_BYTES = 16 * 1024
"""Events of one frame, about; a larger event has a frame of its own."""
EVENT_OVERHEAD = 128
PUBLICATION_BYTES_MAX = PAYLOAD_BYTES_MAX + 4096
GONE = "gone"


def bytes_of(event: Event) -> int:
    """What an event takes in a frame, at most."""
    size = len(event.payload) + len(event.topic) + 4 * len(event.publisher) + EVENT_OVERHEAD
    if event.attributes:
        size += sum(4 * len(name) + 4 * len(str(value)) + 16 for name, value in event.attributes.items())
    return size


class UnsentEvent(Struct, frozen=True):
    """What somebody wants published; `lasts` is its own deadline in ticks from its birth, 0 for none."""

    request: int
    event: Event
    lasts: int
    since: int


class CausalAuthor:
    """The publishing half of a client. It is told of brokers by their incarnations."""

    def __init__(
        self, me: Address, order: CausalOrder, groups_of: Callable[[str], tuple[int, ...]], first: int = 0
    ) -> None:
        """`first`: publications are numbered after it, so that nobody takes the answer to an earlier life for his
        own."""
        self._me, self._order, self._config = me, order, order.config
        self._groups_of = groups_of
        self._queue: deque[UnsentEvent] = deque()
        self._issued = first
        self.broker: int | None = None
        """The incarnation that publications go to; None: nobody at present."""
        self.open: CausalPublication | None = None
        self.requests: tuple[int, ...] = ()
        """What is under way was asked for by these names."""

    def __len__(self) -> int:
        return len(self._queue) + len(self.requests)

    def put(self, request: int, event: Event, lasts: int = 0, clock: int = 0) -> None:
        self._queue.append(UnsentEvent(request, event, lasts, clock))

    def stale(self, clock: int) -> tuple[int, ...]:
        """Requests that have waited for longer than an unanswered publication before them can take; they are
        dropped."""
        requests = []
        while self._queue and clock > self._queue[0].since + self._config.queue_ticks:
            requests.append(self._queue.popleft().request)
        return tuple(requests)

    def next(self, clock: int) -> CausalPublication | None:
        """The next publication, if nothing is under way: events in a row that share a deadline of their own, or
        none."""
        if self.open is not None or self.broker is None or not self._queue:
            return None
        clock = self._order.read_clock(clock)
        batch = [self._queue.popleft()]
        size = bytes_of(batch[0].event)
        while self._queue and self._queue[0].lasts == batch[0].lasts:
            size += bytes_of(self._queue[0].event)
            if size > FRAME_BYTES:
                break
            batch.append(self._queue.popleft())
        self._issued += 1
        self.requests = tuple(wanted.request for wanted in batch)
        order = self._order
        self.open = CausalPublication(
            self._me,
            self.broker,
            self._issued,
            tuple(sorted({group for wanted in batch for group in self._groups_of(wanted.event.topic)})),
            tuple(wanted.event for wanted in batch),
            # By stamps, not by the clock: a clock that is ahead must not make us forget what others still wait for.
            rows_of(order.past_at(order.high + 1)),
            order.high,
            max(clock, order.high) + self._config.publish_ticks,
            self._deadline(batch),
        )
        return self.open

    def _deadline(self, batch: list[UnsentEvent]) -> int:
        if not batch[0].lasts:
            return 0
        # The end of that tick is no later than so long after its birth.
        return min(wanted.event.born_at // self._config.tick_us + wanted.lasts - 1 for wanted in batch)

    @property
    def overdue_at(self) -> int | None:
        """When what is under way cannot be emitted any more, whatever the broker's clock says within eps."""
        return self.open.until + self._config.eps_ticks + 1 if self.open is not None else None

    def emitted(self, message: CausalEmitted) -> tuple[int, ...]:
        """The requests that were emitted; none if the answer is to something older."""
        if self.open is None or message.request != self.open.request:
            return ()
        self._order.learn(past_of(message.past), message.high)
        return self._done()

    def refused(self, message: CausalRefused) -> tuple[int, ...]:
        if self.open is None or message.request != self.open.request or message.gone:
            return ()
        return self._done()

    def has_lost(self, message: CausalRefused) -> bool:
        """What is under way was meant for an earlier life of the broker, which may have emitted it before it ended:
        that is no refusal, it has to be given up."""
        return self.open is not None and message.request == self.open.request and message.gone

    def give_up(self) -> tuple[int, ...]:
        """Nobody answered: it may have left at any stamp up to `until`."""
        if self.open is None:
            return ()
        until = self.open.until
        longest = max(until + self._config.life_ticks, self.open.deadline)
        unknown: dict[Key, tuple[int, int]] = {(self.open.broker, g): (until, longest) for g in self.open.groups}
        self._order.learn(unknown, until)
        return self._done()

    def _done(self) -> tuple[int, ...]:
        requests, self.requests, self.open = self.requests, (), None
        return requests


class CausalEmitter:
    """The publishing half of a broker: what is published in a tick leaves as one frame per deadline."""

    def __init__(self, order: CausalOrder) -> None:
        assert order.me is not None
        self._order, self._config, self.me = order, order.config, order.me
        self._queue: list[CausalPublication] = []
        self._last = -1  # tick of the last emission
        self._heard: dict[Address, tuple[int, int]] = {}  # of each client: its last, and until when that could leave
        self._swept = -1

    def __len__(self) -> int:
        return len(self._queue)

    def ask(self, publication: CausalPublication, clock: int, wrong: str | None = None) -> CausalRefused | None:
        """Takes a publication, or says why not (`wrong`, if the caller knows). One that comes again is left alone: it
        has its answer, or will have it."""
        last = self._heard.get(publication.client)
        if last is not None and publication.request <= last[0]:
            return None
        clock = self._order.read_clock(clock)
        reason = wrong if wrong is not None else self._why_not(publication, clock)
        self._remember(publication, clock)  # also what is refused: that is an outcome, and holds if it comes again
        if reason is not None:
            return CausalRefused(publication.client, publication.request, reason, reason.endswith(GONE))
        self._queue.append(publication)
        return None

    def _remember(self, publication: CausalPublication, clock: int) -> None:
        if len(self._heard) >= self._config.waiting_max and clock > self._swept:
            self._swept = clock
            over = clock - self._config.delay_ticks
            self._heard = {client: last for client, last in self._heard.items() if last[1] >= over}
        latest = clock + 2 * self._config.eps_ticks + self._config.publish_ticks
        self._heard[publication.client] = publication.request, min(publication.until, latest)

    def _why_not(self, publication: CausalPublication, clock: int) -> str | None:
        config = self._config
        if publication.broker != self.me:
            return f"it was meant for incarnation {publication.broker} of this broker, which is {GONE}"
        if len(self._queue) >= config.waiting_max:
            return f"{config.waiting_max} publications wait here, which is the most"
        late = clock - publication.until
        if late > 0:
            by = late * config.tick_us // 1000
            return f"by the clock of this broker it was to leave {by} ms ago: is the clock of this client right?"
        ahead = max(publication.high, publication.until - config.publish_ticks) - clock
        # Stamps run ahead of their sender's clock by eps, and that of ours by as much.
        if ahead > 2 * config.eps_ticks + config.publish_ticks:
            return f"it knows of stamps {ahead} ticks ahead: is the clock of this client right?"
        if not publication.groups or not publication.events:
            return "it has no groups or no events"
        size = sum(map(bytes_of, publication.events))
        if size > PUBLICATION_BYTES_MAX:
            return f"its events are {size} bytes in a frame, and {PUBLICATION_BYTES_MAX} fit one"
        return self._why_past_is_wrong(publication)

    def _why_past_is_wrong(self, publication: CausalPublication) -> str | None:
        """What no client can know: it would become our own knowledge, and nobody would take our frames."""
        past = past_of(publication.past)
        if len(past) < len(publication.past):
            return "it names a sender and group twice"
        longest = self._config.deadline_ticks_max
        for (sender, group), (stamp, deadline) in past.items():
            if max(sender, group) >= 2**16 or stamp > publication.high or not 0 <= deadline - stamp <= longest:
                return f"it cannot know of stamp {stamp} with deadline {deadline} of {sender} in group {group}"
        new = sum(key not in self._order.known for key in past)
        if new and len(self._order.known) + new > ENTRIES_MAX:
            return f"{ENTRIES_MAX} senders and groups are known here, which is the most"
        return None

    def emit(self, clock: int) -> tuple[list[CausalFrame], list[CausalEmitted | CausalRefused]]:
        """Frames of what may leave now, not yet given to `receive`, and the answers."""
        clock = self._order.read_clock(clock)
        frames: list[CausalFrame] = []
        answers: list[CausalEmitted | CausalRefused] = []
        if clock <= self._last:
            return frames, answers
        limit = clock + self._config.eps_ticks
        ready = [publication for publication in self._queue if publication.high < limit]
        self._queue = [publication for publication in self._queue if publication.high >= limit]
        for publication in ready:  # never into the receive test: what the client has heard need not have come here
            self._order.learn(past_of(publication.past), publication.high)
        while ready:
            if not self._order.may_send(clock):
                self._queue = ready + self._queue
                break
            stamp = self._order.earliest(clock)
            refused = [(each, reason) for each in ready if (reason := self._why_too_late(each, stamp)) is not None]
            answers += [CausalRefused(each.client, each.request, reason) for each, reason in refused]
            ready = [each for each in ready if not any(each is one for one, _ in refused)]
            if ready:
                batch, ready = self._batch(ready)
                frames.append(self._send(batch, stamp, clock))
                past, high = rows_of(self._order.past_at(stamp)), self._order.high
                answers += [CausalEmitted(each.client, each.request, past, high) for each in batch]
        if frames:
            self._last = clock
        return frames, answers

    def _why_too_late(self, publication: CausalPublication, stamp: int) -> str | None:
        config = self._config
        if stamp > publication.until:
            return "the broker could not emit it in time"
        if publication.deadline and publication.deadline < stamp + config.spread_ticks:
            left = (publication.deadline - stamp) * config.tick_us // 1000
            return f"{left} ms of its deadline are left, and it takes {config.spread_ticks * config.tick_us // 1000} ms"
        if len(self._order.known) > ENTRIES_MAX and len(self._order.past_at(stamp)) > ENTRIES_MAX:
            return f"frames name up to {ENTRIES_MAX} senders and groups, and more are known here"
        if publication.deadline > stamp + config.deadline_ticks_max:
            return f"its deadline is more than {config.deadline_ticks_max * config.tick_us // 1000} ms ahead"
        return None

    def _batch(self, ready: list[CausalPublication]) -> tuple[list[CausalPublication], list[CausalPublication]]:
        """The first, and all that share its deadline, as far as they fit a frame."""
        first, size = ready[0], 0
        batch: list[CausalPublication] = []
        rest: list[CausalPublication] = []
        for publication in ready:
            size += sum(map(bytes_of, publication.events))
            fits = not batch or (size <= FRAME_BYTES and publication.deadline == first.deadline)
            (batch if fits else rest).append(publication)
        return batch, rest

    def _send(self, batch: list[CausalPublication], stamp: int, clock: int) -> CausalFrame:
        groups = tuple(sorted({group for publication in batch for group in publication.groups}))
        deadline = batch[0].deadline or stamp + self._config.life_ticks
        body = tuple(event for publication in batch for event in publication.events)
        return self._order.send(groups, deadline, body, clock)

    def wakes_at(self) -> int | None:
        """The tick at which something may leave."""
        if not self._queue:
            return None
        eps = self._config.eps_ticks
        return max(self._last + 1, max(self._order.high, min(each.high for each in self._queue)) + 1 - eps)
