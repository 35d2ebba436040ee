"""Homes that move all the time, while everything else happens: a person has them moved, again and again."""

import asyncio
from random import Random

from tests.runtime.crash.harness import NODES, TOPICS, Run
from unisono.errors import UnisonoError
from unisono.runtime.links import control
from unisono.runtime.links.questions import ask_node

SPAN_S = 6.0
"""At least as long as other faults of most runs, so that they meet topics on their way."""
ANSWER_S = 2.0


async def move_homes(run: Run, dice: Random) -> None:
    """Topics go from node to node; who is asked while the root is away, or has heard of no homes yet, asks again."""
    loop = asyncio.get_running_loop()
    end, moved = loop.time() + SPAN_S, 0
    while loop.time() < end:
        topic, to = dice.choice(TOPICS), dice.choice(NODES)
        moved += await _moves(run, topic, to)
        await asyncio.sleep(dice.uniform(0.0, 0.4))
    run.story.append(f"homes were moved {moved} times")
    run.moves += moved


async def _moves(run: Run, topic: str, to: str) -> bool:
    try:
        answer = await ask_node(
            f"127.0.0.1:{run.port('hub')}",
            "",
            lambda me: control.MoveTopic(me, topic, to),
            control.MoveOrdered,
            ANSWER_S,
        )
    except UnisonoError:
        return False
    return answer.problem is None and answer.at != to
