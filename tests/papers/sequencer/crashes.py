"""The hand-driven deployment with nodes that crash: real sessions, a log of inputs, lost and repeated letters."""

import random
from typing import Any

from tests.papers.sequencer.pump import Deployment, Letter
from unisono.machine import Broadcast, Fired, Persist, Restarted
from unisono.model.ids import Address
from unisono.protocols.sequencer.messages import BrokerMessage, PeerMessage
from unisono.protocols.sequencer.node import TopicManager
from unisono.structures.sessions import BroadcastsDone, Sessions


class CrashingDeployment(Deployment):
    """Nodes keep a log; `crash` throws the machine away and replays it."""

    dice: random.Random
    losses = 0.0
    crashes = 0.0
    dies_after: int | None = None
    """The node that handles the next input dies when it has performed so many of the effects."""

    def __init__(self, *arguments: Any, **machines: Any) -> None:
        super().__init__(*arguments, **machines)
        self.link_fifo = False
        self.dice = random.Random(7)
        self.crashed = 0
        self.confirming: dict[str, int] = dict.fromkeys(self.nodes, 0)
        self.start = {
            node: (m._site.parent, m._site.children, tuple(m.hosted), dict(m.below)) for node, m in self.nodes.items()
        }
        self.logs: dict[str, list[tuple[Any, int]]] = {node: [] for node in self.nodes}
        self.snapshots: dict[str, Any] = dict.fromkeys(self.nodes)
        self.sessions = {node: self.wrap(node) for node in self.nodes}

    def wrap(self, node: str) -> Sessions:
        parent, children, hosted, below = self.start[node]
        inside = TopicManager(Address(node), parent, children, hosted, below, self.config)
        self.nodes[node] = inside
        peers = children if parent is None else (parent, *children)
        return Sessions(inside, Address(node), peers, PeerMessage, BrokerMessage)

    def give(self, node: str, message: Any) -> None:
        """The input is handled, logged if it must be, and its effects leave, unless the node dies in between."""
        effects = self.sessions[node].handle(message, self.now)
        dies = self.dies_after is not None or (self.crashes and self.dice.random() < self.crashes)
        if dies:
            last = self.dice.randrange(len(effects) + 1) if self.dies_after is None else self.dies_after
            effects, self.dies_after = effects[:last], None
        if any(isinstance(effect, Persist) for effect in effects):
            self.logs[node].append((message, self.now))
        self.perform(node, effects)
        if dies:
            self.crash(node)

    def crash(self, node: str) -> None:
        self.crashed += 1
        self.timers = {key: at for key, at in self.timers.items() if key[0] != node}
        self.confirming[node] = 0
        session = self.sessions[node] = self.wrap(node)
        if self.snapshots[node] is not None:
            session.restore(self.snapshots[node])
        for message, at in self.logs[node]:
            session.handle(message, at)  # type: ignore[arg-type]
        if self.dice.random() < 0.3:
            self.snapshots[node] = session.snapshot()
            self.logs[node] = []
        self.perform(node, session.handle(Restarted(), self.now))

    def perform(self, who: str, effects: Any) -> None:
        effects = list(effects)
        super().perform(who, effects)
        if who in self.nodes:
            self.confirming[who] += sum(isinstance(effect, Broadcast) for effect in effects)

    def command(self, node: str, message: Any) -> None:
        self.give(node, message)

    def deliver(self, letter: Letter) -> None:
        lossy = not isinstance(letter.message, Fired) and letter.kind not in ("Payload", "Joined")
        if lossy and self.dice.random() < self.losses:
            self.letters.remove(letter)
        elif letter.to in self.nodes:
            self.letters.remove(letter)
            self.give(letter.to, letter.message)
        else:
            super().deliver(letter)
        for node, count in self.confirming.items():
            if count and self.dice.random() < 0.5:
                self.confirming[node] = 0
                self.give(node, BroadcastsDone(count))

    def fire(self) -> None:
        (who, key), at = min(self.timers.items(), key=lambda timer: (timer[1], timer[0]))
        if who not in self.nodes:
            super().fire()
            return
        del self.timers[who, key]
        self.now = max(self.now, at)
        self.give(who, Fired(key))
