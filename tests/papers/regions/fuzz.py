"""Random hierarchies under a random scheduler: any message, timer, detection or fault at any moment."""

import random
from typing import Any

from tests.papers.regions.net import FOR_EVER, QUIET, RegionNet
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import RegionLeave

SIZE = 10


class RegionPlay:
    """One run: regions of trees, clients that publish and subscribe, people who connect, break and kill."""

    def __init__(
        self, seed: int, config: RegionsConfig = QUIET, faults: float = 0.05, clients: int = 5, regions: int = 0
    ) -> None:
        self.dice = random.Random(seed)
        self.net = RegionNet(config)
        self.faults = faults
        self.made = 0
        self.level: dict[Address, int] = {}
        self.region: dict[Address, int] = {}
        self.clients: list[Address] = []
        for region in range(regions or self.dice.randint(1, 3)):
            for level in range(self.dice.randint(1, 3)):
                for _ in range(self.dice.randint(1, 2)):
                    self.add_broker(region, level)
        for _ in range(clients):
            self.add_client()

    def name(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def add_broker(self, region: int, level: int) -> None:
        address = self.net.broker(self.name("b"), root=level == 0)
        self.level[address], self.region[address] = level, region

    def add_client(self) -> None:
        low = self.dice.randint(0, SIZE)
        where = f"x between {low} and {low + self.dice.randint(0, SIZE)}" if self.dice.random() < 0.7 else ""
        client = self.net.client(self.name("c"), where)
        self.clients.append(client)
        if self.dice.random() < 0.8:
            self.net.subscribe(client)

    def brokers(self) -> list[Address]:
        return [name for name, node in self.net.nodes.items() if isinstance(node, RegionBroker)]

    # -- links that are missing are dialled, sooner or later

    def dial(self) -> bool:
        ways: list[tuple[Address, Address, bool]] = []
        brokers = self.brokers()
        for name in self.net.nodes:
            machine: Any = self.net.nodes[name]
            if name in self.clients:
                if machine.broker is None:
                    ways += [(name, b, False) for b in brokers if self.is_free(name, b)]
            elif machine.is_root:
                ways += [
                    (name, b, True) for b in brokers
                    if self.level[b] == 0 and name < b and self.is_free(name, b) and self.is_free(b, name)
                ]  # fmt: skip
            elif machine.parent is None:
                ways += [
                    (name, b, False) for b in brokers
                    if self.region[b] == self.region[name] and self.level[b] < self.level[name]
                    and self.is_free(name, b)
                ]  # fmt: skip
        if ways:
            self.net.link(*self.dice.choice(ways))
        return bool(ways)

    def is_free(self, lower: Address, upper: Address) -> bool:
        return (lower, upper, "link") not in self.net.view

    # -- faults

    def fail(self) -> None:
        net, dice = self.net, self.dice
        match dice.randrange(7):
            case 0 | 1:
                wires = [w for w in net.wires if not w.is_lost]
                if wires:
                    wire = dice.choice(wires)
                    net.lose(wire, {end: dice.randint(0, len(wire.queues[end])) for end in wire.ends})
            case 2:
                name = dice.choice(self.brokers())
                level, region = self.level[name], self.region[name]
                net.crash(name, lambda count: dice.randint(0, count))
                self.add_broker(region, level)
            case 3 | 4:
                client = dice.choice(self.clients)
                broker = net.nodes[client].broker  # type: ignore[attr-defined]
                if broker is not None:
                    wire = net.view[client, broker, "link"]
                    net.lose(wire, {end: dice.randint(0, len(wire.queues[end])) for end in wire.ends})
            case 5:
                subscribers = [c for c in self.clients if c in net.joined]
                if subscribers:
                    low = dice.randint(0, SIZE)
                    net.select(dice.choice(subscribers), f"x between {low} and {low + dice.randint(0, SIZE)}")
            case _:
                if len(self.clients) < 9:
                    self.add_client()

    def is_known(self, client: Address) -> bool:
        """Of whom nobody has heard but a root that dies as well, nobody can tell."""
        return all(client in self.net.ports(root) for root in self.net.roots)

    def kill_client(self) -> None:
        client = self.dice.choice(self.clients)
        if self.is_known(client) or client not in self.net.sequences:
            self.clients.remove(client)
            self.net.crash(client, lambda count: self.dice.randint(0, count))

    def say_goodbye(self) -> None:
        """A client that has nothing to wait for, and of whom every root has heard, ends in good order."""
        client = self.dice.choice(self.clients)
        machine: Any = self.net.nodes[client]
        if machine.publisher.last and not machine.publisher.unconfirmed and self.is_known(client):
            self.clients.remove(client)
            self.net.tell(client, RegionLeave())
            self.net.crash(client)

    def hand_over(self) -> None:
        net, dice = self.net, self.dice
        publisher = dice.choice(self.clients)
        machine: Any = net.nodes[publisher]
        sessions = list(machine.publisher.sessions)
        what = dice.random()
        if sessions and what < 0.3:
            net.disconnect(publisher, dice.choice(sessions))
        elif sessions and what < 0.4:
            net.break_off(publisher, dice.choice(sessions))
        elif net.sequences.get(publisher):
            target = dice.choice([name for name in net.nodes if name != publisher])
            if target != machine.broker:
                net.connect(publisher, target)

    # -- a run

    def deliver(self) -> None:
        ready = self.net.waiting()
        if ready:
            if self.dice.random() < 0.05 or not hasattr(self, "speeds"):
                self.speeds: dict[Any, float] = {}
            weights = [self.speeds.setdefault((w.ends, e), self.dice.random() ** 3 + 0.01) for w, e in ready]
            self.net.step(*self.dice.choices(ready, weights)[0])

    def tick(self) -> None:
        net = self.net
        net.now = Micros(net.now + self.dice.randint(0, 20_000))
        due = [(name, key) for (name, key), at in net.timers.items() if at <= net.now]
        if due and self.dice.random() < 0.7:
            net.fire(*self.dice.choice(due))

    def act(self) -> None:
        roll = self.dice.random()
        if roll < self.faults:
            self.fail()
        elif roll < self.faults + 0.15:
            self.hand_over()
        elif roll < self.faults + 0.25:
            self.dial()
        else:
            self.net.publish(self.dice.choice(self.clients), x=self.dice.randint(0, SIZE))

    def run(self, steps: int, kills: float = 0.0, goodbyes: float = 0.0) -> None:
        while self.dial():
            self.net.settle()
        for _ in range(steps):
            if self.dice.random() < 0.4:
                self.act()
            if kills and len(self.clients) > 3 and self.dice.random() < kills:
                self.kill_client()
            if goodbyes and len(self.clients) > 3 and self.dice.random() < goodbyes:
                self.say_goodbye()
            for _ in range(self.dice.randint(0, 5)):
                self.deliver()
            self.tick()
        self.rest()

    def rest(self, steps_max: int = 40_000) -> None:
        """No more faults: everything is dialled, read and fired until nothing is left to do."""
        net = self.net
        for _ in range(steps_max):
            ready = net.waiting()
            if ready:
                net.step(*self.dice.choice(ready))
            elif not self.dial():
                waits = {key: at for key, at in net.timers.items() if at < FOR_EVER // 2}
                if not waits or not (net.stuck() or self.is_busy()):
                    return
                net.fire(*min(waits, key=lambda key: (waits[key], key)))

    def is_busy(self) -> bool:
        """Sessions are under way, or somebody waits to be told that it is attached."""
        machines: list[Any] = [self.net.nodes[client] for client in self.clients]
        sessions = any(s.state != "direct" for m in machines for s in m.publisher.sessions.values())
        gone = any(stream not in self.net.nodes for name in self.net.nodes for stream in self.net.ports(name))
        return sessions or (gone and self.net.config.gone_us < FOR_EVER)
