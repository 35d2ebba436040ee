"""A hand-driven deployment: real machines, and a list of letters of which the test delivers one at a time.

Node links are FIFO per direction; everything else may overtake anything. The broker starts to deliver a topic to a
client at the moment the client hears Joined, the latest it may. Timers fire only when the test says so.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from unisono.machine import (
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Persist,
    Publish,
    Refuse,
    Send,
    SetTimer,
    Subscribe,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Answer, BrokerMessage, ClientMessage, PeerMessage, Pieces, Run
from unisono.protocols.sequencer.node import TopicManager
from unisono.structures.sessions import Frame, Handled

STAMP = SequencerConfig(early=False)
_wire_type = Answer | ClientMessage | PeerMessage
_encode = msgspec.msgpack.Encoder().encode
_decode_wire = msgspec.msgpack.Decoder(_wire_type).decode
_decode_broker = msgspec.msgpack.Decoder(BrokerMessage).decode


def wire(message: Any) -> Any:
    """The message as it comes out at the other end."""
    match message:
        case Frame(source=source, number=number, message=inner):
            return Frame(source, number, _decode_wire(_encode(inner)))
        case Handled():
            return message
        case _:
            return _decode_wire(_encode(message))


class Letter(NamedTuple):
    number: int
    source: str
    to: str
    message: Any

    @property
    def kind(self) -> str:
        inner = self.message.message if isinstance(self.message, Heard) else self.message
        return type(inner).__name__

    @property
    def topic(self) -> int | None:
        if isinstance(self.message, Heard | Joined):
            return self.message.topic
        if self.kind == "Creates":
            return self.message.items[0].topic
        several = getattr(self.message, "here", None) or getattr(self.message, "collected", None)
        return next(iter(several)) if several else getattr(self.message, "topic", None)


class Deployment:
    """`tree` maps node -> parent, `homes` topic -> node."""

    def __init__(
        self,
        tree: dict[str, str | None],
        homes: dict[int, str],
        config: SequencerConfig = STAMP,
        manager: Callable[..., TopicManager] = TopicManager,
        client: Callable[..., OrderingClient] = OrderingClient,
    ) -> None:
        self.tree, self.config = tree, config
        self.homes = {Topic(t): Address(n) for t, n in homes.items()}
        self.now = Micros(0)
        self.letters: list[Letter] = []
        self.count = 0
        self.timers: dict[tuple[str, str], Micros] = {}
        self.listeners: dict[Topic, dict[str, None]] = {}
        self.log: dict[str, list[tuple[int, str]]] = {}  # client -> (topic, payload) notified in order
        self.numbers: dict[str, list[tuple[int, int]]] = {}  # client -> (topic, number)
        self.notices: list[tuple[str, Any]] = []
        self.bases: dict[str, dict[int, int]] = {}
        self.periods: dict[str, list[tuple[str, int, int]]] = {}
        self.refusals: list[tuple[str, str]] = []
        self.left_once: dict[str, None] = {}
        self.published = 0
        self.restless: list[tuple[str, str]] = []
        self.short: dict[tuple[int, int], Run] = {}  # (topic, number) -> what was told of it in short
        self.link_fifo = True
        self._make_client = client
        self.nodes: dict[str, TopicManager] = {}
        for node, parent in tree.items():
            children = tuple(Address(n) for n, p in tree.items() if p == node)
            hosted = tuple(t for t, n in self.homes.items() if n == node)
            below = {t: self._child(node, n) for t, n in self.homes.items() if n != node and self._under(n, node)}
            up = None if parent is None else Address(parent)
            self.nodes[node] = manager(Address(node), up, children, hosted, below, config)
        self.clients: dict[str, OrderingClient] = {}

    def _under(self, node: str, top: str) -> bool:
        at: str | None = node
        while at is not None:
            if at == top:
                return True
            at = self.tree[at]
        return False

    def _child(self, top: str, node: str) -> Address:
        while self.tree[node] != top:
            node = self.tree[node] or ""
        return Address(node)

    def client(self, name: str, *topics: int) -> OrderingClient:
        """A client; with topics, subscribed to them before anything else happens."""
        if name not in self.clients:
            self.clients[name] = self._make_client(Address(name), self.homes, self.config)
            self.log[name], self.numbers[name], self.bases[name], self.periods[name] = [], [], {}, []
        if topics:
            self.subscribe(name, *topics)
            self.run()
        return self.clients[name]

    # Requests from above.

    def publish(self, name: str, topic: int, payload: str) -> None:
        self.client(name)
        self.published += 1
        event = Event(name, self.published, str(topic), payload.encode())
        self.perform(name, self.clients[name].handle(Publish(Topic(topic), event, self.published), self.now))

    def subscribe(self, name: str, *topics: int) -> None:
        self.client(name)
        self.perform(name, self.clients[name].handle(Subscribe(tuple(Topic(t) for t in topics)), self.now))

    def unsubscribe(self, name: str, *topics: int) -> None:
        self.left_once[name] = None
        for topic in topics:
            self.periods[name].append(("leave", topic, 0))
        self.perform(name, self.clients[name].handle(Unsubscribe(tuple(Topic(t) for t in topics)), self.now))

    def command(self, node: str, message: Any) -> None:
        self.perform(node, self.nodes[node].handle(message, self.now))

    # Effects and letters.

    def perform(self, who: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to=to, message=message):
                    self._post(who, to, wire(message))
                case Broadcast(topic=topic, message=message, control=control):
                    self._note_short(topic, message)
                    for name in self.listeners.get(topic, {}):
                        self._post(who, name, Heard(topic, _decode_broker(_encode(message)), control))
                case Join(topic=topic):
                    self._post("broker", who, Joined(topic))
                case Leave(topic=topic):
                    self.listeners.setdefault(topic, {}).pop(who, None)
                    self.letters = [
                        x
                        for x in self.letters
                        if not (x.to == who and isinstance(x.message, Heard) and x.topic == topic)
                    ]
                case Deliver(item=delivered):
                    for item in one_by_one(delivered):
                        self._delivered(who, item)
                case SetTimer(key=key, at=at):
                    self.timers[who, key] = at
                case CancelTimer(key=key):
                    self.timers.pop((who, key), None)
                case Refuse(reason=reason):
                    self.refusals.append((who, reason))
                case Persist():
                    pass

    def _note_short(self, topic: int, message: Any) -> None:
        runs = [x.run for x in message.pieces] if isinstance(message, Pieces) else getattr(message, "runs", ())
        self.short.update({(topic, n): run for run in runs if run.short for n in range(run.first, run.last + 1)})

    def _delivered(self, who: str, item: Any) -> None:
        match item:
            case Heard(topic=topic, message=event, number=number, late=False):
                self.log[who].append((topic, event.payload.decode()))
                self.numbers[who].append((topic, number))
            case Joined(topic=topic, base=base):
                self.bases[who][topic] = base
                self.periods[who].append(("join", topic, base))
            case _:
                self.notices.append((who, item))

    def _post(self, source: str, to: str, message: Any) -> None:
        self.count += 1
        self.letters.append(Letter(self.count, source, to, message))

    def deliver(self, letter: Letter) -> None:
        self.letters.remove(letter)
        if isinstance(letter.message, Joined):
            self.listeners.setdefault(letter.message.topic, {})[letter.to] = None
        machine: Any = self.nodes.get(letter.to) or self.clients.get(letter.to)
        self.perform(letter.to, machine.handle(letter.message, self.now))

    def eligible(self) -> list[Letter]:
        """Letters that may arrive next: between nodes only the oldest of each link and direction."""
        heads: dict[tuple[str, str], None] = {}
        found = []
        for letter in self.letters:
            if self.link_fifo and letter.source in self.nodes and letter.to in self.nodes:
                link = (letter.source, letter.to)
                if link in heads:
                    continue
                heads[link] = None
            found.append(letter)
        return found

    def find(self, kind: str, to: str | None = None, topic: int | None = None, source: str | None = None) -> Letter:
        for letter in self.letters:
            wanted = (letter.kind == kind, to in (None, letter.to), topic in (None, letter.topic))
            if all(wanted) and source in (None, letter.source):
                return letter
        raise AssertionError(f"no {kind} to {to} on {topic}: " + ", ".join(f"{x.kind}>{x.to}" for x in self.letters))

    def step(self, kind: str, to: str | None = None, topic: int | None = None, source: str | None = None) -> None:
        """Delivers the oldest letter of this description."""
        self.deliver(self.find(kind, to, topic, source))

    def run(self, hold: Callable[[Letter], bool] = lambda letter: False) -> None:
        """Delivers everything, oldest first, except what is to be held."""
        while letters := [x for x in self.eligible() if not hold(x)]:
            self.deliver(letters[0])

    def shuffle(self, dice: random.Random, steps: int | None = None) -> None:
        """Delivers letters in random order."""
        while self.letters and steps != 0:
            eligible = self.eligible()
            self.deliver(eligible[dice.randrange(len(eligible))])
            steps = None if steps is None else steps - 1

    def fire(self) -> None:
        """Lets the earliest timer fire."""
        (who, key), at = min(self.timers.items(), key=lambda timer: (timer[1], timer[0]))
        del self.timers[who, key]
        self.now = max(self.now, at)
        machine: Any = self.nodes.get(who) or self.clients.get(who)
        self.perform(who, machine.handle(Fired(key), self.now))

    def settle(self, dice: random.Random | None = None, timers_max: int = 400) -> None:
        """Runs letters and timers until nothing is left to do."""
        for _ in range(timers_max):
            if dice is None:
                self.run()
            else:
                self.shuffle(dice)
            if not self.timers:
                return
            self.fire()
        self.restless = sorted(self.timers)

    def until(self, happened: Callable[[], bool], hold: Callable[[Letter], bool], timers_max: int = 400) -> None:
        """Runs letters (except what is to be held) and timers until something has happened."""
        for _ in range(timers_max):
            self.run(hold)
            if happened():
                return
            self.fire()
        raise AssertionError(f"it has not happened after {timers_max} timers")

    # Judgement.

    def order(self, name: str) -> str:
        """The payloads a client was notified of, as one word."""
        return ",".join(payload for _, payload in self.log[name])

    def complaints(self) -> list[str]:
        """Everything that is wrong with what was delivered; empty when all promises hold."""
        wrong = [f"timers never stop: {self.restless}"] if self.restless else []
        for name, numbers in self.numbers.items():
            if len(set(numbers)) != len(numbers):
                wrong.append(f"{name} was notified twice")
        names = sorted(self.numbers)
        places = {name: {key: i for i, key in enumerate(self.numbers[name])} for name in names}
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                common = [key for key in self.numbers[a] if key in places[b]]
                order = sorted(common, key=places[b].__getitem__)
                if order != common:
                    wrong.append(f"{a} and {b} disagree: {common} / {order}")
        return wrong + self._lost() + self._stuck()

    def home(self, topic: int) -> TopicManager:
        return next(node for node in self.nodes.values() if topic in node.hosted)

    def _lost(self) -> list[str]:
        wrong = []
        excused = {
            (who, n.topic, k) for who, n in self.notices if isinstance(n, Gap) for k in range(n.first, n.last + 1)
        }
        for name, client in self.clients.items():
            got = set(self.numbers[name])
            for topic, feed in client.subscriber.feeds.items():
                if not feed.live:
                    continue
                skipped = set(feed.skipped.values())
                owed = range(feed.base + 1, self.home(topic).clock[topic] + 1)
                lost = [n for n in owed if (topic, n) not in got and (name, topic, n) not in excused]
                wrong += [f"{name} lost {topic}:{n}" for n in lost if n not in skipped]
        return wrong

    def _stuck(self) -> list[str]:
        wrong = []
        for name, client in self.clients.items():
            if client.subscriber.joining:
                wrong.append(f"{name} is still joining {client.subscriber.joining}")
            for topic, feed in client.subscriber.feeds.items():
                if feed.items:
                    wrong.append(f"{name} holds back {topic}: {sorted(feed.items)}")
            if any(client.publisher.open.values()):
                wrong.append(f"{name} has publications without a number")
        for node in self.nodes.values():
            homes = [home.topic for home in node.hosted.values() if home.open or home.parked]
            wrong += [f"{node.me} has open runs or parked registrations on {topic}" for topic in homes]
        return wrong

    def unforced(self) -> list[str]:
        """FREE: pairs notified by somebody that nothing forces upon another who never left anything."""
        wrong = []
        stamps = {(t, n): self.home(t).whole(t, run).entries for t in self.homes for n, run in self._runs(t)}
        for name, client in self.clients.items():
            if name in self.left_once:
                continue
            feeds = {t: f for t, f in client.subscriber.feeds.items() if f.live}
            before: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for (topic, number), entries in stamps.items():
                if topic not in feeds or number <= feeds[topic].base:
                    continue
                short = self.short.get((topic, number))
                if short is not None and short.topics[0] in feeds and short.numbers[0] > feeds[short.topics[0]].base:
                    entries = short.entries  # that is all this client goes by
                needs = [(topic, number - 1), *entries.items(), *feeds[topic].gate.items()]
                before[topic, number] = [(x, v) for x, v in needs if x in feeds and v > feeds[x].base and x in feeds]
            after = _closure(before)
            for other, numbers in self.numbers.items():
                mine = [key for key in numbers if key in before and other != name]
                for i, late in enumerate(mine):
                    free = [early for early in mine[:i] if early not in after[late]]
                    wrong += [f"{name} might see {late} before {early}, unlike {other}" for early in free]
        return wrong

    def _runs(self, topic: Topic) -> Iterable[tuple[int, Any]]:
        for run in self.home(topic).hosted[topic].issued.values():
            for number in range(run.first, run.last + 1):
                yield number, run


def _closure(before: dict[tuple[int, int], list[tuple[int, int]]]) -> dict[tuple[int, int], set[tuple[int, int]]]:
    done: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def visit(key: tuple[int, int]) -> set[tuple[int, int]]:
        if key not in done:
            done[key] = set()
            found: set[tuple[int, int]] = set()
            for other in before.get(key, []):
                found.add(other)
                found |= visit(other)
            done[key] = found
        return done[key]

    for key in sorted(before, key=lambda k: k[1]):
        visit(key)
    return done


def but(*descriptions: tuple[Any, ...]) -> Callable[[Letter], bool]:
    """What `run` shall hold: letters described by (kind, to, topic), None for any."""

    def held(letter: Letter) -> bool:
        for kind, *rest in descriptions:
            to, topic = [*rest, None, None][:2]
            if letter.kind == kind and to in (None, letter.to) and topic in (None, letter.topic):
                return True
        return False

    return held
