"""A process that writes to a replica until it is killed:
`python -m tests.replicas.worker DEPLOYMENT PLACE SEED [WHERE]`.

Says `ready` when it has caught up. With WHERE it kills itself at that place, the third time it comes there."""

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from itertools import count
from threading import Event
from typing import Any

import unisono
from unisono.postgres.address import is_postgres
from unisono.replicas import Execution, Replica
from unisono.replicas.postgres.database import PostgresDatabase
from unisono.replicas.sqlite import SqliteDatabase
from unisono.replicas.tail import TentativeTail

SUM = "INSERT INTO history SELECT (SELECT coalesce(max(id), 0) + 1 FROM history), 'sum ' || sum(n) FROM account"


def in_words_of(place: str, sql: str) -> str:
    """With the parameters as the database writes them."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql) if is_postgres(place) else sql


PLACES = ("taken back", "done again", "merged", "committed")
"""Own operations are just taken back; one of them was done again; another replica's was put before them and nothing is
committed; that is committed and own ones are not done again."""


is_ready = Event()


def die_at(place: str, store: type[Any]) -> None:
    """Puts the place into the code that this process runs."""
    inside = {"again": False, "settling": False}
    left = [3]

    def die() -> None:
        left[0] -= is_ready.is_set()
        if left[0] < 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type[Any], name: str, flag: str = "", then: Callable[[], object] = lambda: None) -> None:
        work = getattr(owner, name)

        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            inside[flag] = True
            try:
                found = work(self, *arguments, **named)
                then()
                return found
            finally:
                inside[flag] = False

        setattr(owner, name, wrapped)

    around(TentativeTail, "_do_again", "again")
    around(TentativeTail, "settle", "settling")
    match place:
        case "taken back":
            around(store, "undo", then=lambda: inside["settling"] and die())
        case "done again":
            around(store, "run", then=lambda: inside["again"] and die())
        case "merged":
            around(store, "run", then=lambda: inside["settling"] and not inside["again"] and die())
        case _:
            around(store, "commit", then=die)


async def write(deployment: str, place: str, seed: int) -> None:
    dice = random.Random(seed)
    take, give = (in_words_of(place, f"UPDATE account SET n = n {sign} ? WHERE id = ?") for sign in "-+")
    async with (
        unisono.connect(deployment, timeout=60) as session,
        Replica(session, place, ["a", "b"]) as replica,
    ):
        await replica.catch_up()
        print("ready", flush=True)
        is_ready.set()
        under_way: list[Execution] = []
        while True:
            amount = dice.randrange(100)
            transfer = [(take, (amount, dice.randrange(8))), (give, (amount, dice.randrange(8))), (SUM, ())]
            under_way.append(await replica.transaction(transfer, topic=dice.choice("ab")))
            if len(under_way) > 20:
                await under_way.pop(0).stable()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        die_at(sys.argv[4], PostgresDatabase if is_postgres(sys.argv[2]) else SqliteDatabase)
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
