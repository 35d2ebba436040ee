"""The airport is closed, so the flight is diverted: who hears the second before the first lands it in the wrong place.

Three regions, the distances of public clouds between them, one datagram in twenty lost. The tower says that the airport
is closed; the airline hears it and diverts the flight; a dispatcher far from both hears topics of both. In between a
cameraman shows a frame of video to the same people, and somebody draws on it. Each round is played twice: bare
(whoever publishes sends everybody a copy, and again after 200 ms if it was lost: drawn from the same distances), and
through a causal mesh. What came first at the dispatcher is counted, and one round is drawn.

    python examples/airport.py          # --rounds 40 --seed 1

Exit status: 0 if the mesh told no effect before its cause, 1 if it did.
"""

import argparse
import asyncio
import random
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

import unisono
from unisono.model.region import public_cloud
from unisono.runtime.driver.loop import run
from unisono.runtime.node.node import NodeConfig
from unisono.runtime.tools.emulate import Emulation, star_of

TOWER, AIRLINE, DISPATCHER = "eu-west-1", "us-east-1", "ap-northeast-1"
PAIRS = (("flights.airports", "LHR is closed", "flights.plans", "BA1 lands at LGW"),
         ("video.frames", "frame 1 201", "video.marks", "a circle on frame 1 201"))  # fmt: skip
"""Cause and effect: topics and what is said there."""
DROP, AGAIN_S = 0.05, 0.2
WIDTH = 60


class Heard(Struct, frozen=True):
    """What a dispatcher was told in one round: milliseconds since the cause was said, None: never."""

    cause_ms: float | None
    effect_ms: float | None

    @property
    def is_backwards(self) -> bool:
        """The effect came before its cause."""
        return self.effect_ms is not None and self.cause_ms is not None and self.effect_ms < self.cause_ms


async def bare(rounds: int, dice: random.Random) -> list[Heard]:
    """A copy to everybody, and again if it was lost: what a plain broker per region does over these distances."""
    latencies = public_cloud()

    def way_s(source: str, to: str) -> float:
        again = 0
        while dice.random() < DROP:
            again += 1
        return latencies.between(source, to) / 1e6 * dice.uniform(1.0, 1.2) + again * AGAIN_S

    found = []
    for _ in range(rounds):
        cause = way_s(TOWER, DISPATCHER)
        effect = way_s(TOWER, AIRLINE) + way_s(AIRLINE, DISPATCHER)
        found.append(Heard(cause * 1000, effect * 1000))
    return found


async def ordered(rounds: int) -> tuple[list[Heard], dict[str, int]]:
    """The same through a mesh of three brokers, one in each region, all in this process."""
    regions = (TOWER, AIRLINE, DISPATCHER)
    deployment = star_of(regions, public_cloud(), _free_ports(len(regions) + 1), None, "causal")
    deployment = structs.replace(deployment, causal=structs.replace(deployment.causal, drop=DROP))
    found: list[Heard] = []
    async with AsyncExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = await stack.enter_async_context(Emulation(deployment, base, NodeConfig(witness_s=0)))
        tower, airline, far = [
            await stack.enter_async_context(unisono.connect(world.view(region), region=region)) for region in regions
        ]
        at_airline = await stack.enter_async_context(
            airline.subscribe("flights.airports", "video.frames", order="causal")
        )
        at_far = await stack.enter_async_context(far.subscribe("flights.*", "video.*", order="causal", deadline="2s"))
        for number in range(rounds):
            cause_topic, cause, effect_topic, effect = PAIRS[number % len(PAIRS)]
            told: dict[str, float] = {}
            begun = time.monotonic()

            def hear(event: unisono.Notification, told: dict[str, float] = told, begun: float = begun) -> None:
                if event.event is not None:
                    told.setdefault(event.topic, (time.monotonic() - begun) * 1000)

            listening = asyncio.create_task(_hear_all(at_far, hear))
            await tower.publish(cause_topic, {"round": number, "says": cause})
            if await _await_round(at_airline, number):
                await airline.publish(effect_topic, {"round": number, "says": effect}, deadline="2s")
            until = time.monotonic() + 3
            while len(told) < 2 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            listening.cancel()
            await asyncio.wait([listening])
            found.append(Heard(told.get(cause_topic), told.get(effect_topic)))
        counters = dict(far.mesh_report()) if hasattr(far, "mesh_report") else {}
    return found, counters


async def _hear_all(stream: unisono.Stream, hear: Callable[[unisono.Notification], None]) -> None:
    async for event in stream:
        hear(event)


async def _await_round(stream: unisono.Stream, number: int) -> bool:
    """Whether the airline was told of the cause of this round."""
    try:
        async with asyncio.timeout(3):
            async for event in stream:
                if event.event is not None and event.data["round"] == number:
                    return True
    except TimeoutError:
        pass
    return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def draw(console: Console, title: str, heard: Heard, pair: tuple[str, str, str, str]) -> None:
    """When the dispatcher was told what, on a line of time."""
    _, cause, _, effect = pair
    latest = max(heard.cause_ms or 0, heard.effect_ms or 0, 1.0)
    console.print(f"\n[bold]{title}[/bold]: what the dispatcher in {DISPATCHER} was told, in ms after the tower spoke")
    told = [(heard.cause_ms, cause, "cause"), (heard.effect_ms, effect, "effect")]
    for at, says, what in sorted(told, key=lambda each: each[0] if each[0] is not None else latest + 1):
        if at is None:
            console.print(f"  {'never':>8}  {says} ({what})")
        else:
            console.print(f"  {at:8.0f}  {'·' * round(at / latest * WIDTH)}● {says} ({what})")


async def play(rounds: int, seed: int, console: Console) -> bool:
    without, (mesh, counters) = await bare(rounds, random.Random(seed)), await ordered(rounds)
    table = Table(title="The effect before its cause, at the dispatcher")
    for column in ("", "rounds", "effect first", "cause p50 ms", "effect p50 ms", "not told"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in (("bare", without), ("causal mesh", mesh)):
        causes = sorted(each.cause_ms for each in found if each.cause_ms is not None)
        effects = sorted(each.effect_ms for each in found if each.effect_ms is not None)
        missing = 2 * len(found) - len(causes) - len(effects)
        middle = [f"{each[len(each) // 2]:.0f}" if each else "" for each in (causes, effects)]
        table.add_row(name, str(len(found)), str(sum(each.is_backwards for each in found)), *middle, str(missing))
    console.print(table)
    wrong = next((number for number, each in enumerate(without) if each.is_backwards), 0)
    draw(console, "bare", without[wrong], PAIRS[wrong % len(PAIRS)])
    draw(console, "causal mesh", mesh[wrong], PAIRS[wrong % len(PAIRS)])
    lost = counters.get("dropped_on_purpose", 0)
    console.print(f"\nThe dispatcher's own datagrams: {counters.get('sent', 0)} sent, {lost} lost on purpose.")
    return not any(each.is_backwards for each in mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30, help="causes and effects, played twice")
    parser.add_argument("--seed", type=int, default=1, help="of the losses of the bare run")
    arguments = parser.parse_args()
    raise SystemExit(0 if run(play(arguments.rounds, arguments.seed, Console(soft_wrap=True))) else 1)


if __name__ == "__main__":
    main()
