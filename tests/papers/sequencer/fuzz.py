"""Random deployments, random schedules: everything may overtake everything that is allowed to."""

import random
from typing import Any

from msgspec.structs import replace

from tests.papers.sequencer.crashes import CrashingDeployment
from tests.papers.sequencer.pump import Deployment
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.messages import Relocate

BASE = SequencerConfig()
MODES = {
    "stamp full": replace(BASE, early=False, encoding="full"),
    "stamp delta": replace(BASE, early=False),
    "stamp delta causal": replace(BASE, early=False, shared_subscriptions_min=1, causal=True),
    "early full": replace(BASE, encoding="full"),
    "early delta": BASE,
    "early delta causal": replace(BASE, shared_subscriptions_min=1, causal=True),
    "early short": replace(BASE, short_from=2),
}


def random_tree(dice: random.Random) -> dict[str, str | None]:
    count = dice.randint(1, 6)
    shape = dice.choice(["random", "star", "line"])
    tree: dict[str, str | None] = {"n0": None}
    for i in range(1, count):
        parent = {"random": dice.randrange(i), "star": 0, "line": i - 1}[shape]
        tree[f"n{i}"] = f"n{parent}"
    return tree


def fuzz(
    seed: int,
    config: SequencerConfig,
    moves: bool = False,
    make: Any = Deployment,
    stop: bool = False,
    gives_up: bool = False,
) -> Any:
    dice = random.Random(seed)
    tree = random_tree(dice)
    nodes = list(tree)
    if len(nodes) > 1 and dice.random() < 0.4:
        nodes.remove("n0")
    topics = range(dice.randint(2, 6))
    world = make(tree, {t: dice.choice(nodes) for t in topics}, config)
    names = [f"s{i}" for i in range(dice.randint(2, 5))]
    joiners = {name for name in names if dice.random() < 0.5}
    for name in names:
        world.client(name, *dice.sample(topics, dice.randint(1, min(4, len(topics)))))
    churn = dice.choice([0.0, 0.2, 0.5])
    for i in range(dice.randint(10, 50)):
        roll = dice.random()
        name = dice.choice(names)
        client = world.clients[name]
        if moves and roll > 0.85:
            migrate(world, dice)
        elif gives_up and client.subscriber.joining and dice.random() < 0.5:
            world.unsubscribe(name, *client.subscriber.joining)
        elif roll < churn:
            mine = client.subscriber.subscribed
            if name in joiners or len(mine) < 2 or dice.random() < 0.5:
                world.subscribe(name, *dice.sample(topics, dice.randint(1, min(3, len(topics)))))
            else:
                world.unsubscribe(name, dice.choice(mine))
        else:
            publisher = dice.choice([*names, "p0", "p1"])
            world.publish(publisher, dice.choice(topics), f"e{i}")
        world.shuffle(dice, dice.choice([0, 1, 3, 10]))
    if not stop:  # in the middle of everything
        world.settle(dice, timers_max=2000)
    return world


def crashing(seed: int, losses: float = 0.03, crashes: float = 0.03) -> Any:
    """Makes a deployment whose nodes crash and whose network loses everything but payloads."""

    def make(*arguments: Any, **machines: Any) -> CrashingDeployment:
        world = CrashingDeployment(*arguments, **machines)
        world.dice, world.losses, world.crashes = random.Random(seed), losses, crashes
        return world

    return make


def migrate(world: Deployment, dice: random.Random) -> None:
    node = dice.choice(list(world.nodes))
    hosted = list(world.nodes[node].hosted)
    neighbours = [n for n, p in world.tree.items() if p == node]
    if world.tree[node] is not None:
        neighbours.append(world.tree[node])
    if hosted and neighbours and dice.random() < 0.3:
        path, at = [], node
        for _ in range(dice.randint(1, 3)):
            ways = [n for n, p in world.tree.items() if p == at] + ([world.tree[at]] if world.tree[at] else [])
            at = dice.choice(ways)
            path.append(Address(at))
        world.command(dice.choice(list(world.nodes)), Relocate(Topic(dice.choice(hosted)), tuple(path)))
    elif hosted and neighbours:
        world.command(node, Migrate(Topic(dice.choice(hosted)), Address(dice.choice(neighbours))))


def complaints(world: Deployment) -> list[str]:
    return world.complaints() + world.unforced()
