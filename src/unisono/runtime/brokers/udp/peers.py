"""Who takes part in a broker that is nobody's: peers that find each other by seeds, and who reads what from whom.

Everybody sends everybody a `PeerBeat` now and then; it names others, so one seed that both know is enough for two to
meet. A reader enters a channel at each peer (`Enter`), repeated until that peer has said from which number on it will
send (`Entered`). `PeerBeat.wants` says how many channels the reader has entered: a newcomer has met somebody when it
holds so many. A peer that was not heard for a while is dropped; when it is back, the beats tell it so, and it enters
again.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.ids import Address, Topic
from unisono.model.numbers import Number
from unisono.runtime.brokers.udp.node import Control, UdpNode, endpoint_of

PEERS_TOLD = 40
"""Addresses in a beat; with more peers than this each beat tells of others."""
PEERS_MAX = 1000


class PeerBeat(Struct, frozen=True, tag="Beat"):
    """I am here: called `publisher` in packets, reading `wants` channels of yours; `knows`: you have beaten before."""

    publisher: int
    wants: Number
    knows: bool
    asks: bool
    """Answer at once."""
    peers: tuple[Address, ...] = ()


class Enter(Struct, frozen=True, tag="Enter"):
    """Send me this channel. `order` grows with every change of a reader's mind; the same one again is a repetition."""

    topic: Topic
    order: Number


class Entered(Struct, frozen=True, tag="Entered"):
    """I send it, from the number after `base` on."""

    topic: Topic
    order: Number
    publisher: int
    base: Number


class Exit(Struct, frozen=True, tag="Exit"):
    """I read this channel no longer."""

    topic: Topic
    order: Number


class Exited(Struct, frozen=True, tag="Exited"):
    """I have noted that."""

    topic: Topic
    order: Number


class Bye(Struct, frozen=True, tag="Bye"):
    """I am going, and not coming back under this name."""

    publisher: int


class AskProgress(Struct, frozen=True, tag="Nag"):
    """My numbers of this channel have reached `upto`: how far are you?"""

    topic: Topic
    publisher: int
    upto: Number


class ReceivedUpTo(Struct, frozen=True, tag="Progress"):
    """Of what you, `publisher`, sent me: up to which number I have everything, by channel."""

    publisher: int
    upto: tuple[tuple[Topic, Number], ...]


Messages = Control | PeerBeat | Enter | Entered | Exit | Exited | Bye | AskProgress | ReceivedUpTo


class Reader:
    """A peer that reads one of our channels."""

    __slots__ = ("base", "order", "upto")

    def __init__(self, order: int, base: int) -> None:
        self.order = order
        self.base = self.upto = base


class Peer:
    """One of the others."""

    __slots__ = ("asked", "heard_at", "is_met", "left", "publisher", "reads", "wants")

    def __init__(self) -> None:
        self.publisher: int | None = None  # None until its first beat
        self.heard_at = 0.0
        self.wants = 0
        self.is_met = False  # what it reads is known here
        self.reads: dict[Topic, Reader] = {}
        self.left: dict[Topic, int] = {}  # channels it has left: the order of that
        self.asked: dict[Topic, Enter | Exit] = {}  # what it has not confirmed


class Peers:
    """The others, and what we want of each."""

    def __init__(
        self,
        node: UdpNode,
        seeds: Iterable[Address],
        clock: Callable[[], float],
        base_of: Callable[[Topic], int],
        entered: Callable[[Address, Entered], None],
        gone: Callable[[int, str], None],
    ) -> None:
        """`base_of` is the last number published on a channel, `entered` hears confirmations, `gone` of each publisher
        that is no more, and why."""
        self._node, self._clock = node, clock
        self._base_of, self._entered, self._gone = base_of, entered, gone
        self._seeds = [seed for seed in seeds if seed != node.address]
        self.all: dict[Address, Peer] = {}
        self._wanted: dict[Topic, int] = {}  # channel -> the order of entering it
        self._order = 0
        self._told = 0
        for seed in self._seeds:
            self.add(seed)

    def add(self, address: Address) -> None:
        try:
            endpoint_of(address)
        except MisuseError:
            return
        if address != self._node.address and address not in self.all and len(self.all) < PEERS_MAX:
            peer = self.all[address] = Peer()
            peer.heard_at = self._clock()

    @property
    def has_seed(self) -> bool:
        """Somebody that we knew from the start is there."""
        return not self._seeds or any(self.all[seed].publisher is not None for seed in self._seeds if seed in self.all)

    @property
    def strangers(self) -> list[Address]:
        return [address for address, peer in self.all.items() if not peer.is_met]

    def beat(self, address: Address, asks: bool = False) -> None:
        peer, names = self.all[address], [a for a, p in self.all.items() if p.publisher is not None]
        first = self._told % len(names) if len(names) > PEERS_TOLD else 0
        self._told += PEERS_TOLD
        told = (names[first:] + names[:first])[:PEERS_TOLD]
        beat = PeerBeat(self._node.publisher, len(self._wanted), peer.publisher is not None, asks, tuple(told))
        self._node.tell(address, beat)

    def want(self, topic: Topic) -> None:
        self._order += 1
        self._wanted[topic] = self._order
        for address in self.all:
            self._ask(address, Enter(topic, self._order))

    def drop(self, topic: Topic) -> None:
        """We read the channel no longer."""
        del self._wanted[topic]
        self._order += 1
        for address in self.all:
            self._ask(address, Exit(topic, self._order))

    def is_entered(self, topic: Topic) -> bool:
        """Nobody we know has still to confirm."""
        return not any(isinstance(peer.asked.get(topic), Enter) for peer in self.all.values() if peer.is_met)

    def _ask(self, address: Address, ask: Enter | Exit) -> None:
        self.all[address].asked[ask.topic] = ask
        self._node.tell(address, ask)

    def ask_again(self) -> None:
        for address, peer in self.all.items():
            for ask in list(peer.asked.values())[:64] if peer.publisher is not None else ():
                self._node.tell(address, ask)

    def tidy(self, patience_s: float) -> None:
        """Drops whoever was not heard for so long; seeds are tried for ever."""
        now = self._clock()
        for address, peer in list(self.all.items()):
            if now - peer.heard_at > patience_s:
                self.forget(address, "was not heard for a while")
                if address in self._seeds:
                    self.add(address)

    def forget(self, address: Address, why: str) -> None:
        peer = self.all.pop(address)
        for topic in peer.reads:
            self._node.dismiss(topic, address)
        if peer.publisher is not None:
            self._gone(peer.publisher, why)

    def receive(self, message: Any, source: Address) -> None:
        """Beats, and what is said about reading."""
        if isinstance(message, Bye):
            if source in self.all and self.all[source].publisher == message.publisher:
                self.forget(source, "said goodbye")
            return
        self.add(source)
        peer = self.all.get(source)
        if peer is None:
            return
        peer.heard_at = self._clock()
        match message:
            case PeerBeat():
                self._hear_beat(source, message)
            case Enter(topic=topic, order=order):
                reader = peer.reads.get(topic)
                if order > max(peer.left.get(topic, 0), reader.order if reader is not None else 0):
                    reader = peer.reads[topic] = Reader(order, self._base_of(topic))
                    self._node.admit(topic, source)
                if reader is not None and reader.order == order:
                    self._node.tell(source, Entered(topic, order, self._node.publisher, reader.base))
                peer.is_met = peer.is_met or (peer.publisher is not None and len(peer.reads) >= peer.wants)
            case Exit(topic=topic, order=order):
                if topic in peer.reads and peer.reads[topic].order < order:
                    del peer.reads[topic]
                    self._node.dismiss(topic, source)
                peer.left[topic] = max(order, peer.left.get(topic, 0))
                if len(peer.left) > PEERS_MAX:
                    del peer.left[next(iter(peer.left))]
                self._node.tell(source, Exited(topic, order))
            case Entered(topic=topic, order=order) if peer.publisher == message.publisher:
                if (ask := peer.asked.get(topic)) is not None and ask.order == order:
                    del peer.asked[topic]
                self._entered(source, message)
            case Exited(topic=topic, order=order):
                if (ask := peer.asked.get(topic)) is not None and ask.order == order:
                    del peer.asked[topic]
            case _:
                pass

    def _hear_beat(self, source: Address, beat: PeerBeat) -> None:
        peer = self.all[source]
        if peer.publisher not in (None, beat.publisher):  # another process at the same port
            self.forget(source, "was restarted")
            self.add(source)
            peer = self.all[source]
            peer.heard_at = self._clock()
        if peer.publisher is None or not beat.knows:
            peer.publisher = beat.publisher
            self._node.recognise(source, beat.publisher)
            for topic, order in self._wanted.items():
                self._ask(source, Enter(topic, order))
        peer.wants = beat.wants
        peer.is_met = peer.is_met or len(peer.reads) >= beat.wants
        for other in beat.peers[:PEERS_TOLD]:
            self.add(other)
        if beat.asks:
            self.beat(source)
