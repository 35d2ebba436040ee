"""A publisher: numbers what it says, keeps a log, answers who recovers, and serves direct connections.

Everything it publishes goes to its broker, and to the targets it is connected with. It is told `Accepted` once the root
of its region has the item, and keeps every item until then: it refuses rather than forget one. What is asked for and
no longer kept is told as a gap (specs: entourage, sections 0, 6 and 7).
"""

from collections import deque
from itertools import islice

from unisono.machine import Accepted, Deliver, Refused
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import (
    CloseStream,
    DirectAccept,
    DirectBreak,
    DirectConnect,
    DirectDone,
    DirectEnded,
    DirectItem,
    DirectLeave,
    DirectNoStart,
    DirectReady,
    DirectRefuse,
    DirectSaid,
    DirectStart,
    DirectStop,
    OpenStream,
    Recover,
    Reopen,
    ReplayStream,
    RootAck,
    StreamItem,
    UnpruneStream,
)
from unisono.protocols.regions.neighbours import RegionOutbox
from unisono.structures.content import why_not


class DirectSession:
    """One direct connection: connecting, starting, direct, stopping."""

    __slots__ = ("number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "connecting"


class RegionPublisher:
    """The stream of one client; `out` is its machine's."""

    def __init__(self, me: Address, config: RegionsConfig, out: RegionOutbox) -> None:
        self._me, self._config, self._out = me, config, out
        self.broker: Address | None = None
        self.sessions: dict[Address, DirectSession] = {}
        self.last = 0  # number of the last item
        self.acked = 0  # its root has accepted all up to here
        self.copies = 0  # direct items sent so far
        self.refused: list[tuple[Address, str]] = []
        """Targets that did not take a connection or broke it, and why; for whoever chooses them."""
        self._epoch = 0
        self._session = 0
        self._is_open = False
        self._log: deque[StreamItem] = deque()
        self._bytes = 0
        self._gone = 0  # number of the last item that is kept no more
        self._gone_at = 0
        self._forgotten: dict[str, None] = {}  # names that spoke in what is gone
        self._requests: deque[tuple[int, int]] = deque()  # item number, request

    # -- publishing

    def publish(self, event: Event, request: int) -> None:
        refusal = why_not(event, self._config.limits)
        if refusal is None and len(self._log) >= self._config.log_max and self._log[0].number > self.acked:
            refusal = f"{event.id}: {len(self._log)} items wait for their root to accept them, which is the most"
        if refusal is None and self._bytes + len(event.payload) > self._config.log_bytes_max and self.last > self.acked:
            refusal = f"{event.id}: {self._bytes} bytes wait for their root to accept them"
        if refusal is not None:
            self._out.add(Deliver(Refused(request, refusal)))
            return
        self._begin()
        self._requests.append((self.last + 1, request))
        self._say(event, None)

    def _begin(self) -> None:
        """The stream is opened with the first item: who only subscribes has none."""
        if not self._is_open:
            self._is_open = True
            self._open(1)

    def _say(self, event: Event | None, scope: Filter | None) -> None:
        self.last += 1
        item = StreamItem(self._me, self._me, self.last, self._out.now, event, scope)
        self._log.append(item)
        self._bytes += len(event.payload) if event is not None else 0
        while len(self._log) > self._config.log_max or self._bytes > self._config.log_bytes_max:
            if not self._drop_oldest():
                break
        if self.broker is not None:
            self._out.send(self.broker, item)
        for target, session in self.sessions.items():
            if session.state != "connecting":
                self.copies += 1
                self._out.send(target, DirectItem(self._me, self._me, session.number, item))

    def _drop_oldest(self) -> bool:
        if not self._log or self._log[0].number > self.acked:
            return False
        gone = self._log.popleft()
        self._gone, self._gone_at = gone.number, gone.at
        if gone.event is not None:
            self._bytes -= len(gone.event.payload)
            self._forgotten[gone.event.publisher] = None
        return True

    def leave(self) -> None:
        """Says goodbye; whoever has heard everything needs no notice."""
        if self._is_open and self.broker is not None:
            self._out.send(self.broker, CloseStream(self._me, self._me, self._epoch, self.last, left=True))

    # -- the overlay

    def link_up(self, broker: Address) -> None:
        self.broker = broker
        self._open(1)

    def link_lost(self) -> None:
        self.broker = None

    def _open(self, step: int) -> None:
        if self._is_open and self.broker is not None:
            self._epoch += step
            self._out.send(self.broker, OpenStream(self._me, self._me, self._epoch, self.acked, self.last))

    def on_reopen(self, _: Reopen) -> None:
        self._open(1)

    def on_unprune(self, _: UnpruneStream) -> None:
        self._open(0)

    def on_root_ack(self, m: RootAck) -> None:
        self.acked = max(self.acked, min(m.number, self.last))
        while self._requests and self._requests[0][0] <= self.acked:
            self._out.add(Deliver(Accepted(self._requests.popleft()[1])))

    def on_recover(self, m: Recover) -> None:
        """All that is kept of what is asked for; from then on everything passes the links behind this answer."""
        direct = m.source != self.broker
        if direct and m.source not in self.sessions:
            return
        base = self.last if m.base is None else m.base
        wanted = [i for i in self._after(m.last) if m.since is None or i.number > base or i.at >= m.since]
        gone = 0
        if m.last < self._gone and (m.since is None or base < self._gone or self._gone_at >= m.since):
            gone = self._gone
        names = tuple(self._forgotten) if gone else ()
        size = self._config.replay_max
        parts = [tuple(wanted[i : i + size]) for i in range(0, len(wanted), size)] or [()]
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            self._out.send(
                m.source,
                ReplayStream(
                    self._me, self._me, m.token, part, self.last, is_last, gone if not place else 0, names, m.way
                ),
            )

    def _after(self, number: int) -> list[StreamItem]:
        return list(islice(self._log, max(0, number - self._gone), None))

    # -- direct connections

    def connect(self, target: Address) -> None:
        if target not in self.sessions:
            self._begin()
            self._session += 1
            self.sessions[target] = DirectSession(self._session)
            self._out.send(target, DirectConnect(self._me, self._me, self._session))
            self._out.wake(f"session {target}", self._config.connect_us)

    def disconnect(self, target: Address) -> None:
        session = self.sessions.get(target)
        if session is not None and session.state == "direct":
            session.state = "stopping"
            self._out.send(target, DirectLeave(self._me, self._me, session.number))
            self._out.wake(f"session {target}", self._config.connect_us)

    def on_direct(self, m: DirectSaid, scope: Filter) -> None:
        """What a target says; `scope` is what is advertised, for the mark that shows it where the overlay has come."""
        session = self.sessions.get(m.source)
        is_mine = session is not None and session.number == m.session
        match m:
            case DirectAccept() if session is not None and is_mine and session.state == "connecting":
                self._start(m.source, session, scope)
            case DirectDone() if session is not None and is_mine:
                if session.state == "starting":
                    session.state = "direct"
                    self._out.sleep(f"session {m.source}")
            case DirectAccept() | DirectDone():
                self._out.send(m.source, DirectBreak(self._me, self._me, m.session))
            case DirectReady(token=token) if session is not None and is_mine and session.state == "stopping":
                session.state = "stopped"
                stop = DirectStop(self._me, self._me, m.session, self.last + 1, token)
                self._out.send(m.source, stop)
                del self.sessions[m.source]
                self._out.sleep(f"session {m.source}")
            case DirectRefuse(reason=reason) if is_mine:
                self._drop(m.source, reason or "refused")
            case DirectNoStart() if is_mine:
                self._drop(m.source, "the start came too late")
            case DirectBreak() if is_mine:
                self._drop(m.source, "broken by the target")
            case DirectEnded() if is_mine:
                self._drop(m.source, "")
            case _:
                pass

    def _start(self, target: Address, session: DirectSession, scope: Filter) -> None:
        """A mark on the overlay shows the target when it has everything that is not sent directly."""
        self._say(None, scope)
        session.state = "starting"
        self._out.send(target, DirectStart(self._me, self._me, session.number, self.last + 1))
        self._out.wake(f"session {target}", self._config.connect_us)

    def direct_lost(self, target: Address) -> None:
        if target in self.sessions:
            self._drop(target, "the connection was lost")

    def session_fired(self, target: Address) -> None:
        """Connecting or stopping has taken too long."""
        session = self.sessions.get(target)
        if session is not None and session.state != "direct":
            self._out.send(target, DirectBreak(self._me, self._me, session.number))
            self._drop(target, "no answer in time")

    def break_off(self, target: Address) -> None:
        session = self.sessions.get(target)
        if session is not None:
            self._out.send(target, DirectBreak(self._me, self._me, session.number))
            self._drop(target, "")

    def _drop(self, target: Address, reason: str) -> None:
        del self.sessions[target]
        self._out.sleep(f"session {target}")
        if reason:
            self.refused.append((target, reason))

    @property
    def unconfirmed(self) -> list[int]:
        """Requests without an outcome."""
        return [request for _, request in self._requests]

    def rate(self, now: Micros, over: int) -> tuple[float, float]:
        """Events per second and bytes per event, of what is kept of the last while; of less, if that is all."""
        recent = [i for i in self._log if i.event is not None and i.at > now - over]
        if len(recent) < 2:
            return 0.0, 0.0
        size = sum(len(i.event.payload) + 64 for i in recent if i.event is not None) / len(recent)
        return len(recent) * 1_000_000 / max(1, now - recent[0].at), size
