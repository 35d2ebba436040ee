"""Hostile clients: what honest ones still get, and what the worst input of each decoder costs.

A node with an embedded broker and an archive runs in a process of its own; an honest session publishes to it and hears
what it published, `WINDOW` events at a time. An attacker in another process does one thing as fast as it can. `during`
and `after` are events per second of the honest while it does, and when it has stopped, divided by those of the same
node just before, beside a spinner that uses as much CPU as the attacker did last time: what is left is the node's
doing. `taken_cpu` is what an attacker costs the node, as a share of a CPU. Medians.

The rows `worst` are CPU milliseconds for one input of the size that is allowed, made to cost as much as it can.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple, Self

import msgspec
from ordering.spent import cpu_s

import unisono
from unisono.errors import UnisonoError
from unisono.model.deployment import Deployment, dump_deployment, load_deployment
from unisono.model.ids import Address, Topic
from unisono.model.limits import Limits
from unisono.model.predicate import Box, Filter, canonical, parse
from unisono.model.predicate.values import point
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.protocols.coded.wire import unpack
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.runtime.brokers.embedded.server import Greet, ItemGroup, encoder, pack
from unisono.runtime.client.session import Session
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetch
from unisono.runtime.links.frames import Codec, FrameReader, Hello, Letter, decode_hello, encode_frame
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

HUB, ME = Address("hub"), Address("mallory")
WINDOW = 500
TURNS = 2
"""Of one node."""
COMES_AND_GOES = "names without end"
FLOODS_BROKER = "payloads that nobody hears"
HELLO = encode_frame(Hello("client", (ME,)))


def _letters(*messages: Any) -> bytes:
    return encode_frame([Letter(HUB, message) for message in messages])


def _frames() -> dict[str, tuple[bytes, bytes]]:
    """Per attack what is said first, and what is said again and again."""
    out_of_range = Creates(ME, (Wanted(Topic(1), 2**64 - 1),))
    return {
        "hello of many addresses": (b"", encode_frame(Hello("client", tuple(Address(f"m{i}") for i in range(50_000))))),
        "bytes of another protocol": (b"", b"GET / HTTP/1.1\r\n\r\n"),
        "silence": (b"", b""),
        "numbers out of range": (HELLO, _letters(out_of_range)),
        "patterns": (HELLO, _letters(*[control.Watch(ME, f"x{i}.*") for i in range(5_000)])),
        "topics": (HELLO, _letters(*[naming.OpenTopics(ME, i, (f"t{i}",)) for i in range(5_000)])),
        "empty frames": (HELLO, encode_frame([]) * 50_000),
        "known topics": (HELLO, _letters(*[naming.OpenTopics(ME, i, ("trades",)) for i in range(5_000)])),
        "publications": (HELLO, _letters(*[Creates(ME, (Wanted(Topic(2**20), 1),))] * 5_000)),
        "questions": (HELLO, _letters(*[control.AskReport(ME)] * 10_000)),
        COMES_AND_GOES: (b"", b""),
        FLOODS_BROKER: (pack([encoder.encode(Greet("mallory"))]), pack([encoder.encode(_unheard())] * 10)),
        "archive questions": (HELLO, _letters(*[Fetch(ME, i, 0, ("trades",), seal=True) for i in range(5_000)])),
    }


def _unheard() -> ItemGroup:
    """Payloads on a topic of nobody else; on their own, the honest would have to read them."""
    items = [(b"x", "mallory", 1 + at, None) for at in range(100)]
    return ItemGroup("elsewhere", False, len(items), msgspec.Raw(msgspec.msgpack.encode(items)))


def attack(case: str, port: int) -> None:
    """Runs in a process of its own, until it is ended."""
    first, again = _frames()[case]
    port += case == FLOODS_BROKER
    _end_with_parent()
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), 5)
            one.settimeout(5)
            if case == COMES_AND_GOES:
                one.sendall(encode_frame(Hello("client", (Address(random.randbytes(8).hex()),))))
                one.recv(1 << 16)
                one.close()
                continue
            if not again:
                held = [*held[-500:], one]
                continue
            one.sendall(first)
            while True:
                one.sendall(again)
                if not first and not one.recv(1 << 16):
                    break
            one.close()


def spin(share: float) -> None:
    _end_with_parent()
    while True:
        until = time.process_time() + 0.01 * share
        while time.process_time() < until:
            pass
        time.sleep(0.01 * (1 - min(share, 0.99)))


def _end_with_parent() -> None:
    """Says that we are ready. Whoever started us holds the other end of our input; when he is gone, so are we."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    Thread(target=watch, daemon=True).start()


def serve(file: Path) -> None:
    """The node, in a process that ends with the benchmark."""

    async def run() -> None:
        async with Node(load_deployment(file), "hub", file.parent) as node:
            _end_with_parent()
            await node.wait()

    run_loop(run())


class Beside:
    """Another process of this file, for as long as the block lasts."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> Self:
        self.process = Popen([sys.executable, __file__, *self._arguments], stdin=PIPE, stdout=PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self._used, self._began = self.cpu_s, time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @property
    def memory_mb(self) -> float:
        """What it has in memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def share(self) -> float:
        """Of a CPU, that it has used so far."""
        return (self.cpu_s - self._used) / (time.monotonic() - self._began)


class Turn(NamedTuple):
    """Events per second beside a spinner, an attacker and nobody, and what shares of a CPU he took, and of the node;
    the node's memory after that."""

    base: float
    during: float
    after: float
    other: float
    node: float
    node_base: float
    node_mb: float

    @property
    def taken(self) -> float:
        """Of a CPU, by which the node did more than its honest events cost it beside the spinner."""
        return self.node - self.during * self.node_base / max(self.base, 1)


async def honest(session: Session, seconds: float) -> float:
    """Events per second, published and heard. What is not heard in time does not count."""
    heard, began = 0, time.monotonic()
    with suppress(TimeoutError, UnisonoError):
        async with asyncio.timeout(seconds), session.subscribe("trades") as stream:
            publisher = await session.publisher("trades")
            while True:
                for number in range(WINDOW):
                    await publisher.send(number)
                for _ in range(WINDOW):
                    await anext(stream)
                    heard += 1
    return heard / (time.monotonic() - began)


async def play(seconds: float, case: str, share: float, turns: int) -> tuple[list[Turn], int]:
    """A node of its own, and an honest session: beside a spinner, beside the attacker, and alone, again and again.

    The second is how much the node has refused.
    """
    with TemporaryDirectory(prefix="bench-hostile-") as name:
        port = free_ports(1)[0]
        spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker", "archive"), data="data")
        deployment = Deployment(1, "hostile", nodes=(spec,), broker=BrokerSpec("embedded"))
        file = Path(name) / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        played: list[Turn] = []
        with Beside("--node", str(file)) as node:
            async with unisono.connect(deployment, timeout=60) as session:

                async def beside(*other: str) -> tuple[float, float, float]:
                    before, began = node.cpu_s, time.monotonic()
                    with Beside(*other, "--port", str(port)) as stranger:
                        rate = await honest(session, seconds)
                        used = stranger.share
                    return rate, used, (node.cpu_s - before) / (time.monotonic() - began)

                await honest(session, 2.0)  # warm
                for _ in range(turns):
                    base, _, node_base = await beside("--spin", str(share))
                    during, share, node_used = await beside("--attack", case)
                    after = await honest(session, seconds)
                    played.append(Turn(base, during, after, share, node_used, node_base, node.memory_mb))
                refused = 0
                with suppress(TimeoutError, UnisonoError):
                    async with asyncio.timeout(10):
                        refused = sum((await session.status("hub")).counters["refused"].values())
    return played, refused


async def measure(seconds: float, cases: list[str], rounds: int) -> list[dict[str, Any]]:
    """A row in every case: ratios within a turn, medians over all turns of some nodes."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        played: list[Turn] = []
        refused = 0
        for _ in range(rounds):
            turns, refused = await play(seconds, case, played[-1].other if played else 0.0, TURNS)
            played += turns
        rows.append(
            {
                "case": case,
                "during": round(median(turn.during / max(turn.base, 1) for turn in played), 3),
                "after": round(median(turn.after / max(turn.base, 1) for turn in played), 3),
                "taken_cpu": round(median(turn.taken for turn in played), 3),
                "turns": len(played),
                "attacker_cpu": round(median(turn.other for turn in played), 2),
                "node_cpu": round(median(turn.node for turn in played), 2),
                "node_cpu_beside_spinner": round(median(turn.node_base for turn in played), 2),
                "node_mb": round(max(turn.node_mb for turn in played)),
                "events_per_s": round(median(turn.during for turn in played)),
                "refused": refused,
                "load": round(os.getloadavg()[0], 1),
            }
        )
    return rows


def _cpu_ms(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with suppress(UnisonoError):
        work()
    return round((resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) * 1e3, 1)


def worst_inputs() -> list[dict[str, Any]]:
    """CPU of the inputs that cost most, decoder by decoder."""
    limits = Limits()
    codec = Codec(control.Letters)
    letters = _letters(*[Creates(ME, (Wanted(Topic(1), 1),))] * 16_384)[4:]
    nested = b"\x91" * (limits.frame_bytes_max - 4)
    long = encode_frame(b"x" * (limits.frame_bytes_max - 8))

    def drip() -> None:
        reader = FrameReader(limits.frame_bytes_max)
        for at in range(0, len(long), 1024):
            list(reader.feed(long[at : at + 1024]))

    wide = Filter(tuple(Box(tuple((f"a{k:04}", point(i)) for k in range(300))) for i in range(60)))
    texts = {
        "parse: conjunction": " and ".join(f"a{i} = {i}" for i in range(3_500)),
        "parse: disjunction": " or ".join(f"a{i} = {i}" for i in range(4_000)),
        "parse: list": "a in (" + ", ".join(map(str, range(9_000))) + ")",
        "parse: product": " and ".join("(" + " or ".join(f"a{i}{j} = 1" for j in range(60)) + ")" for i in range(60)),
        "parse: negation": "not " * 60 + "(" + " or ".join(f"a{i} = 1 and b{i} = 1" for i in range(6)) + ")",
    }
    works: dict[str, Callable[[], object]] = {
        "hello": lambda: decode_hello(HELLO[4:]),
        "letters": lambda: codec.decode(letters),
        "letters: nesting": lambda: codec.decode(nested),
        "frames: 1 kB at a time": drip,
        "packet": lambda: unpack(b"\x75\x43" + b"\xff" * 1470),
        "filter of a stranger": lambda: canonical(wide),
        "msgpack of a filter": lambda: msgspec.msgpack.decode(msgspec.msgpack.encode(wide), type=Filter),
        **{name: (lambda text=text: parse(text)) for name, text in texts.items()},
    }
    return [{"case": f"worst: {name}", "cpu_ms": _cpu_ms(work)} for name, work in works.items()]


def run(seconds: float = 1.5, cases: list[str] | None = None, rounds: int = 2) -> list[dict[str, Any]]:
    return [*run_loop(measure(seconds, cases if cases is not None else list(_frames()), rounds)), *worst_inputs()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--attack")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--spin", type=float)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if given.attack is not None:
        attack(given.attack, given.port)
    elif given.node is not None:
        serve(given.node)
    elif given.spin is not None:
        spin(given.spin)
    else:
        for row in run(given.seconds, given.cases, given.rounds):
            sys.stdout.write(json.dumps(row) + "\n")
