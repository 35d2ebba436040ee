"""Random trees of nodes: sometimes a star, sometimes a line, mostly neither."""

from random import Random

from unisono.model.settings import NodeSpec


def random_tree(dice: Random, nodes_min: int, nodes_max: int) -> list[NodeSpec]:
    """`n0` is the root."""
    count = dice.randint(nodes_min, nodes_max)
    shape = dice.choice(["star", "line", "any", "any"])
    nodes = [NodeSpec("n0")]
    for i in range(1, count):
        above = {"star": 0, "line": i - 1, "any": dice.randrange(i)}[shape]
        nodes.append(NodeSpec(f"n{i}", parent=f"n{above}"))
    return nodes
