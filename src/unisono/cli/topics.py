"""`unisono topics`: every topic, where it lives, what it is ordered against, and how much happens on it."""

import asyncio
import sys
from functools import partial
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.table import Table

from unisono.cli.asking import ask_all, check_homes, end_if_silent
from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Timeout, Token, Where
from unisono.cli.screen import screen
from unisono.errors import TransportError
from unisono.model.health import TopicSeen
from unisono.model.interest import check_interest
from unisono.runtime.driver.loop import run
from unisono.runtime.links.control import Survey, Surveyed

ALL = ">"


class TopicLine(Struct, frozen=True):
    """One topic, as the command shows it."""

    topic: str
    home: str
    number: int
    per_s: float
    subscribers: int
    climbing: int
    group: tuple[str, ...]
    others: int
    """What it is ordered against besides, at nodes that do not answer or that hide it from us."""


def topics(
    where: Where,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A name, a pattern like 'trades.*', or > for all.")
    ] = ALL,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Measure rates for this many seconds.")] = 1.0,
    token: Token = None,
    authority: Authority = None,
    timeout: Timeout = 2.0,
    as_json: Json = False,
) -> None:
    """List topics: home, rate, subscribers, and the topics each is ordered against.

    Exit 0 if all nodes answer, 1 if some do not.

    Example: unisono topics deployment.toml 'trades.*'
    """
    check_interest(pattern)
    lines, more, silent = run(_measure(reach(where, token, authority), pattern, seconds, timeout))
    if as_json:
        sys.stdout.write(msgspec.json.encode({"topics": lines, "more": more, "silent": silent}).decode() + "\n")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("topic", "home", "last number", "per s", "subscribers", "climbing"):
            table.add_column(column, justify="left" if column in ("topic", "home") else "right")
        table.add_column("ordered against", overflow="fold")
        for line in lines:
            others = [f"{line.others} that nobody here can name"] if line.others else []
            group = ", ".join([*line.group, *others]) or "nothing"
            counts = (str(line.number), f"{line.per_s:.1f}", str(line.subscribers), str(line.climbing))
            table.add_row(line.topic, line.home, *counts, group)
        if lines:
            screen().print(table)
        elif not silent:
            nothing = "no topics yet: a topic is created when it is first used"
            screen(stderr=True).print(nothing if pattern == ALL else f"no topic matches {pattern}")
        if more:
            screen(stderr=True).print(f"and {more} more: ask with a narrower pattern")
    end_if_silent(silent, "its topics")


def _seen(answers: dict[str, Surveyed | TransportError]) -> list[TopicSeen]:
    return [seen for answer in answers.values() if isinstance(answer, Surveyed) for seen in answer.topics]


def _names(answers: dict[str, Surveyed | TransportError]) -> dict[int, str]:
    return {seen.id: seen.name for seen in _seen(answers)}


async def _measure(
    at: Destination, pattern: str, seconds: float, timeout: float
) -> tuple[list[TopicLine], int, dict[str, str]]:
    """Two looks: the difference of their numbers is the rate."""

    async def look(pattern: str = pattern) -> dict[str, Surveyed | TransportError]:
        deployment, answers = await ask_all(at, timeout, partial(Survey, pattern=pattern), Surveyed)
        check_homes(deployment, "homes of topics")
        return answers

    before = await look()
    await asyncio.sleep(seconds)
    lines, more, silent = [], 0, {}
    after = await look()
    names = _names(after)
    if pattern != ALL and not names.keys() >= {each for found in _seen(after) for each in found.group}:
        names |= _names(await look(ALL))  # what they are ordered against need not match
    for name, now in after.items():
        if isinstance(now, TransportError):
            silent[name] = str(now)
            continue
        then = before[name]
        known = {} if isinstance(then, TransportError) else {seen.name: seen.number for seen in then.topics}
        took_s = seconds if isinstance(then, TransportError) else max(1e-3, (now.at_us - then.at_us) / 1e6)
        more += now.more
        for seen in now.topics:
            rate = (seen.number - known.get(seen.name, seen.number)) / took_s
            counts = (seen.number, round(rate, 3), seen.subscribers, seen.climbing)
            group = sorted(names[each] for each in seen.group if each in names)
            lines.append(TopicLine(seen.name, name, *counts, tuple(group), len(seen.group) - len(group)))
    return sorted(lines, key=lambda line: line.topic), more, silent
