"""Random trees, filters and schedules."""

import random
from typing import Any, Literal

from tests.papers.overlay.net import Net, span
from unisono.model.predicate import Filter, parse
from unisono.protocols.overlay.detection import Detection

Fault = Literal["crash", "cut", "heal"]


def random_filter(dice: random.Random, attributes: int, size: int) -> Filter:
    parts = []
    for name in "xy"[:attributes]:
        low = dice.randint(0, size)
        parts.append(f"{name} between {low} and {min(size, low + dice.randint(0, size // 2))}")
    return parse(" and ".join(parts))


def point_in(dice: random.Random, filter: Filter, size: int) -> dict[str, int]:
    while True:
        point = {"x": dice.randint(0, size), "y": dice.randint(0, size)}
        if filter.matches(point):
            return point


def random_tree(dice: random.Random, count: int) -> list[int]:
    return [-1, *(dice.randrange(i) for i in range(1, count))]


class Play:
    """One random run on a Net: people act and links deliver in random order, at random speeds."""

    def __init__(
        self,
        seed: int,
        detection: Detection,
        brokers_max: int,
        attributes: int,
        subs_per_client: int = 1,
        covering: bool = False,
    ) -> None:
        self.dice = random.Random(seed)
        self.size = 4 if attributes == 2 else 6
        self.attributes = attributes
        self.net = Net(random_tree(self.dice, self.dice.randint(2, brokers_max)), detection, covering=covering)
        self.subs_per_client = subs_per_client
        self.ads: dict[str, Filter] = {}
        self.clients: dict[str, list[str]] = {}
        self.made = 0

    def advertise(self) -> None:
        self.made += 1
        name = f"p{self.made}"
        self.ads[name] = random_filter(self.dice, self.attributes, self.size)
        self.net.advertise(name, self.place(), self.ads[name])

    def subscribe(self) -> None:
        self.made += 1
        client, at = f"c{self.made}", self.place()
        self.clients[client] = []
        for i in range(self.dice.randint(1, self.subs_per_client)):
            self.clients[client].append(f"{client}.{i}")
            self.net.subscribe(client, at, random_filter(self.dice, self.attributes, self.size), f"{client}.{i}")

    def place(self) -> int:
        return self.dice.choice([i for i, name in enumerate(self.net.names) if name in self.net.sites])

    def publish(self) -> None:
        alive = [name for name in self.ads if self.net.home[name] in self.net.sites]
        if alive:
            name = self.dice.choice(alive)
            self.net.publish(name, **point_in(self.dice, self.ads[name], self.size))

    def churn(self) -> None:
        alive_ads = [name for name in self.ads if self.net.home[name] in self.net.sites]
        alive_clients = [name for name in self.clients if self.net.home[name] in self.net.sites]
        match self.dice.randrange(4):
            case 0:
                self.advertise()
            case 1:
                self.subscribe()
            case 2 if len(alive_ads) > 1:
                name = self.dice.choice(alive_ads)
                self.net.unadvertise(name)
                del self.ads[name]
            case 3 if len(alive_clients) > 1:
                name = self.dice.choice(alive_clients)
                sub = self.clients[name].pop()
                self.net.unsubscribe(name, sub)
                if not self.clients[name]:
                    del self.clients[name]
            case _:
                pass

    def deliver(self) -> None:
        waiting = [link for link, channel in self.net.channels.items() if channel]
        if waiting:
            # Links have speeds, redrawn now and then: some fall far behind.
            if self.dice.random() < 0.05 or not hasattr(self, "speeds"):
                self.speeds = {link: self.dice.random() ** 3 + 0.01 for link in self.net.channels}
            weights = [self.speeds.get(link, 0.5) for link in waiting]
            self.net.step(*self.dice.choices(waiting, weights)[0])

    def fail(self, fault: Fault) -> None:
        net, dice = self.net, self.dice
        match fault:
            case "crash" if len(net.sites) > 2:
                net.crash(dice.choice(list(net.sites)), dice)
            case "cut" | "heal" if net.above:
                net.cut(dice.choice(list(net.above)), dice)
            case _:
                pass

    def run(self, steps: int, churn: float = 0.0, start_settled: bool = True, fault: Fault | None = None) -> None:
        for _ in range(self.dice.randint(2, 5)):
            self.advertise()
        for _ in range(self.dice.randint(2, 6)):
            self.subscribe()
        if start_settled:
            self.net.settle(self.dice)
        for step in range(steps):
            self.act(churn)
            if fault is not None and self.dice.random() < 2 / steps:
                self.fail("crash" if fault == "heal" and self.dice.random() < 0.2 else fault)
            if fault == "heal" and (self.dice.random() < 0.15 or step == steps - 5):
                self.net.heal(self.dice)
            for _ in range(self.dice.randrange(6)):
                self.deliver()
        self.net.settle(self.dice)

    def act(self, churn: float) -> None:
        if self.dice.random() < churn:
            self.churn()
        else:
            self.publish()


def everything(net: Net) -> list[Any]:
    """All clients hear everything: the simplest workload."""
    return [span(0, 9)] * len(net.names)
