"""The way of one event through the sources, from a real trace: a node with the embedded broker, two clients, one event.

Everything happens in one process over loopback sockets; the log is written in its own thread, however quick the disk. A
profile function notes every function of `unisono` that is entered between `publish` and the moment when subscriber and
publisher have what they wait for. What the event loop (or the thread of a log) calls is a *step*; a step belongs to the
first hop one of whose marks it calls. What a process has imported before changes the way (a program that has the SDK of
OpenTelemetry gets spans), so a process of its own is traced. `python -m tests.house.way` writes the table of
docs/way-of-an-event.md anew; with `--print` it prints the hops.
"""

import asyncio
import json
import re
import socket
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.driver.log import LogConfig
from unisono.runtime.node.node import Node, NodeConfig

SOURCES = Path(unisono.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "way-of-an-event.md"
_TABLE = re.compile(r"(<!-- made by tests.house.way -->\n).*?(<!-- end -->)", re.S)


class Hop(NamedTuple):
    """A part of the way, what happens in it, and functions one of which is called in every step that belongs to it.

    One with `^` before it has to be what the loop called.
    """

    title: str
    says: str
    marks: tuple[str, ...]


HOPS = (
    Hop(
        "The program publishes",
        "The session encodes the payload, refuses what the broker could not take, waits for room in the window of the "
        "topic, and gives the event its sequence number among those of this publisher. What is published in one turn "
        "of the event loop becomes one row; its outcome will go to whoever asked.",
        ("SessionPublications.encode", "SessionPublications._flush"),
    ),
    Hop(
        "The publisher's machine asks for a number",
        "`OrderingClient` says two things: the payload goes to the broker at once, and a `Creates` goes to the node "
        "where the topic lives, its home. It remembers the request and sets a timer to repeat it.",
        ("OrderingPublisher.publish_all",),
    ),
    Hop(
        "The node of the topic's home hears the request",
        "The link decodes the letter; the node checks who sent it, whether that client may ask for so much, and "
        "whether its own machine has room.",
        ("NodeLetters.post",),
    ),
    Hop(
        "The home numbers the event, and the log is written",
        "Requests that came together are one input. `Lives`, `Sessions`, `TopicNames` each look whether it is theirs; "
        "the `TopicManager` gives the next number of the topic and fills in the timestamp what it has decided about "
        "other topics. Then the input is appended to the log, and synced.",
        ("Numbering.create", "FileLog.commit"),
    ),
    Hop(
        "What the home decided leaves the node",
        "Not before the log is on disk: the answer (`Taken`) to the publisher, and the stamp for all subscribers.",
        ("Host._committed",),
    ),
    Hop(
        "The publisher learns that its event has a number",
        "The machine forgets the request and delivers the outcome; the window has room again.",
        ("OrderingPublisher.taken",),
    ),
    Hop(
        "Bytes over a link",
        "Letters between client and node travel in frames, one write per turn of the event loop.",
        ("^Connection.flush", "^Connection.data_received"),
    ),
    Hop(
        "Payload and stamp go to the broker",
        "Machines speak of topic numbers and messages, the broker of names and bytes: `BrokerConnection` translates. "
        "The adapter keeps every item until the broker has confirmed it. The payload travels on the topic, the stamp "
        "beside it.",
        ("EmbeddedEns.publish", "EmbeddedEns._flush"),
    ),
    Hop(
        "The broker hands them to whoever subscribes",
        "Here the embedded one; with NATS or another broker this hop is theirs.",
        ("_Peer.data_received", "_Peer._flush"),
    ),
    Hop(
        "The client of the broker hears them",
        "Subscribers hear payload and stamp; publisher and node hear that the broker has taken what they gave it.",
        ("_Line.data_received",),
    ),
    Hop(
        "The subscriber's machine holds the event back until its turn",
        "Payload and stamp meet. The event is delivered when everything its timestamp names has been delivered; until "
        "then it waits in `HoldBack`, with a deadline.",
        ("Delivery.heard",),
    ),
    Hop(
        "The program reads the event",
        "Notifications wait in a bounded buffer; the payload is decoded when the program looks at `data`.",
        ("Stream.__anext__", "Notification.data"),
    ),
    Hop("The outcome reaches the program", "`publish` returns `Accepted`.", ("Session.publish",)),
)


class Tracer:
    """Notes what is called while it is on: per step the functions, by file."""

    def __init__(self) -> None:
        self.steps: list[dict[tuple[str, str], None]] = []
        self.is_on = False
        self._now = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on or event != "call" or not frame.f_code.co_filename.startswith(str(SOURCES)):
            return
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(str(SOURCES)) or not hasattr(self._now, "step"):
            self._now.step = {}
            self.steps.append(self._now.step)
        file = Path(frame.f_code.co_filename).relative_to(SOURCES).as_posix()
        self._now.step[file, frame.f_code.co_qualname.partition(".<locals>")[0]] = None


async def _publish_one(tracer: Tracer, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        where, carrier = (f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two))
    hub = NodeSpec("hub", listen=where, roles=("sequencer", "broker"), data="data")
    url = f"unisono://{where}"
    async with (
        Node(
            Deployment(1, "way", nodes=(hub,), broker=BrokerSpec(servers=(carrier,))),
            "hub",
            directory,
            NodeConfig(log=LogConfig(quick_us=0)),
        ),
        unisono.connect(url) as here,
        unisono.connect(url) as there,
        there.subscribe("trades", order="total") as stream,
    ):
        for _ in range(3):  # topics are open, connections are made, timers are set
            await here.publish("trades", {"px": 1})
            await anext(stream)
        await asyncio.sleep(0.1)
        tracer.is_on = True
        outcome = asyncio.create_task(here.publish("trades", {"px": 2}))
        event = await anext(stream)
        assert event.data == {"px": 2}
        await outcome
        tracer.is_on = False


def trace() -> list[dict[tuple[str, str], None]]:
    """The steps of one event, on a loop that nothing else uses."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(_publish_one(tracer, Path(directory)))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return tracer.steps


def hops(steps: list[dict[tuple[str, str], None]]) -> dict[str, dict[str, list[str]]]:
    """Hop -> file -> its functions, in the order they were called."""
    found: dict[str, dict[str, list[str]]] = {hop.title: {} for hop in HOPS}
    for step in steps:
        names = {name for _, name in step}
        names |= {f"^{name}" for _, name in list(step)[:1]}
        title = next((hop.title for hop in HOPS if names & {*hop.marks}), None)
        if title is None:
            continue  # a timer that came due meanwhile
        for file, name in step:
            functions = found[title].setdefault(file, [])
            if name not in functions:
                functions.append(name)
    return found


def page(found: dict[str, dict[str, list[str]]]) -> str:
    """The generated part of the page."""
    files = {file for hop in found.values() for file in hop}
    lines = [f"One event touches {len(files)} files.", ""]
    for number, hop in enumerate(HOPS, 1):
        lines += [f"## {number}. {hop.title}", "", *textwrap.wrap(hop.says, 118), ""]
        lines += [
            f"- [{file}](../src/unisono/{file}): {', '.join(f'`{name}`' for name in names)}"
            for file, names in found[hop.title].items()
        ]
        lines.append("")
    return "\n".join(lines)


def listed() -> dict[str, dict[str, list[str]]]:
    """What the page says."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in re.split(r"^## \d+\. ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, _, rest = part.partition("\n")
        rows = re.findall(r"^- \[([^]]+)\]\([^)]+\): (.+)$", rest, re.M)
        found[title] = {file: re.findall(r"`([^`]+)`", names) for file, names in rows}
    return found


def agreed(tries_max: int = 5) -> dict[str, dict[str, list[str]]]:
    """The hops that two traces agree on: on a busy machine a timer may come due during one."""
    seen: list[dict[str, dict[str, list[str]]]] = []
    for _ in range(tries_max):
        found = hops(trace())
        if found in seen:
            return found
        seen.append(found)
    return min(seen, key=lambda found: sum(len(names) for files in found.values() for names in files.values()))


if __name__ == "__main__":
    found = agreed()
    if sys.argv[1:] == ["--print"]:
        print(json.dumps(found))
    else:
        made = page(found)
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_TABLE.sub(lambda parts: f"{parts[1]}{made}{parts[2]}", text), encoding="utf-8")
