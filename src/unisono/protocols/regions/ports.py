"""Streams as one node knows them: the slim port, which takes a stream from the overlay or directly, never a hole.

Every node has a port per stream. It accepts items in the order of their numbers, once, and passes each on to whoever is
fed; what lies between the last accepted item and the first of a new source is asked of the publisher itself (specs:
entourage, sections 0, 6 and 7). Modes:

    O  taken from the overlay       R   asking the publisher, then O     U  waits for a source to open
    W  told of a direct start       RD  asking the publisher, then D     D  taken directly
    V  taken directly, while the overlay's stream is opened again and buffered

Invariant: what a port has accepted is everything its node was owed up to `last`. Every rule below keeps that.
"""

from typing import Literal

from unisono.model.ids import Address
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
    PruneStream,
    Recover,
    RegionSaid,
    Reopen,
    ReplayStream,
    RootAck,
    StreamGap,
    StreamItem,
    StreamSaid,
    UnpruneStream,
)
from unisono.protocols.regions.neighbours import RegionAround, RegionOutbox
from unisono.protocols.regions.streams import DIRECT, PortCounters, StreamEars, StreamPort, Tombstones

HOPS_MAX = 64
"""A question that has passed so many brokers goes round in a circle."""


class StreamPorts:
    """All ports of one node; `since` is when it was first fed."""

    def __init__(
        self, me: Address, config: RegionsConfig, around: RegionAround, out: RegionOutbox, ears: StreamEars
    ) -> None:
        self._me, self._config, self._around, self._out, self._ears = me, config, around, out, ears
        self.ports: dict[Address, StreamPort] = {}
        self.since: Micros | None = None
        self.willing = True
        self.counters = PortCounters()
        self._tombstones = Tombstones(config)
        self._unacked: dict[Address, None] = {}

    def handle(self, message: StreamSaid) -> bool:
        """Whether it was about a stream as such; all parts of a port's life are here."""
        match message:
            case OpenStream():
                self._on_open(message)
            case StreamItem() | StreamGap():
                self._on_item(message)
            case CloseStream():
                self._on_close(message)
            case RootAck(stream=stream, number=number):
                self._on_root_ack(message.source, stream, number)
            case PruneStream(source=source, stream=stream, session=session):
                port = self.ports.get(stream)
                if port is not None and source in port.opened:
                    port.pruned[source] = session
            case UnpruneStream():
                self._on_unprune(message)
            case Recover():
                self._on_recover(message)
            case ReplayStream():
                self._on_replay(message)
            case DirectSaid():
                return self._on_direct(message)
            case _:
                return False
        return True

    def fired(self, what: str, stream: Address) -> None:
        port = self.ports.get(stream)
        if port is None:
            return
        match what, port.mode:
            case "ask", "U":
                self._ask(port)
            case "again", "R" | "RD":
                self._recover(port, "O" if port.mode == "R" else "D")
            case "gone", "U" | "R" if port.final is None:
                self._drop(port, port.last or 0, False, ())
            case "left", _:
                self._drop(port, port.final or 0, True, ())
            case "wait", "W":
                if port.first is None:
                    self._out.send(self._dialer(port), DirectNoStart(self._me, stream, port.session))
                    self._end_session(port)
                    port.mode, port.buffer = "O", []
                else:
                    self._recover(port, "D")
            case _:
                pass

    # -- links

    def activate(self, peer: Address) -> None:
        """From now on it is fed: everything that is known is opened to it, before it is told that it is attached."""
        is_above = not self._around.is_below(peer)
        for port in self.ports.values():
            if port.last is not None and (port.below or not is_above) and self._may_feed(port, peer):
                self._open_to(port, peer)

    def link_lost(self, peer: Address) -> None:
        for port in list(self.ports.values()):
            port.opened.pop(peer, None)
            port.pruned.pop(peer, None)
            if port.src == peer:
                port.src = None
                self._lose_source(port)

    def _lose_source(self, port: StreamPort) -> None:
        match port.mode:
            case "O" | "R" | "U":
                self._wait_for_source(port)
            case "W" if port.first is not None:
                self._recover(port, "D")
            case "W":
                self._out.send(self._dialer(port), DirectNoStart(self._me, port.stream, port.session))
                self._end_session(port)
                self._wait_for_source(port)
            case "V":
                port.buffer, port.is_ready = [], False
            case _:
                pass

    def direct_lost(self, peer: Address) -> None:
        for port in list(self.ports.values()):
            if port.dialer == peer and port.mode in DIRECT:
                self._end_session(port)
                self._wait_for_source(port)

    def sessions(self) -> int:
        return sum(1 for port in self.ports.values() if port.mode in DIRECT)

    @property
    def takes_direct(self) -> bool:
        """Whether there is room for one direct connection more, and the will."""
        return self.willing and self.sessions() < self._config.sessions_max

    def reopen(self, stream: Address) -> None:
        """There is a new link above us, or above one that is: the publisher opens a path of a new epoch."""
        port = self.ports.get(stream)
        if port is not None and port.below and port.src is not None:
            self._out.send(port.src, Reopen(self._me, stream))

    def replay_directly(self, message: RegionSaid) -> bool:
        """Takes the answer of a publisher that is connected directly, if it is one."""
        if not isinstance(message, ReplayStream) or message.way or message.source != message.stream:
            return False
        port = self.ports.get(message.stream)
        if port is None or port.dialer != message.source:
            return False
        self._on_replay(message)
        return True

    # -- where a stream comes from

    def _on_open(self, m: OpenStream) -> None:
        below = self._around.is_below(m.source)
        port = self.ports.get(m.stream)
        if port is None:
            if len(self.ports) >= self._config.streams_max:
                self._out.refuse(f"{m.stream}: {self._config.streams_max} streams are the most", "streams")
                return
            port = self.ports[m.stream] = self._tombstones.revived(m.stream, self._out.now)
        if m.epoch < port.epoch and port.src is not None:
            self._answer(port, m.source)  # of an earlier path, and there is a later one
            return
        if m.epoch == port.epoch and port.below and not below and port.src is not None:
            self._answer(port, m.source)  # an echo: it lives below us, and who is above shall know
            return
        is_same = m.source == port.src
        if m.epoch > port.epoch:
            for peer in self._around.above():
                port.opened.pop(peer, None)  # a new epoch goes all the way up, and to all other roots
        port.epoch, port.src = max(port.epoch, m.epoch), m.source
        if port.below and not below:
            for peer in self._around.above():
                port.opened.pop(peer, None)
        port.below = below
        if not (below and self._around.is_client(m.source)):
            port.opened.pop(m.source, None)
        if below:
            port.acked = max(port.acked, m.base)
        is_first = port.last is None
        is_new = is_first and self._begin(port, m)
        self._open_to_all(port, is_new)
        if not (is_first and port.mode == "O"):
            self._go_on(port, m, is_same)
        if below and self._around.is_root:
            self._unacked[port.stream] = None

    def _begin(self, port: StreamPort, m: OpenStream) -> bool:
        """The first we hear of it; whether everything from its first item on will pass us.

        Whoever was fed before may be owed what is older than this link, and what others were not interested in.
        """
        if m.is_new or (port.below and not m.base):
            port.last = 0
            port.mode = "O" if m.is_new else "U"
            return True
        if self.since is None:
            port.last = m.base
            port.mode = "U" if port.below else "O"
            return False
        port.last = 0
        port.floor = (self.since - self._config.skew_us, m.base if port.below else None)
        return False

    def _go_on(self, port: StreamPort, m: OpenStream, is_same: bool) -> None:
        if port.below and port.mode in DIRECT:
            self._break(port)
            self._wait_for_source(port)
        match port.mode:
            case "U":
                self._resume(port, m.now if port.below or is_same else None)
            case "O" | "R" if not is_same:
                self._resume(port, m.now if port.below else None)
            case "W" if not is_same and port.first is not None:
                self._recover(port, "D")
            case "W" if not is_same:
                self._break(port)
                self._wait_for_source(port)
            case "V" if not (is_same and port.is_ready):
                port.buffer, port.is_ready = [], True
                port.token += 1
                self._out.send(self._dialer(port), DirectReady(self._me, port.stream, port.session, port.token))
            case "D":
                self._prune(port)
            case _:
                pass

    def _resume(self, port: StreamPort, now: int | None) -> None:
        """The source feeds us from `now` on; if we have not come so far, the publisher has what is missing.

        None: from a source above that was not fed what we want, so nobody but the publisher knows.
        """
        assert port.last is not None
        port.buffer = []
        self._out.sleep(f"ask {port.stream}")
        self._out.sleep(f"gone {port.stream}")
        if port.floor is None and now is not None and now <= port.last:
            self._out.sleep(f"again {port.stream}")
            port.mode = "O"
        else:
            self._recover(port, "O")

    def _wait_for_source(self, port: StreamPort) -> None:
        port.buffer = []
        was_waiting, port.mode = port.mode == "U", "U"
        self._out.sleep(f"again {port.stream}")
        self._ask(port)
        if not was_waiting:
            self._out.wake(f"gone {port.stream}", self._config.gone_us * (1 if port.below else 3))

    def _ask(self, port: StreamPort) -> None:
        asked = [port.src] if port.src is not None else self._around.above()
        for peer in asked:
            self._out.send(peer, UnpruneStream(self._me, port.stream, port.session))
        self._out.wake(f"ask {port.stream}", self._config.ask_us)

    def _on_unprune(self, m: UnpruneStream) -> None:
        port = self.ports.get(m.stream)
        if port is None:
            return
        port.pruned.pop(m.source, None)
        self._answer(port, m.source)

    def _answer(self, port: StreamPort, peer: Address) -> None:
        """Opens the stream to a neighbour that has no source, or an old one, if it can have it from us."""
        link = self._around.links[peer]
        is_above = link.side in ("parent", "peer")
        may = port.below and port.src is not None if is_above else self._may_feed(port, peer)
        if may and link.is_active and port.last is not None:
            self._open_to(port, peer)

    def _may_feed(self, port: StreamPort, peer: Address) -> bool:
        """A stream goes back to where it comes from only if that is a client, which hears what it says itself."""
        return peer != port.src or self._around.is_client(peer)

    def _open_to_all(self, port: StreamPort, is_new: bool) -> None:
        for peer in self._around.fed(port.below):
            if peer not in port.opened and self._may_feed(port, peer):
                self._open_to(port, peer, is_new)

    def _open_to(self, port: StreamPort, peer: Address, is_new: bool = False) -> None:
        assert port.last is not None
        port.pruned.pop(peer, None)
        port.opened[peer] = None
        self.counters.opened += 1
        base = port.acked if self._around.links[peer].side == "parent" else port.last
        # Upwards goes everything, and of a stream that we have not heard from the beginning we have not everything.
        now = max(port.last, port.floor[1] or 0) if port.floor is not None and port.below else port.last
        self._out.send(peer, OpenStream(self._me, port.stream, port.epoch, base, now, is_new))
        if port.is_whole:
            self._say_goodbye(port, peer)

    # -- items

    def _on_item(self, m: StreamItem | StreamGap) -> None:
        port = self.ports.get(m.stream)
        if port is None or port.src != m.source:
            return
        match port.mode:
            case "O":
                self._accept(port, m)
            case "W":
                self._accept(port, m)
                self._cross_over(port)
            case "R":
                self._buffer(port, m)
            case "V" if port.is_ready:
                self._buffer(port, m)
            case _:
                self.counters.dropped += 1

    def _accept(self, port: StreamPort, m: StreamItem | StreamGap) -> None:
        assert port.last is not None
        if isinstance(m, StreamGap):
            if m.last > port.last:
                self._accept_gap(port, max(port.last + 1, m.first), m.last, m.publishers)
            return
        if m.number <= port.last:
            self.counters.dropped += 1
            return
        port.last, port.missed = m.number, 0
        self.counters.accepted += 1
        event = m.event
        if event is not None:
            port.heard[event.publisher] = event.sequence
        around = self._around
        passed = StreamItem(self._me, m.stream, m.number, m.at, event, m.scope)
        for peer in around.wanting(m):
            if peer in port.opened and peer not in port.pruned and (port.below or around.is_below(peer)):
                self._out.send(peer, passed)
        if port.below:
            if around.parent is not None and around.parent in port.opened:
                self._out.send(around.parent, passed)
            if around.is_root:
                self._unacked[m.stream] = None
        if port.final is not None and port.last >= port.final:
            self._pass_goodbye(port)
        self._ears.on_item(m)

    def _accept_gap(self, port: StreamPort, first: int, last: int, publishers: tuple[str, ...]) -> None:
        """Everybody who wants anything is told, before what comes after it; once."""
        if last <= port.missed:
            return
        port.missed = last
        self.counters.gaps += 1
        gap = StreamGap(self._me, port.stream, first, last, publishers)
        for peer in port.opened:
            is_parent = peer == self._around.parent
            may = port.below or self._around.is_below(peer)
            if may and peer not in port.pruned and (is_parent or self._around.wants_something(peer)):
                self._out.send(peer, gap)
        self._ears.on_gap(port, gap)

    def _buffer(self, port: StreamPort, m: StreamItem | StreamGap) -> None:
        if len(port.buffer) < self._config.buffer_max:
            port.buffer.append(m)
        elif port.mode == "R":
            port.buffer = []
            self._recover(port, "O")
        else:
            self._break(port)
            self._wait_for_source(port)

    def _accept_buffered(self, port: StreamPort, upto: int | None = None) -> None:
        for m in port.take(upto):
            self._accept(port, m)

    def flush(self) -> None:
        """What roots have accepted is said once per input."""
        for stream in self._unacked:
            port = self.ports.get(stream)
            if port is not None and port.below and port.src is not None and port.last is not None:
                port.acked = max(port.acked, port.last)
                self._out.send(port.src, RootAck(self._me, stream, port.acked))
        self._unacked = {}

    def _on_root_ack(self, source: Address, stream: Address, number: int) -> None:
        port = self.ports.get(stream)
        if port is None or not port.below or self._around.is_below(source):
            return
        port.acked = max(port.acked, number)
        if port.src is not None:
            self._out.send(port.src, RootAck(self._me, stream, port.acked))

    # -- asking the publisher

    def _recover(self, port: StreamPort, target: Literal["O", "D"]) -> None:
        assert port.last is not None
        self.counters.recoveries += 1
        port.token += 1
        if target == "O" and port.mode != "R":
            self._out.wake(f"gone {port.stream}", 3 * self._config.gone_us)
        port.mode = "R" if target == "O" else "RD"
        since, base = port.floor if port.floor is not None else (None, None)
        asked = Recover(
            self._me, port.stream, port.token, port.last, Micros(since) if since is not None else None, base
        )
        if target == "D":
            self._out.send(self._dialer(port), asked)
        elif port.src is not None:
            self._out.send(port.src, asked)
        self._out.wake_about(f"again {port.stream}", self._config.recover_us)

    def _on_recover(self, m: Recover) -> None:
        """Somebody else asks: on towards the publisher."""
        port = self.ports.get(m.stream)
        if port is None or port.src is None or len(m.way) >= HOPS_MAX:
            return
        if port.src == m.source and not self._around.is_client(m.source):
            return
        asked = Recover(self._me, m.stream, m.token, m.last, m.since, m.base, (*m.way, m.source))
        self._out.send(port.src, asked)

    def _on_replay(self, m: ReplayStream) -> None:
        port = self.ports.get(m.stream)
        if m.way:
            if m.way[-1] in self._around.links:
                passed = ReplayStream(
                    self._me, m.stream, m.token, m.items, m.until, m.is_last, m.gone, m.publishers, m.way[:-1]
                )
                self._out.send(m.way[-1], passed)
            return
        if port is None or m.token != port.token or port.mode not in ("R", "RD") or port.last is None:
            return
        if m.source != (port.src if port.mode == "R" else port.dialer):
            return
        self._miss_up_to(port, m.gone, m.publishers)
        port.buffer += [StreamItem(self._me, m.stream, i.number, i.at, i.event, i.scope) for i in m.items]
        if not m.is_last:
            if m.items:
                self._accept_buffered(port, m.items[-1].number)
            self._out.wake_about(f"again {port.stream}", self._config.recover_us)
            return
        self._accept_buffered(port)
        is_whole, port.last = port.is_whole, max(port.last, m.until)
        if port.is_whole and not is_whole:
            self._pass_goodbye(port)
        if port.below and self._around.is_root:
            self._unacked[m.stream] = None
        port.floor = None
        self._out.sleep(f"again {port.stream}")
        if port.mode == "R":
            port.mode = "O"
            self._out.sleep(f"gone {port.stream}")
        else:
            self._take_directly(port)

    # -- direct connections, as their target

    def _on_direct(self, m: DirectSaid) -> bool:
        port = self.ports.get(m.stream)
        if isinstance(m, DirectConnect):
            self._on_connect(m, port)
            return True
        is_mine = port is not None and port.dialer == m.source and port.session == m.session and port.mode in DIRECT
        match m:
            case DirectStart(first=first):
                if is_mine and port is not None and port.mode == "W" and port.first is None:
                    port.first = first
                    self._cross_over(port)
            case DirectItem(item=item):
                if is_mine and port is not None:
                    self._on_direct_item(port, item)
            case DirectLeave():
                if is_mine and port is not None and port.mode == "D":
                    port.mode, port.buffer, port.is_ready = "V", [], False
                    if port.src is not None:
                        self._out.send(port.src, UnpruneStream(self._me, port.stream, port.session))
            case DirectStop(first=first, token=token):
                if is_mine and port is not None and port.mode == "V":
                    self._on_stop(port, first, token)
                else:
                    self._out.send(m.source, DirectEnded(self._me, m.stream, m.session))
            case DirectBreak():
                if is_mine and port is not None:
                    self._end_session(port)
                    self._wait_for_source(port)
            case _:
                return False
        return True

    def _on_connect(self, m: DirectConnect, port: StreamPort | None) -> None:
        is_fit = port is not None and port.mode == "O" and port.src is not None and not port.below
        if port is not None and is_fit and port.floor is None and self.takes_direct:
            port.mode, port.session, port.dialer = "W", m.session, m.source
            port.first, port.buffer = None, []
            self._out.send(m.source, DirectAccept(self._me, m.stream, m.session))
            self._out.wake(f"wait {m.stream}", self._config.wait_us)
            return
        if port is not None and port.mode in DIRECT and port.dialer == m.source and m.session > port.session:
            # Its end of the old connection is lost, and ours is not yet.
            self._end_session(port)
            self._wait_for_source(port)
        if self.willing and not self.takes_direct:
            self._out.refuse(f"{m.source}: {self._config.sessions_max} direct connections are the most", "sessions")
        reason = "not settled on the overlay" if self.takes_direct else "not willing"
        self._out.send(m.source, DirectRefuse(self._me, m.stream, m.session, reason))

    def _on_direct_item(self, port: StreamPort, item: StreamItem) -> None:
        if port.mode in ("D", "V"):
            self._accept(port, item)
        else:
            self._buffer(port, item)

    def _cross_over(self, port: StreamPort) -> None:
        """The overlay has brought everything before the direct start."""
        if port.mode == "W" and port.first is not None and port.last is not None and port.last >= port.first - 1:
            self._take_directly(port)

    def _take_directly(self, port: StreamPort) -> None:
        port.mode = "D"
        self.counters.handovers += 1
        self._out.sleep(f"wait {port.stream}")
        self._accept_buffered(port)
        self._out.send(self._dialer(port), DirectDone(self._me, port.stream, port.session))
        self._prune(port)

    def _prune(self, port: StreamPort) -> None:
        if port.src is not None:
            self._out.send(port.src, PruneStream(self._me, port.stream, port.session))

    def _on_stop(self, port: StreamPort, first: int, token: int) -> None:
        assert port.last is not None
        port.last = max(port.last, first - 1)
        self._out.send(self._dialer(port), DirectEnded(self._me, port.stream, port.session))
        is_good = port.is_ready and token == port.token and port.src is not None
        self._end_session(port)
        if is_good:
            port.mode = "O"
            self._accept_buffered(port)
        else:
            self._wait_for_source(port)

    def _break(self, port: StreamPort) -> None:
        self._out.send(self._dialer(port), DirectBreak(self._me, port.stream, port.session))
        self._end_session(port)

    def _end_session(self, port: StreamPort) -> None:
        self._out.sleep(f"wait {port.stream}")
        self._out.sleep(f"again {port.stream}")
        port.dialer, port.first, port.is_ready = None, None, False

    def _dialer(self, port: StreamPort) -> Address:
        assert port.dialer is not None
        return port.dialer

    # -- the end of a stream

    def _on_close(self, m: CloseStream) -> None:
        port = self.ports.get(m.stream)
        if port is None or m.epoch < port.epoch or port.src not in (None, m.source):
            return
        if port.final is not None:
            return  # it has said goodbye before
        if m.left:
            self._linger(port, m)
        else:
            self._drop(port, m.last, False, m.publishers)

    def _linger(self, port: StreamPort, m: CloseStream) -> None:
        """Its publisher has left. It is kept for a while: who loses what is under way hears of it on its next path."""
        port.final = m.last
        for name in m.publishers:
            port.heard.setdefault(name, 0)
        if port.mode == "O" and port.last is not None:
            port.last = max(port.last, m.last)  # the last thing on a link that was fed without a hole
        if port.is_whole:
            self._pass_goodbye(port)
        self._out.sleep(f"gone {port.stream}")
        self._out.wake(f"left {port.stream}", self._config.gone_us)

    def _pass_goodbye(self, port: StreamPort) -> None:
        """Only whoever has everything may say so: those who hear it from us believe that they have, too."""
        for peer in port.opened:
            if port.below or self._around.is_below(peer):
                self._say_goodbye(port, peer)

    def _say_goodbye(self, port: StreamPort, peer: Address) -> None:
        assert port.final is not None
        names = tuple(port.heard)
        self._out.send(peer, CloseStream(self._me, port.stream, port.epoch, port.final, True, names))

    def _drop(self, port: StreamPort, last: int, left: bool, publishers: tuple[str, ...]) -> None:
        names = tuple(dict.fromkeys([*port.heard, *publishers]))
        is_told = port.is_whole
        if port.mode in DIRECT:
            self._break(port)
        if port.last is not None:
            if port.mode != "O":
                waiting = [m.number for m in port.buffer if isinstance(m, StreamItem)]
                self._miss_up_to(port, max([last, *waiting]), names)
            last = max(last, port.last)
        for peer in port.opened:
            if not is_told and (port.below or self._around.is_below(peer)):
                self._out.send(peer, CloseStream(self._me, port.stream, port.epoch, last, left, names))
        self._ears.on_gone(port, left)
        for what in ("ask", "again", "gone", "left", "wait"):
            self._out.sleep(f"{what} {port.stream}")
        del self.ports[port.stream]
        self._unacked.pop(port.stream, None)
        if port.last is not None:
            self._tombstones.remember(port, self._out.now)

    def _miss_up_to(self, port: StreamPort, last: int, publishers: tuple[str, ...]) -> None:
        """Nobody can be asked for what comes up to there; what waits of it is taken in its place, and what lies before
        and after that is told each on its own: a notice holds until its publisher is heard again."""
        assert port.last is not None
        if last > port.last:
            first = min((m.number for m in port.buffer if isinstance(m, StreamItem)), default=last + 1)
            if min(first - 1, last) > port.last:
                self._accept_gap(port, port.last + 1, min(first - 1, last), publishers)
            self._accept_buffered(port, last)
            if last > port.last:
                self._accept_gap(port, port.last + 1, last, publishers)
