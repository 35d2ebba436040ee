"""Homes by lot: what a plan has to be better than."""

from random import Random

from unisono.model.region import LatencyTable
from unisono.planning.placement import Demand, Placement, PlacementTree, expected_us


def placed_by_lot(demand: Demand, table: LatencyTable, tree: PlacementTree, seed: int) -> Placement:
    dice = Random(seed)
    homes = {topic: dice.choice(table.regions) for topic in sorted(demand.rates)}
    return Placement(tree, homes, *expected_us(demand, table, tree, homes))
