"""Link sessions: FIFO and exactly once between nodes, across lost frames, reconnects and restarts.

`Sessions` wraps a durable machine and is one itself. Messages to session peers get consecutive numbers and stay in an
outbox until the peer says that it has handled them durably; a frame out of turn is dropped and asked for again
(go back N: an early frame kept in memory would be missing from the log that replays us). Broadcasts stay in an outbox
of their own until the service beneath has confirmed them, so they leave at least once.

The outbox needs no records: restart replays the inputs, and the inputs make the outbox (see `unisono.machine`).
At `outbox_max` the machine inside is told by `LinkFull`, and by `LinkFree` when half of it has drained; the bound is
advice to refuse new work at the edge, since what has been numbered can no longer be dropped. Clients repeat what is not
answered: what `repeats` says is the same as something that still waits is not queued once more, and at the bound it is
not queued at all, so a peer that is away for an hour costs one frame per question, not one per repetition.
"""

from collections import deque
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct

from unisono.errors import InvariantError
from unisono.machine import (
    PERSIST,
    Broadcast,
    Deliver,
    DurableMachine,
    Effect,
    Fired,
    Persist,
    Refuse,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.ids import Address
from unisono.model.numbers import Number
from unisono.model.time import MILLISECOND, Micros

M = TypeVar("M")


class Frame(Struct, Generic[M], frozen=True, tag="Frame", omit_defaults=True):
    """The `number`-th message from `source` to us, counted from 1 over the whole life of the link, which begins anew
    in a higher `epoch` when one of its ends is reborn.

    Generic so that the wire and the log can decode it typed: `Frame[Fill | Part]`.
    """

    source: Address
    number: Number
    message: M
    epoch: Number = 0


class Handled(Struct, frozen=True, tag="Handled", omit_defaults=True):
    """`source` has durably handled our frames up to `upto`; with `resend` it asks for those after.
    It knows from us that we have handled its own up to `acked`."""

    source: Address
    upto: Number
    resend: bool = False
    acked: int = 0
    epoch: Number = 0


class PeerReborn(Struct, frozen=True, tag="PeerReborn"):
    """To the machine inside: `peer` has forgotten some of what passed between us, and what was under way is lost."""

    peer: Address


class Reborn(Struct, frozen=True, tag="Reborn"):
    """From the driver: a person has accepted that what was told after some moment is forgotten. The incarnation is
    higher than every one before, also than those that are forgotten."""

    incarnation: int


class Forgotten(Struct, frozen=True, tag="Forgotten"):
    """To the driver: a peer knows of us what we do not know: our log is older than what we told it."""

    peer: Address
    what: str


class BroadcastsDone(Struct, frozen=True, tag="BroadcastsDone"):
    """From the driver: the service beneath has confirmed our oldest `count` open broadcasts."""

    count: Number


class Reconnected(Struct, frozen=True, tag="Reconnected"):
    """From the driver: the connection to `peer` is new, and what was under way on the old one may be lost."""

    peer: Address


class LinkFull(Struct, frozen=True, tag="LinkFull"):
    """To the machine inside: the outbox towards `peer` is at its bound."""

    peer: Address


class LinkFree(Struct, frozen=True, tag="LinkFree"):
    """To the machine inside: the outbox towards `peer` has room again."""

    peer: Address


_OURS = frozenset((Frame, Handled, BroadcastsDone, Fired, Reconnected, Reborn, Restarted))
"""What a session looks at; everything else is for the machine inside."""


class SessionsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds and pace of the links of one node."""

    resend_after_us: Micros = Micros(400 * MILLISECOND)
    """Unacknowledged frames leave again after this; a little over the longest round trip."""
    window_frames_max: int = 8_192
    """Frames under way and not acknowledged; later ones wait in the outbox for acknowledgements, so that a peer that
    comes back after a long time is fed as fast as it handles. Throughput is at most this per round trip."""
    outbox_max: int = 100_000
    """Frames per peer before the machine inside is told to refuse work; about 100 bytes each."""


class _Link:
    """Both directions of one session."""

    __slots__ = ("checked", "epoch", "flown", "full", "handled", "outbox", "rewound", "sent", "waiting")

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.sent = 0  # number of the last frame ever put into the outbox
        self.handled = 0  # number of the last frame of the peer we handled
        self.outbox: deque[Any] = deque()  # messages sent - len(outbox) + 1 .. sent
        self.full = False
        self.waiting: dict[Hashable, None] = {}  # what of the outbox may be repeated, by what makes two the same
        # What follows is not durable: a restart sends the outbox again.
        self.flown = 0  # number of the last frame that left, counting from the last time we went back
        self.checked = 0  # what was acknowledged when the timer was set
        self.rewound = -1  # what was acknowledged when we last went back; asking twice for the same is asking once

    @property
    def acknowledged(self) -> int:
        return self.sent - len(self.outbox)


def nothing_repeats(message: Any) -> Hashable | None:
    """Every message is one of its own."""
    return None


class Sessions:
    """A durable machine whose node links are sessions."""

    def __init__(
        self,
        inside: DurableMachine,
        me: Address,
        peers: tuple[Address, ...],
        messages: Any,
        broadcasts: Any,
        config: SessionsConfig = SessionsConfig(),
        repeats: Callable[[Any], Hashable | None] = nothing_repeats,
        unnumbered: tuple[type, ...] = (),
    ) -> None:
        """`messages` and `broadcasts` are the types (unions) snapshots decode the outboxes with. `repeats` tells what
        makes two messages the same to their sender, who will say them again; None: each counts. What is `unnumbered`
        goes to peers as it is, and may be lost."""
        self.inside = inside
        self._me = me
        self._config = config
        self._links = {peer: _Link() for peer in peers}
        self._broadcasts: deque[Broadcast] = deque()
        self._message_type = messages
        self._broadcast_type = broadcasts
        self._repeats = repeats
        self._unnumbered = unnumbered

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if type(message) not in _OURS:
            return self._wrap(self.inside.handle(message, now), now, persist=False)
        match message:
            case Frame() | Handled():
                return self._in_epoch(message, now)
            case BroadcastsDone(count=count):
                if count > len(self._broadcasts):
                    raise InvariantError(f"{count} broadcasts confirmed, {len(self._broadcasts)} are open")
                for _ in range(count):
                    self._broadcasts.popleft()
                return [PERSIST]
            case Fired(key=key) if key.startswith("session "):
                return self._check(Address(key.removeprefix("session ")), now)
            case Reconnected(peer=peer):
                if peer not in self._links:
                    return [Refuse(f"{peer} holds no session with {self._me}")]
                return [self._stand(peer), *self._resend(peer, now)]
            case Reborn():
                return self._begin_epoch(message, now)
            case Restarted():
                again: list[Effect] = list(self._broadcasts)
                for peer in self._links:
                    again += self._resend(peer, now)
                return again + self._wrap(self.inside.handle(message, now), now, persist=False)
            case _:
                return self._wrap(self.inside.handle(message, now), now, persist=False)

    def _receive(self, peer: Address, number: int, inner: Any, now: Micros) -> list[Effect]:
        link = self._links[peer]
        if number != link.handled + 1:
            resend = number > link.handled
            return [Send(peer, Handled(self._me, link.handled, resend=resend, epoch=link.epoch))]
        link.handled = number
        effects = self._wrap(self.inside.handle(inner, now), now, persist=True)
        effects.append(Send(peer, Handled(self._me, number, epoch=link.epoch)))
        return effects

    def _in_epoch(self, message: Frame[Any] | Handled, now: Micros) -> list[Effect]:
        """Handles what belongs to the session as it is now; a peer that is reborn begins it anew."""
        peer, link = message.source, self._links.get(message.source)
        if link is None:
            return [Refuse(f"{peer} holds no session with {self._me}")]
        if message.epoch < link.epoch:
            return [self._stand(peer)]
        effects: list[Effect] = []
        if message.epoch > link.epoch:
            effects = self._begin_anew(peer, message.epoch, now)
            effects += self._wrap(self.inside.handle(PeerReborn(peer), now), now, persist=True)
        if isinstance(message, Handled):
            return effects + self._trim(message, now)
        return effects + self._receive(peer, message.number, message.message, now)

    def _begin_anew(self, peer: Address, epoch: int, now: Micros) -> list[Effect]:
        """What waits is dropped: both machines tell each other anew what matters."""
        was_full = self._links[peer].full
        self._links[peer] = _Link(epoch)
        return self._wrap(self.inside.handle(LinkFree(peer), now), now, persist=True) if was_full else [PERSIST]

    def _begin_epoch(self, message: Reborn, now: Micros) -> list[Effect]:
        """We are reborn: every link begins anew, then the machine inside is told.

        Two ends that are reborn in the same moment must not take the one's epoch for the other's.
        """
        effects: list[Effect] = []
        own = (message.incarnation << 16) + (crc32(self._me.encode()) & 0xFFFF)
        for peer, link in list(self._links.items()):
            effects += self._begin_anew(peer, max(own, link.epoch + 1), now)
        effects += self._wrap(self.inside.handle(message, now), now, persist=True)
        return [*effects, *(self._stand(peer) for peer in self._links)]

    def _stand(self, peer: Address) -> Send:
        """Where the session stands, as we know it; a peer that knows less has forgotten."""
        link = self._links[peer]
        return Send(peer, Handled(self._me, link.handled, acked=link.acknowledged, epoch=link.epoch))

    def _trim(self, message: Handled, now: Micros) -> list[Effect]:
        peer, upto, resend = message.source, message.upto, message.resend
        link = self._links[peer]
        if upto > link.sent or message.acked > link.handled:
            what = (
                f"frame {upto} that we sent it, and we know of {link.sent}"
                if upto > link.sent
                else f"that we handled its frame {message.acked}, and we know of {link.handled}"
            )
            return [Deliver(Forgotten(peer, what))]
        fresh = upto - link.acknowledged
        if fresh < 0 and resend:
            return [self._stand(peer)]  # it asks for what it has acknowledged
        effects: list[Effect] = [PERSIST] if fresh > 0 else []
        for _ in range(fresh):
            key = self._repeats(link.outbox.popleft())
            if key is not None:
                link.waiting.pop(key, None)
        if link.full and len(link.outbox) <= self._config.outbox_max // 2:
            link.full = False
            effects += self._wrap(self.inside.handle(LinkFree(peer), now), now, persist=False)
        if resend and link.rewound != link.acknowledged:
            return effects + self._resend(peer, now)
        return effects + self._fly(peer, link)

    def _check(self, peer: Address, now: Micros) -> list[Effect]:
        """The timer: what is under way leaves again, unless acknowledgements are still coming in."""
        link = self._links[peer]
        if link.outbox and link.acknowledged > link.checked:
            return [self._timer(peer, now)]
        return self._resend(peer, now)

    def _resend(self, peer: Address, now: Micros) -> list[Effect]:
        """Goes back to the first frame that is not acknowledged."""
        link = self._links[peer]
        link.flown = link.rewound = link.acknowledged
        effects = self._fly(peer, link)
        if effects:
            effects.append(self._timer(peer, now))
        return effects

    def _fly(self, peer: Address, link: _Link) -> list[Effect]:
        """Sends what waits, as far as the window reaches."""
        done = link.acknowledged
        link.flown = max(link.flown, done)
        first, last = link.flown + 1, min(link.sent, done + self._config.window_frames_max)
        if first > last:
            return []
        link.flown = last
        waiting = islice(link.outbox, first - done - 1, last - done)
        epoch = link.epoch
        return [Send(peer, Frame(self._me, first + i, message, epoch)) for i, message in enumerate(waiting)]

    def _timer(self, peer: Address, now: Micros) -> SetTimer:
        self._links[peer].checked = self._links[peer].acknowledged
        return SetTimer(f"session {peer}", Micros(now + self._config.resend_after_us))

    def _wrap(self, inner: list[Effect], now: Micros, persist: bool) -> list[Effect]:
        """Numbers what goes to peers, and makes sure that whatever consumed a number is in the log."""
        if not inner:
            return [PERSIST] if persist else inner
        effects: list[Effect] = []
        idle: list[Address] = []
        filled: list[Address] = []
        for effect in inner:
            if (
                isinstance(effect, Send)
                and (link := self._links.get(effect.to)) is not None
                and type(effect.message) not in self._unnumbered
            ):
                key = self._repeats(effect.message)
                if key is not None:
                    if key in link.waiting:
                        continue
                    if len(link.outbox) >= self._config.outbox_max:
                        effects.append(Refuse(f"{len(link.outbox)} frames wait for {effect.to}: ask again later"))
                        continue
                    link.waiting[key] = None
                persist = True
                if not link.outbox:
                    idle.append(effect.to)
                link.sent += 1
                link.outbox.append(effect.message)
                if link.flown == link.sent - 1 and len(link.outbox) <= self._config.window_frames_max:
                    link.flown = link.sent
                    effects.append(Send(effect.to, Frame(self._me, link.sent, effect.message, link.epoch)))
                if not link.full and len(link.outbox) >= self._config.outbox_max:
                    link.full = True
                    filled.append(effect.to)
            elif isinstance(effect, Broadcast):
                persist = True
                self._broadcasts.append(effect)
                effects.append(effect)
            elif isinstance(effect, Persist):
                persist = True
            else:
                effects.append(effect)
        effects += [self._timer(peer, now) for peer in idle]
        for peer in filled:
            effects += self._wrap(self.inside.handle(LinkFull(peer), now), now, persist=False)
        return [PERSIST, *effects] if persist else effects

    def snapshot(self) -> Any:
        return {
            "inside": self.inside.snapshot(),
            "links": {
                peer: [link.sent, link.handled, link.full, msgspec.msgpack.encode(list(link.outbox)), link.epoch]
                for peer, link in self._links.items()
            },
            "broadcasts": [[b.topic, b.control, msgspec.msgpack.encode(b.message)] for b in self._broadcasts],
        }

    def restore(self, snapshot: Any) -> None:
        self.inside.restore(snapshot["inside"])
        for peer, (sent, handled, full, outbox, epoch) in snapshot["links"].items():
            link = self._links.setdefault(peer, _Link())
            link.sent, link.handled, link.full, link.epoch = sent, handled, full, epoch
            link.outbox = deque(msgspec.msgpack.decode(outbox, type=list[self._message_type]))  # type: ignore[name-defined]
            link.flown = link.acknowledged
            link.waiting = dict.fromkeys(key for each in link.outbox if (key := self._repeats(each)) is not None)
        self._broadcasts = deque(
            Broadcast(topic, msgspec.msgpack.decode(message, type=self._broadcast_type), control)
            for topic, control, message in snapshot["broadcasts"]
        )
