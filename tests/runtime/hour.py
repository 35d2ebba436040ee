"""Pages that are played: the first half hour, as a new user has it, and the tutorials.

`python -m tests.runtime.hour [PAGE]` types what a page says (all of them, or those whose path contains PAGE) and writes
the page with what every command printed. Ports are free ones while it is played; the page shows those that a user
would have.
"""

import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from unisono.runtime.tools.nats_server import find_binary
from unisono.runtime.tools.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-hour.md"
PATIENCE_S = 300
LINES_MAX, WIDTH = 16, 140
"""Of what a command printed, so much is shown."""


class Command(NamedTuple):
    """A line typed in a terminal; `goes_on`: in one of its own. `waits`: until it has printed this. `ends`: by itself,
    by the end of the chapter, and then what it printed is shown. `until`: it is typed again until it prints this."""

    line: str
    goes_on: bool = False
    waits: str = ""
    code: int = 0
    ends: bool = False
    until: str = ""


class Chapter(NamedTuple):
    """What it is about, in words, the files that are written, and what is typed."""

    title: str
    words: str
    commands: tuple[Command, ...]
    files: tuple[tuple[str, str], ...] = ()
    after: str = ""


class Page(NamedTuple):
    """A page, the words at its head, and its chapters."""

    path: Path
    head: str
    chapters: tuple[Chapter, ...]


def nats(place: int) -> Command:
    routes = ",".join(f"nats://127.0.0.1:{6222 + other}" for other in range(3) if other != place)
    line = f"nats-server -p {4222 + place} --cluster_name c --cluster nats://127.0.0.1:{6222 + place} --routes {routes}"
    return Command(line, True, "Server is ready")


WELL = "all is well"
NODES = ("eu-central-1-1", "us-east-1-1", "ap-northeast-1-1")
CHAPTERS = (
    Chapter(
        "Three regions on the NATS you already run",
        "Three servers of one cluster, here on one machine, play the part of your NATS. The extra `nats` of the\n"
        "[installation](../README.md#install) brings `nats-server` along. Then write one file that describes the\n"
        "deployment (in real life every machine gets a copy), and start one node per region.",
        (
            *map(nats, range(3)),
            Command(
                "unisono init --region eu-central-1 --region us-east-1 --region ap-northeast-1 "
                "--server nats://127.0.0.1:4222 --server nats://127.0.0.1:4223 --server nats://127.0.0.1:4224"
            ),
            *(Command(f"unisono node deployment.toml {name}", True, "listens on port") for name in NODES),
        ),
    ),
    Chapter(
        "Is it well?",
        "`status` asks every node how it is, and what it sees of its neighbours and the NATS servers. `doctor`\n"
        "checks whether each of them can be reached from where you are.",
        (Command("unisono status deployment.toml", until=WELL), Command("unisono doctor deployment.toml")),
    ),
    Chapter(
        "Two subscribers agree",
        "Start a subscriber in each of two regions, then publish from all three. Both subscribers print the same\n"
        "lines in the same order. `topics` shows where each topic lives, and which are ordered against each other.",
        (
            Command(
                "unisono sub unisono://127.0.0.1:7474 trades quotes --count 4 --journal journals",
                True,
                "subscribed",
                ends=True,
            ),
            Command(
                "unisono sub unisono://127.0.0.1:7476 trades quotes --count 4 --journal journals",
                True,
                "subscribed",
                ends=True,
            ),
            Command("""unisono pub unisono://127.0.0.1:7474 trades '{"px": 101}'"""),
            Command("""unisono pub unisono://127.0.0.1:7478 quotes '{"bid": 100}'"""),
            Command("""unisono pub unisono://127.0.0.1:7476 trades '{"px": 102}'"""),
            Command("unisono topics deployment.toml"),
            Command("""unisono pub unisono://127.0.0.1:7474 quotes '{"bid": 101}'"""),
        ),
    ),
    Chapter(
        "Let a judge say so",
        "`--journal` wrote down what each subscriber was given. `audit` compares.",
        (Command("unisono audit journals"),),
    ),
    Chapter(
        "Break it, and read what it says",
        "Kill the node of one region. `status` names it and exits with 1. Topics that live there wait until it is\n"
        "back; others go on. Start it again: it reads its log, and goes on.",
        (
            Command(f"kill -9 {NODES[1]}"),
            Command("unisono status deployment.toml", code=1),
            Command(f"unisono node deployment.toml {NODES[1]}", True, "listens on port"),
            Command("unisono status deployment.toml", until=WELL),
        ),
    ),
)
HEAD = """# The first half hour

Every command on this page was typed by a program, `python -m tests.runtime.hour`, and what you see is what it printed;
the campaign plays the page again. A line that ends in `&` keeps running: type it, without the `&`, in a terminal of its
own. `kill -9 NODE` means the process of that node.
"""


class Play:
    """Types the commands; ports are others than on the page."""

    def __init__(self, directory: Path, python: str) -> None:
        self.directory, self.python = directory, python
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        nats_ports, cluster_ports = free_ports(3), free_ports(3)
        first = self._free_run(6)
        pairs = {4222 + i: port for i, port in enumerate(nats_ports)}
        pairs |= {6222 + i: port for i, port in enumerate(cluster_ports)}
        pairs |= {7474 + i: first + i for i in range(6)} | {8474 + i: first + 1000 + i for i in range(6)}
        self.here = {str(shown): str(port) for shown, port in pairs.items()}
        self.shown = {port: shown for shown, port in self.here.items()}
        self.tried_until = 0.0

    @staticmethod
    def _free_run(count: int) -> int:
        while True:
            first = random.randrange(10_000, 30_000)  # below those that systems give to connections
            held = []
            try:
                ports = [*range(first, first + count), *range(first + 1000, first + 1000 + count)]
                held.extend(socket.create_server(("127.0.0.1", port)) for port in ports)
                return first
            except OSError:
                continue
            finally:
                for each in held:
                    each.close()

    def words(self, line: str) -> list[str]:
        program, *rest = shlex.split(self.with_ports(line))
        if rest[0] == "init":
            rest += ["--port", self.here["7474"]]
        start = {"nats-server": [find_binary()], "python": [self.python]}
        return [*(start.get(program) or [self.python, "-m", "unisono"]), *rest]

    def with_ports(self, text: str) -> str:
        return re.sub(r"\d{4,5}", lambda found: self.here.get(found[0], found[0]), text)

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(self.with_ports(text))

    def type(self, command: Command, number: int) -> str:
        """What it printed."""
        if command.line.startswith("kill"):
            name = command.line.split()[-1]
            self.running[name].send_signal(signal.SIGKILL if "-9" in command.line else signal.SIGTERM)
            self.running.pop(name).wait(PATIENCE_S)
            return ""
        output = self.directory / f"{number}.out"
        with output.open("wb") as file:
            process = subprocess.Popen(self.words(command.line), cwd=self.directory, stdout=file, stderr=file)
        if not command.goes_on:
            process.wait(PATIENCE_S)
            if command.until and command.until not in output.read_text() and time.monotonic() < self.tried_until:
                time.sleep(0.2)
                return self.type(command, number)
            assert process.returncode == command.code, f"{command.line}: {output.read_text()}"
            assert command.until in output.read_text(), f"{command.line}: {output.read_text()}"
            return output.read_text()
        self.running[command.line.split()[-1] if " node " in command.line else str(number)] = process
        until = time.monotonic() + PATIENCE_S
        while command.waits not in output.read_text():
            assert process.poll() is None, f"{command.line}: {output.read_text()}"
            assert time.monotonic() < until, f"{command.line}: {output.read_text()}"
            time.sleep(0.05)
        return output.read_text() if " node " in command.line else ""

    def ended(self, number: int) -> str:
        """What a command that ends by itself has printed."""
        self.running.pop(str(number)).wait(PATIENCE_S)
        return (self.directory / f"{number}.out").read_text()

    def stop(self) -> None:
        for process in reversed(self.running.values()):
            process.send_signal(signal.SIGINT)
        for process in self.running.values():
            process.wait(PATIENCE_S)

    def said(self, text: str) -> str:
        """As the page shows it."""
        text = re.sub(r"\d{5}", lambda found: self.shown.get(found[0], found[0]), text)
        lines = map(str.rstrip, text.splitlines())
        return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines)


def play(page: Page, directory: Path, python: str = sys.executable) -> str:
    """The text of the page; `python` is where unisono is installed."""
    scene, number, parts = Play(directory, python), 0, [page.head]
    try:
        for chapter in page.chapters:
            lines, ending = [], []
            for name, text in chapter.files:
                scene.write(name, text)
            for command in chapter.commands:
                number += 1
                scene.tried_until = time.monotonic() + PATIENCE_S
                said = scene.said(scene.type(command, number))
                lines.append(f"    $ {command.line}{' &' if command.goes_on else ''}")
                lines += [f"    {line}".rstrip() for line in said.splitlines()[:LINES_MAX]]
                ending += [(command, number)] if command.ends else []
            for command, which in ending:
                lines += ["", f"In the terminal of `{command.line}`:", ""]
                lines += [f"    {line}".rstrip() for line in scene.said(scene.ended(which)).splitlines()[:LINES_MAX]]
            files = "".join(shown(name, text) for name, text in chapter.files)
            after = f"\n{chapter.after}\n" if chapter.after else ""
            parts.append(f"## {chapter.title}\n\n{chapter.words}\n\n{files}" + "\n".join(lines) + "\n" + after)
    finally:
        scene.stop()
    return "\n".join(parts)


def shown(name: str, text: str) -> str:
    kind = {"py": "python"}.get(name.partition(".")[2], "toml")
    return f"`{name}`:\n\n```{kind}\n{text}```\n\n"


def typed(text: str) -> list[str]:
    """The lines that a page has somebody type."""
    return re.findall(r"^    \$ (.+?)(?: &)?$", text, re.M)


FIRST_HOUR = Page(PAGE, HEAD, CHAPTERS)


if __name__ == "__main__":
    from tests.runtime.tutorials import TUTORIALS  # its pages are made of what is above

    for each in (FIRST_HOUR, *TUTORIALS):
        if all(word in str(each.path) for word in sys.argv[1:]):
            with tempfile.TemporaryDirectory() as place:
                text = play(each, Path(place))
            each.path.parent.mkdir(exist_ok=True)
            each.path.write_text(text, encoding="utf-8")
