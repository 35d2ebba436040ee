"""SCRIBE on Pastry: keys find their node in about log16 N hops, trees reach their members and nobody else."""

from math import log
from random import Random
from statistics import mean

import pytest

from unisono.sim.scribe import Ring, ScribeTree, node_id, shared_digits


def ring_of(nodes: int) -> tuple[Ring, list[int]]:
    ring = Ring(Random(nodes))
    ids = [node_id(f"node {i}") for i in range(nodes)]
    for each in ids:
        ring.add(each)
    return ring, ids


def numerically_closest(ids: list[int], key: int) -> int:
    return min(ids, key=lambda each: min(abs(each - key), 2**128 - abs(each - key)))


@pytest.mark.parametrize("nodes", [1, 2, 10, 100, 1_000])
def test_a_key_reaches_the_numerically_closest_node_from_everywhere(nodes: int) -> None:
    ring, ids = ring_of(nodes)
    dice = Random(1)
    for n in range(100):
        key = node_id(f"key {n}")
        assert ring.route(dice.choice(ids), key)[-1] == numerically_closest(ids, key) == ring.closest(key)


@pytest.mark.parametrize("nodes", [10, 100, 1_000, 10_000])
def test_routes_take_about_log16_n_hops(nodes: int) -> None:
    ring, ids = ring_of(nodes)
    dice = Random(2)
    hops = [len(ring.route(dice.choice(ids), node_id(f"key {n}"))) - 1 for n in range(400)]
    assert mean(hops) == pytest.approx(log(nodes, 16), abs=0.35)


def test_no_hop_loses_a_digit_but_the_last() -> None:
    ring, ids = ring_of(5_000)
    dice = Random(3)
    for n in range(100):
        key = node_id(f"key {n}")
        route = ring.route(dice.choice(ids), key)
        digits = [shared_digits(node, key) for node in route]
        assert digits[:-1] == sorted(digits[:-1])  # the last hop goes to the closest id, whatever its digits


def reachable(tree: ScribeTree) -> list[int]:
    found, under_way = [], [tree.root]
    while under_way:
        node = under_way.pop()
        found.append(node)
        under_way += tree.children[node]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_reaches_each_member_once_however_they_come_and_go(seed: int) -> None:
    ring, ids = ring_of(300)
    dice, key = Random(seed), node_id("topic")
    tree = ScribeTree(ring.closest(key))
    members: dict[int, None] = {}
    for _ in range(400):
        node = dice.choice(ids)
        if node in members:
            tree.leave(node)
            del members[node]
        else:
            tree.join(ring.route(node, key))
            members[node] = None
        found = reachable(tree)
        assert len(found) == len(set(found))
        assert all(member in found for member in members)
    for node in list(members):
        tree.leave(node)
    assert reachable(tree) == [tree.root]
    assert not tree.parent


def test_a_join_stops_at_the_first_node_that_is_in_the_tree() -> None:
    ring, ids = ring_of(2_000)
    key = node_id("topic")
    tree = ScribeTree(ring.closest(key))
    first = [tree.join(ring.route(node, key)) for node in ids[:20]]
    for node in ids[20:1_500]:
        tree.join(ring.route(node, key))
    last = [tree.join(ring.route(node, key)) for node in ids[1_500:1_600]]
    assert mean(last) < mean(first)
    assert tree.join(ring.route(ids[0], key)) == 0
