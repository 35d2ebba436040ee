"""The simulator: steps of the bare heap loop, and events of a played scenario, per CPU second."""

import time
from typing import Any

from unisono.sim import scenario
from unisono.sim.world import World

STEPS = 500_000


def run() -> list[dict[str, Any]]:
    return [*(bare_loop(pending) for pending in (1, 100, 10_000)), played("fifo/reorder", 20)]


def bare_loop(pending: int) -> dict[str, Any]:
    world = World(0)

    def tick(left: int) -> None:
        if left:
            world.after(10, tick, left - 1)

    for i in range(pending):
        world.after(i, tick, STEPS // pending)
    started = time.process_time()
    steps = world.run()
    spent = time.process_time() - started
    return {"case": f"bare heap, {pending} entries", "steps_per_cpu_s": round(steps / spent)}


def played(name: str, seeds: int) -> dict[str, Any]:
    chosen = scenario.load(name)
    started = time.process_time()
    deliveries = sum(
        record.kind == "deliver" for seed in range(seeds) for record in scenario.play(chosen, seed).records
    )
    spent = time.process_time() - started
    return {"case": f"{name}, {seeds} seeds", "deliveries_per_cpu_s": round(deliveries / spent)}
