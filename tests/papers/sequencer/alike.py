"""Random deployments in which many hear the same topics, most of them at home at one node: groups told in short."""

import random
from typing import Any

from tests.papers.sequencer.fuzz import migrate
from tests.papers.sequencer.pump import Deployment
from unisono.protocols.sequencer.config import SequencerConfig


def alike(seed: int, config: SequencerConfig, make: Any = Deployment, moves: bool = False) -> Any:
    dice = random.Random(seed)
    tree: dict[str, str | None] = dice.choice([{"n0": None}, {"n0": None, "n1": "n0"}])
    at = dice.choice(list(tree))
    topics = range(dice.randint(3, 6))
    elsewhere = {t for t in topics if dice.random() < 0.1}
    world = make(tree, {t: dice.choice(list(tree)) if t in elsewhere else at for t in topics}, config)
    lists = [tuple(topics), tuple(topics[:3]), tuple(topics[-3:])]
    names = [f"s{i}" for i in range(dice.randint(2, 4))]
    for name in names:
        world.client(name, *dice.choice(lists[: 1 if dice.random() < 0.7 else 3]))
    churn = dice.choice([0.0, 0.1, 0.3])
    for i in range(dice.randint(20, 60)):
        roll = dice.random()
        name = dice.choice(names)
        if moves and roll > 0.95:
            migrate(world, dice)
        elif roll < churn:
            mine = world.clients[name].subscriber.subscribed
            if len(mine) < len(topics) and (len(mine) < 2 or dice.random() < 0.6):
                world.subscribe(name, *dice.choice([tuple(topics), (dice.choice(topics),)]))
            elif mine:
                world.unsubscribe(name, dice.choice(mine))
        else:
            world.publish(dice.choice([*names, "p0", "p1"]), dice.choice(topics), f"e{i}")
        world.shuffle(dice, dice.choice([0, 1, 3, 10, 40]))
    world.settle(dice, timers_max=2000)
    return world
