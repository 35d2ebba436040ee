"""COUNT at a broker: who below wants how much of what a publisher publishes (specs: entourage, sections 0, 3 and 4).

A broker decides before it asks anybody: it refuses, has nobody, is the last that is close enough, or asks all brokers
below that want anything. Every round it takes is answered exactly once: when all have answered, when one refuses, is
lost or is late. Nothing that is delivered depends on the answer (I5), only how fast.
"""

from msgspec import structs

from unisono.model.ids import Address
from unisono.protocols.regions.closeness import closeness
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.graph import NOBODY, REFUSED, combine, truncate
from unisono.protocols.regions.interests import RegionInterests
from unisono.protocols.regions.messages import (
    CountEntourage,
    CountReply,
    CountRound,
    EntourageTold,
    GraphEntry,
    GraphReport,
    StirEntourage,
)
from unisono.protocols.regions.neighbours import RegionAround, RegionOutbox
from unisono.protocols.regions.ports import StreamPorts


class EntourageRound:
    """One round of one publisher at one broker."""

    __slots__ = ("asked", "got", "is_done", "is_path", "pending", "report", "requester", "started_at")

    def __init__(self, asked: CountRound, requester: Address, is_path: bool, started_at: int) -> None:
        self.asked, self.requester, self.started_at = asked, requester, started_at
        self.is_path = is_path  # the publisher is below us: we cannot be its target
        self.pending: dict[Address, None] = {}
        self.got: dict[Address, GraphReport] = {}
        self.is_done = False
        self.report = NOBODY


class Discovery:
    """The rounds of one broker, the newest of each publisher."""

    def __init__(
        self,
        me: Address,
        config: RegionsConfig,
        around: RegionAround,
        ports: StreamPorts,
        interests: RegionInterests,
        out: RegionOutbox,
    ) -> None:
        self._me, self._config, self._around = me, config, around
        self._ports, self._interests, self._out = ports, interests, out
        self.rounds: dict[Address, EntourageRound] = {}
        self._asked_at: dict[Address, int] = {}
        self.told: dict[Address, EntourageTold] = {}

    # -- COUNT

    def on_count(self, m: CountEntourage) -> None:
        if m.is_climbing:
            self._climb(m)
            return
        if self._around.is_below(m.source):
            self._out.refuse(f"{m.source} is below, and asks like one above")
            return
        self._count(m)

    def _climb(self, m: CountEntourage) -> None:
        """On its way to the publisher's root; which asks itself and all other roots."""
        if not self._around.is_below(m.source):
            self._out.refuse(f"{m.source} is above, and lets a question climb")
            return
        if self._around.is_client(m.source):
            last = self._asked_at.get(m.stream)
            if last is not None and self._out.now - last < self._config.count_gap_us // 2:
                self._out.refuse(f"{m.stream} counts more often than every {self._config.count_gap_us} us", "flood")
                return
            self._asked_at[m.stream] = self._out.now
        if not self._around.is_root:
            if self._around.parent is not None:
                self._out.send(self._around.parent, structs.replace(m, source=self._me))
            return
        budget_us = min(m.budget_us, self._config.budget_us)
        down = CountEntourage(self._me, m.stream, m.round, budget_us)
        for peer, link in self._around.links.items():
            if link.side == "peer":
                self._out.send(peer, down)
        self._count(down)

    def _count(self, m: CountEntourage) -> None:
        known = self.rounds.get(m.stream)
        if known is not None and m.round.number < known.asked.number:
            return
        if known is not None and m.round.number == known.asked.number:
            if known.is_done:
                self._reply(m.stream, known)
            return
        port = self._ports.ports.get(m.stream)
        is_path = port is not None and port.below
        found = EntourageRound(m.round, m.source, is_path, self._out.now)
        if known is None and len(self.rounds) >= self._config.rounds_max:
            found.report = REFUSED
            self._out.refuse(f"{len(self.rounds)} rounds at once", "flood")
            self._reply(m.stream, found)
            return
        self.rounds[m.stream] = found
        self._out.wake(f"round {m.stream}", m.budget_us)
        if not self._ports.takes_direct and not is_path:
            self._finish(m.stream, found, REFUSED)
            return
        if is_path:
            self._ask_beside(m, found, port.src if port is not None else None)
        elif self._around.is_root and closeness(self._interests.wanted, m.round) < m.round.closeness:
            self._finish(m.stream, found, NOBODY)
        else:
            self._ask_below(m, found)

    def _ask_below(self, m: CountEntourage, found: EntourageRound) -> None:
        match_of = self._matches(m.round)
        below = {peer: match for peer, match in match_of.items() if match > 0}
        if not below:
            self._finish(m.stream, found, NOBODY)
            return
        if any(match < m.round.closeness for match in below.values()):
            self._finish(m.stream, found, self._alone())
            return
        clients = [peer for peer in below if self._around.is_client(peer)]
        if any(not self._around.links[peer].accepts_direct for peer in clients):
            self._finish(m.stream, found, self._alone())
            return
        found.got = {peer: _subscriber(peer) for peer in clients}
        self._ask(m, found, [peer for peer in below if not self._around.is_client(peer)])

    def _ask_beside(self, m: CountEntourage, found: EntourageRound, towards: Address | None) -> None:
        """The publisher is below: whoever is close enough beside the path to it, each on its own."""
        match_of = self._matches(m.round)
        close = [peer for peer, match in match_of.items() if match > 0 and match >= m.round.closeness]
        found.got = {
            peer: _subscriber(peer)
            for peer in close
            if self._around.is_client(peer) and self._around.links[peer].accepts_direct and peer != m.stream
        }
        brokers = [peer for peer in close if not self._around.is_client(peer) and peer != towards]
        if towards is not None and not self._around.is_client(towards):
            brokers.append(towards)
        self._ask(m, found, brokers)

    def _ask(self, m: CountEntourage, found: EntourageRound, brokers: list[Address]) -> None:
        found.pending = dict.fromkeys(brokers)
        for peer in brokers:
            self._out.send(peer, CountEntourage(self._me, m.stream, m.round, m.budget_us * 4 // 5))
        self._check(m.stream, found)

    def _matches(self, asked: CountRound) -> dict[Address, float]:
        links = self._around.links.items()
        below = {peer: link.wanted for peer, link in links if link.side in ("broker", "client") and link.is_active}
        return {peer: closeness(wanted, asked) for peer, wanted in below.items()}

    def _alone(self) -> GraphReport:
        """Nobody below is to be connected to, but we are."""
        tally = self._interests.tally()
        return GraphReport((GraphEntry(self._me, 0, tally.subscribers, tally.hops, tally.brokers),))

    # -- COUNTREPLY

    def on_reply(self, m: CountReply) -> None:
        if m.root is not None:
            self._pass_down(m)
            return
        found = self.rounds.get(m.stream)
        if found is None or found.is_done or m.number != found.asked.number or m.source not in found.pending:
            return
        del found.pending[m.source]
        found.got[m.source] = m.report
        self._check(m.stream, found)

    def _pass_down(self, m: CountReply) -> None:
        """A root's answer, on its way to the publisher."""
        port = self._ports.ports.get(m.stream)
        if port is not None and port.below and port.src is not None and not self._around.is_below(m.source):
            self._out.send(port.src, structs.replace(m, source=self._me))

    def fired(self, stream: Address) -> None:
        """Whoever has not answered is taken to refuse; much later the round is forgotten."""
        found = self.rounds.get(stream)
        if found is None:
            return
        if found.is_done:
            del self.rounds[stream]
            return
        for peer in found.pending:
            found.got[peer] = REFUSED
        found.pending = {}
        self._check(stream, found)

    def on_told(self, m: EntourageTold) -> None:
        """Only a client tells, of itself, and while it is connected here."""
        if self._around.is_client(m.source):
            self.told[m.source] = m

    def link_lost(self, peer: Address) -> None:
        self.told.pop(peer, None)
        for stream, found in list(self.rounds.items()):
            if not found.is_done and peer in found.pending:
                del found.pending[peer]
                found.got[peer] = REFUSED
                self._check(stream, found)

    def forget(self, stream: Address) -> None:
        """The publisher has gone."""
        self.rounds.pop(stream, None)
        self._asked_at.pop(stream, None)

    def _check(self, stream: Address, found: EntourageRound) -> None:
        if found.is_done:
            return
        if not found.is_path and any(report.is_refused for report in found.got.values()):
            self._finish(stream, found, self._alone())
        elif not found.pending:
            if found.is_path:
                entries = [e for report in found.got.values() if not report.is_refused for e in report.entries]
                self._finish(stream, found, GraphReport(tuple(entries)))
            else:
                self._finish(stream, found, combine(self._me, found.got.values()))

    def _finish(self, stream: Address, found: EntourageRound, report: GraphReport) -> None:
        found.is_done, found.report = True, truncate(report, self._config.entries_max)
        found.got, found.pending = {}, {}
        self._out.wake(f"round {stream}", 2 * self._config.budget_us)
        self._reply(stream, found)

    def _reply(self, stream: Address, found: EntourageRound) -> None:
        number, is_root = found.asked.number, self._around.is_root
        report = found.report
        if not is_root:
            self._send(found.requester, CountReply(self._me, stream, number, report))
            return
        answer = CountReply(
            self._me, stream, number, NOBODY if report.is_refused else report, self._me, self._interests.tally()
        )
        port = self._ports.ports.get(stream)
        if found.requester != self._me:
            self._send(found.requester, answer)
        elif port is not None and port.below and port.src is not None:
            self._out.send(port.src, answer)

    def _send(self, to: Address, message: CountReply) -> None:
        if to in self._around.links:
            self._out.send(to, message)

    # -- churn

    def stirred(self) -> None:
        """Somebody came or went below: publishers that are connected to us directly count again."""
        for port in self._ports.ports.values():
            if port.mode == "D" and port.dialer is not None:
                self._out.send(port.dialer, StirEntourage(self._me, port.stream))


def _subscriber(peer: Address) -> GraphReport:
    return GraphReport((GraphEntry(peer, 0, 1, 0, 0),))
