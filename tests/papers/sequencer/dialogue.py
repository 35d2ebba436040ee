"""Golden dialogues: a script's commands are played on real machines and everything that is said is written down.

Lines that start with `$` are commands, the lines below are what followed. Commands:

    nodes A, B under A, ...          the tree                 topics T1@A T2@B ...     homes
    mode stamp|early full|delta                               hold KIND to WHO [on T]  keep letters back
    release                          deliver what was held    WHO subscribes T1 T2     WHO leaves T1
    WHO publishes NAME on T1

`python -m tests.papers.sequencer.dialogue FILE` prints the script as it should be.
"""

import re
import sys
from pathlib import Path
from typing import Any, Literal, cast

from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, Letter
from unisono.machine import Gap, Heard, Joined
from unisono.protocols.sequencer import messages as m


def number(text: str) -> int:
    return int(text.removeprefix("T"))


def entries(some: dict[Any, int]) -> str:
    return "{" + ", ".join(f"T{t}:{n}" for t, n in sorted(some.items())) + "}"


def names(topics: Any) -> str:
    return "{" + ", ".join(f"T{t}" for t in sorted(topics)) + "}"


def listed(topics: Any) -> str:
    return ", ".join(f"T{t}" for t in topics)


def said(message: Any) -> str:
    """One message in words."""
    match message:
        case m.Creates(items=items):
            return "Create " + ", ".join(f"T{item.topic}" for item in items)
        case m.Fill(topic=t, run=run, todo=todo):
            return f"Fill T{t}:{run.first} {entries(run.entries)}, to do {names(todo)}"
        case m.Done(topic=t, run=run):
            return f"Done T{t}:{run.first} {entries(run.entries)}"
        case m.Collect(here=here, topics=topics, new=new):
            return f"Collect {listed(here)} for {names(topics)}, new {names(new)}"
        case m.Part(collected=collected, todo=todo):
            return "Part " + ", ".join(f"T{t}:{n}" for t, n in collected.items()) + f", to do {names(todo)}"
        case m.Install(here=here, topics=topics):
            return f"Install {listed(here)} for {names(topics)}"
        case m.Installed(topic=t, base=base):
            return f"Installed T{t}, base {base}"
        case m.Stamps(topic=t, runs=runs):
            return "Stamps " + ", ".join(f"T{t}:{run.first} {entries(run.entries)}" for run in runs)
        case m.Pieces(topic=t, pieces=(piece,)):
            what = f"settles {names(piece.settled)}" if piece.missing is None else f"missing {names(piece.missing)}"
            return f"Piece T{t}:{piece.run.first} {entries(piece.run.entries)}, {what}"
        case m.Taken(upto=upto):
            return "Taken " + ", ".join(f"T{t}" for t in upto)
        case m.Payload(event=event):
            return f"payload {event.payload.decode()}"
        case _:
            return f"{type(message).__name__} T{message.topic}"


class Player(Deployment):
    """A deployment that writes down what is delivered."""

    def start(self) -> None:
        self.lines: list[str] = []

    def deliver(self, letter: Letter) -> None:
        if not isinstance(letter.message, Joined):
            inner = letter.message.message if isinstance(letter.message, Heard) else letter.message
            way = "=>" if isinstance(letter.message, Heard) else "->"
            self.lines.append(f"  {letter.source} {way} {letter.to}: {said(inner)}")
        super().deliver(letter)

    def _delivered(self, who: str, item: Any) -> None:
        super()._delivered(who, item)
        match item:
            case Heard(message=event):
                self.lines.append(f"  {who} is notified of {event.payload.decode()}")
            case Joined(topic=topic, base=base):
                self.lines.append(f"  {who} has joined T{topic} at {base}")
            case Gap(topic=topic, first=first):
                self.lines.append(f"  {who} is told of a gap at T{topic}:{first}")


def play(text: str) -> str:
    """The script with the dialogue as it really goes."""
    tree: dict[str, str | None] = {}
    homes: dict[int, str] = {}
    config = STAMP
    world: Player | None = None
    held: re.Match[str] | None = None
    out: list[str] = []

    def hold(letter: Letter) -> bool:
        if held is None:
            return False
        topic = held["topic"]
        return letter.kind == held["kind"] and letter.to == held["to"] and (not topic or letter.topic == number(topic))

    for line in text.splitlines():
        if not line.startswith("$"):
            if line.startswith("#") or not line:
                out.append(line)
            continue
        out.append(line)
        command = line.removeprefix("$ ")
        if command.startswith("nodes "):
            for part in command.removeprefix("nodes ").split(", "):
                name, _, parent = part.partition(" under ")
                tree[name] = parent or None
            continue
        if command.startswith("topics "):
            for part in command.split()[1:]:
                topic, _, node = part.partition("@")
                homes[number(topic)] = node
            continue
        if command.startswith("mode "):
            mode, encoding = command.split()[1:]
            config = replace(
                config,
                early=mode == "early",
                encoding=cast(Literal["full", "delta"], encoding),
            )
            continue
        if world is None:
            world = Player(tree, homes, config)
        world.start()
        if found := re.fullmatch(r"hold (?P<kind>\w+) to (?P<to>\w+)(?: on (?P<topic>\w+))?", command):
            held = found
        elif command == "release":
            held = None
        elif found := re.fullmatch(r"(\w+) subscribes (.*)", command):
            world.subscribe(found[1], *map(number, found[2].split()))
        elif found := re.fullmatch(r"(\w+) leaves (.*)", command):
            world.unsubscribe(found[1], *map(number, found[2].split()))
        elif found := re.fullmatch(r"(\w+) publishes (\S+) on (\w+)", command):
            world.publish(found[1], number(found[3]), found[2])
        else:
            raise ValueError(f"no such command: {command}")
        world.run(hold)
        out += world.lines
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(play(Path(sys.argv[1]).read_text()), end="")
