"""Faults of a node's data: a disk that is full or fails, a directory that is older, shorter, empty or somebody else's.

After those that need a person, the run does what the node says is to be done.
"""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from random import Random

from tests.runtime.crash.harness import INCARNATION, NODES, Run
from tests.runtime.crash.process_faults import has, span

REMINDED_S = 4.0
"""Whoever was told something by a node dials it again within less."""


async def full_disk(run: Run, dice: Random) -> None:
    """The disk of a node fills up: it ends by itself; when there is room again, it is started again."""
    name, away = dice.choice(NODES), span(run, dice)
    if run.data(name) not in run.disks.mounted:
        run.story.append(f"full-disk is left out: {run.disks.why_not}")
        return
    async with run.hold(name):
        run.story.append(f"the disk of {name} is full for {away:.2f} s")
        await run.until_up(name)
        filler = run.data(name) / "filler"
        with filler.open("wb", buffering=0) as file:
            _fill(file.fileno())
            os.truncate(filler, max(0, filler.stat().st_size - dice.randrange(1, 1 << 14)))
            await run.refuses(name, "No space left on device")
            await asyncio.sleep(away)
        filler.unlink()
        run.start_node(name)
        await run.until_up(name)


def _fill(file: int) -> None:
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        return


async def failing_sync(run: Run, dice: Random) -> None:
    """The disk says yes to writes and no to every sync: the node ends by itself, before anything of that leaves."""
    if not has("strace"):
        run.story.append("failing-sync is left out: strace is not installed")
        return
    name, away = dice.choice(NODES), span(run, dice)
    async with run.hold(name):
        run.story.append(f"syncs of {name} fail; it is back {away:.2f} s later")
        await run.until_up(name)
        calls = "fdatasync,fsync"
        how = ("-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO")
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", os.devnull, *how, "-p", str(run.processes[name].pid)])
        await run.refuses(name, "Input/output error")
        await run.until_ended(tracer)
        await asyncio.sleep(away)
        run.start_node(name)
        await run.until_up(name)


async def rolled_back_data(run: Run, dice: Random) -> None:
    """Somebody restores a backup."""
    name, away = dice.choice(NODES), span(run, dice)
    async with run.hold(name):
        run.story.append(f"the data of {name} is set back by {away:.2f} s")
        await run.until_up(name)
        backup = run.directory / f"backup-{name}"
        shutil.copytree(run.data(name), backup)
        await asyncio.sleep(away)
        newest = _kill_and_copy(run, name)
        _replace(run.data(name), backup)
        await start_by_hand(run, dice, name, newest)


def written_bytes(log: Path) -> int:
    """Without the space that it has ahead."""
    return len(log.read_bytes().rstrip(b"\0"))


async def truncated_data(run: Run, dice: Random) -> None:
    name, share = dice.choice(NODES), dice.uniform(0.1, 0.9)
    async with run.hold(name):
        run.story.append(f"the log of {name} loses its last {share:.0%}")
        await run.until_up(name)
        newest = _kill_and_copy(run, name)
        log = max(run.data(name).glob("log-*"))
        os.truncate(log, int(written_bytes(log) * (1 - share)))
        await start_by_hand(run, dice, name, newest)


async def deleted_data(run: Run, dice: Random) -> None:
    name = dice.choice(NODES)
    async with run.hold(name):
        run.story.append(f"the data of {name} is deleted")
        await run.until_up(name)
        newest = _kill_and_copy(run, name)
        _clear(run.data(name))
        await start_by_hand(run, dice, name, newest)


def _kill_and_copy(run: Run, name: str) -> Path:
    """What the node has on its disk when it is killed."""
    run.kill(name)
    newest = run.directory / f"newest-{name}"
    shutil.copytree(run.data(name), newest)
    return newest


async def foreign_data(run: Run, dice: Random) -> None:
    """A node is started on the data of another one, or of another deployment: it has to say no."""
    name, other = dice.sample(NODES, 2)
    async with run.hold(name, other):
        run.story.append(f"{name} is started on the data of {other}")
        await run.until_up(other)
        run.kill(name)
        own, mine = run.directory / f"own-{name}", run.data(name)
        shutil.copytree(mine, own)
        _clear(mine)
        shutil.copytree(run.data(other), mine, dirs_exist_ok=True)
        run.start_node(name)
        await run.refuses(name, "belongs to")
        _replace(mine, own)
        run.start_node(name)
        await run.until_up(name)


async def start_by_hand(run: Run, dice: Random, name: str, newest: Path) -> None:
    """Starts a node whose data a person has touched. If it ends, one of the two things is done that it says: its newest
    data is put back, or given up."""
    run.start_node(name)
    if await _stays_up(run, name):
        return
    said = run.said(name)
    if "Put the newest data back" not in said or INCARNATION not in said:
        run.problems.append(f"{name} does not start, and does not say what to do: {said[-300:]}")
    if dice.random() < 0.5:
        run.story.append(f"{name} has forgotten, its newest data is put back")
        _replace(run.data(name), newest)
        run.start_node(name)
    else:
        run.story.append(f"{name} has forgotten, started with {INCARNATION}")
        run.start_node(name, INCARNATION)
    if not await _stays_up(run, name):
        run.problems.append(f"{name} does not start: {run.said(name)[-300:]}")
    await run.bring_back()


async def _stays_up(run: Run, name: str) -> bool:
    """Whether a node serves, and is still there when all who know it have told it what they know."""
    if not await run.until_up(name):
        return False
    until = asyncio.get_running_loop().time() + REMINDED_S
    while asyncio.get_running_loop().time() < until:
        if run.processes[name].poll() is not None:
            return False
        await asyncio.sleep(0.05)
    return True


def _clear(directory: Path) -> None:
    """Empties it; it may be a disk of its own, so it stays."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _replace(directory: Path, by: Path) -> None:
    _clear(directory)
    shutil.copytree(by, directory, dirs_exist_ok=True)
    shutil.rmtree(by)
