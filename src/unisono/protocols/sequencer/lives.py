"""What a node has shown to others, and how it notices that its log is older than that (docs/reference/durability.md).

Every start of a node is a *life*: it has a name drawn at random, and begins at the height its log has then. The height
is the count of durable commits. Whoever hears from a node is shown (incarnation, life, height), sealed, and hands the
last one back whenever it connects. A log that has no such life, or ends it at a lower height, has forgotten
something that was told: it was rolled back, cut or emptied. This is found out however late somebody reminds us,
since the lives that a log lacks do not come back.

What lapsed (`structures.leases`) is kept here, too: a client that comes back after a restart finds its address dead.

A new *incarnation* is begun by a person who accepts the loss. What was shown by an earlier one accuses nobody.
"""

from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from msgspec import Struct

from unisono.machine import PERSIST, Deliver, Effect
from unisono.model.ids import Address
from unisono.model.numbers import Number
from unisono.model.time import Micros
from unisono.structures.hosting import Lapse
from unisono.structures.sessions import Reborn, Sessions

LIVES_MAX = 10_000
"""Starts that a log remembers; of older ones only the height at which they had all ended."""
LAPSED_MAX = 10_000
"""Addresses that a log remembers as dead."""
SEAL_BYTES = 16


class Began(Struct, frozen=True, tag="Began"):
    """From the driver: a process begins its work on the log, whose height is this. Delivered when it is durable."""

    life: str
    height: int


class Height(Struct, frozen=True, tag="Height"):
    """What a node has made durable; leaves it only afterwards."""

    node: Address
    incarnation: Number
    life: str
    height: Number
    seal: bytes


class Reminds(Struct, frozen=True, tag="Reminds"):
    """Back to the node, when somebody connects to it: you have shown me this."""

    client: Address
    shown: Height


class Witness:
    """What nodes have shown to us: the last of each, to be handed back whenever we meet it."""

    def __init__(self) -> None:
        self.shown: dict[Address, Height] = {}

    def note(self, shown: Height) -> bool:
        """Tells whether the node is reborn: what it told us before, it may have forgotten. Also if it has shown us
        nothing before: what we have asked of it may have been asked of an earlier incarnation."""
        before = self.shown.get(shown.node)
        self.shown[shown.node] = shown
        return (before.incarnation if before is not None else 0) < shown.incarnation

    def reminder(self, node: Address, me: Address) -> Reminds | None:
        """What to say to the node before anything else when a connection to it stands, and once we have drawn the
        consequences of its being reborn."""
        shown = self.shown.get(node)
        return Reminds(me, shown) if shown is not None else None


class Seal:
    """Nobody can invent a height who does not know the token of nodes; without tokens there is nothing to protect."""

    def __init__(self, deployment: str, node: Address, token: str) -> None:
        self._key = blake2b(f"{deployment}/{token}".encode(), digest_size=32, person=b"unisono height").digest()
        self.node = node

    def put(self, incarnation: int, life: str, height: int) -> Height:
        return Height(self.node, incarnation, life, height, self._of(incarnation, life, height))

    def is_ours(self, shown: Height) -> bool:
        return shown.node == self.node and compare_digest(
            shown.seal, self._of(shown.incarnation, shown.life, shown.height)
        )

    def _of(self, incarnation: int, life: str, height: int) -> bytes:
        text = f"{self.node}/{incarnation}/{life}/{height}"
        return blake2b(text.encode(), key=self._key, digest_size=SEAL_BYTES).digest()


class Lives:
    """The sessions of a node, and a machine inside them, that remember their lives."""

    def __init__(self, inside: Sessions) -> None:
        self.inside = inside
        self.incarnation = 0
        self._lives: dict[str, int] = {}
        """Each with the height at which it began, in that order."""
        self.lapsed: dict[Address, None] = {}
        """Who was away for so long that what it had registered lapsed."""
        self._known_from = 0  # lives that ended at this height or before may have been left out

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if type(message) is Reborn:
            self.incarnation, self._lives, self._known_from = message.incarnation, {}, 0
        if type(message) is Lapse:
            self.lapsed[message.client] = None
            if len(self.lapsed) > LAPSED_MAX:
                del self.lapsed[next(iter(self.lapsed))]
        if type(message) is not Began:
            return self.inside.handle(message, now)
        self._lives[message.life] = message.height
        while len(self._lives) > LIVES_MAX:
            del self._lives[next(iter(self._lives))]
            self._known_from = next(iter(self._lives.values()))
        return [PERSIST, Deliver(message)]

    def forgotten(self, shown: Height, height: int) -> str | None:
        """What we have shown and do not know any more, in words, if our log has this height; None: we know it."""
        if shown.incarnation != self.incarnation:
            return None if shown.incarnation < self.incarnation else f"incarnation {shown.incarnation} of it"
        began = self._lives.get(shown.life)
        if began is None:
            return None if shown.height <= self._known_from else f"a start of it, at commit {shown.height} or before"
        ended = next((later for later in self._lives.values() if later > began), height)
        return f"its commit {shown.height}, where the log goes to {ended}" if shown.height > ended else None

    def snapshot(self) -> Any:
        return {
            "inside": self.inside.snapshot(),
            "incarnation": self.incarnation,
            "lives": dict(self._lives),
            "known_from": self._known_from,
            "lapsed": list(self.lapsed),
        }

    def restore(self, snapshot: Any) -> None:
        self.inside.restore(snapshot["inside"])
        self.incarnation = snapshot["incarnation"]
        self._lives = dict(snapshot["lives"])
        self._known_from = snapshot["known_from"]
        self.lapsed = dict.fromkeys(snapshot.get("lapsed", ()))
