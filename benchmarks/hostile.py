"""Hostile clients: what honest ones still get, and what the worst input of each decoder costs.

A node with an embedded broker and an archive runs in a process of its own; an honest session publishes to it and hears
what it published, `WINDOW` events at a time. An attacker in another process does one thing as fast as it can. `during`
and `after` are events per second of the honest while it does, and when it has stopped, divided by those of the same run
with a spinner in the attacker's place that uses as much CPU as the attacker did: what is left is the node's doing.

The rows `worst` are CPU milliseconds for one input of the size that is allowed, made to cost as much as it can.
"""

import argparse
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import unisono
from unisono.errors import UnisonoError
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, dump_deployment
from unisono.model.ids import Address, Topic
from unisono.model.limits import Limits
from unisono.model.predicate import Box, Filter, canonical, parse
from unisono.model.predicate.values import point
from unisono.protocols.coded.wire import unpack
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.runtime import edge
from unisono.runtime.fetching import Fetch
from unisono.runtime.frames import Codec, FrameReader, Hello, Letter, decode_hello, encode_frame
from unisono.runtime.loop import run as run_loop
from unisono.runtime.session import Session

HUB, ME = Address("hub"), Address("mallory")
WINDOW = 500
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
        "patterns": (HELLO, _letters(*[edge.Watch(ME, f"x{i}.*") for i in range(5_000)])),
        "topics": (HELLO, _letters(*[edge.Open(ME, i, (f"t{i}",)) for i in range(5_000)])),
        "questions": (HELLO, _letters(*[edge.Inquire(ME)] * 10_000)),
        "archive questions": (HELLO, _letters(*[Fetch(ME, i, 0, ("trades",), seal=True) for i in range(5_000)])),
    }


def attack(case: str, port: int) -> None:
    """Runs in a process of its own, until it is ended."""
    first, again = _frames()[case]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), 5)
            one.settimeout(5)
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
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        until = time.process_time() + 0.01 * share
        while time.process_time() < until:
            pass
        time.sleep(0.01 * (1 - min(share, 0.99)))


async def honest(session: Session, seconds: float) -> float:
    """Events per second, published and heard."""
    heard = 0
    async with session.subscribe("trades") as stream:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            publisher = await session.publisher("trades")
            for number in range(WINDOW):
                await publisher.send(number)
            for _ in range(WINDOW):
                await anext(stream)
            heard += WINDOW
        return heard / (time.monotonic() - began)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def beside(session: Session, arguments: list[str], seconds: float) -> tuple[float, float, float]:
    """Honest throughput beside another process, then without it; and the share of a CPU that it used."""
    process = Popen([sys.executable, __file__, *arguments], stdout=PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        used, began = cpu_of(process.pid), time.monotonic()
        during = await honest(session, seconds)
        share = (cpu_of(process.pid) - used) / (time.monotonic() - began)
    finally:
        process.kill()
        process.wait()
    return during, await honest(session, seconds), share


async def measure(seconds: float, cases: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="bench-hostile-") as name:
        directory = Path(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker", "archive"), data="data")
        deployment = Deployment(1, "hostile", nodes=(spec,), broker=BrokerSpec("embedded"))
        (directory / "deployment.toml").write_text(dump_deployment(deployment))
        command = [Path(sys.executable).with_name("unisono"), "node", directory / "deployment.toml", "hub"]
        process = Popen([*command, "--journal", "off"])
        try:
            async with unisono.connect(deployment, timeout=60) as session:
                await honest(session, seconds / 2)  # warm
                for case in cases:
                    during, after, share = await beside(session, ["--attack", case, "--port", str(port)], seconds)
                    base, base_after, _ = await beside(session, ["--spin", str(share)], seconds)
                    refused = (await session.status("hub")).counters["refused"]
                    rows.append(
                        {
                            "case": case,
                            "during": round(during / base, 3),
                            "after": round(after / base_after, 3),
                            "attacker_cpu": round(share, 2),
                            "events_per_s": round(during),
                            "refused": sum(refused.values()),
                        }
                    )
        finally:
            process.terminate()
            process.wait()
    return rows


def _cpu_ms(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with suppress(UnisonoError):
        work()
    return round((resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) * 1e3, 1)


def worst_inputs() -> list[dict[str, Any]]:
    """CPU of the inputs that cost most, decoder by decoder."""
    limits = Limits()
    codec = Codec(edge.Letters)
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


def run(seconds: float = 5.0, cases: list[str] | None = None) -> list[dict[str, Any]]:
    return [*run_loop(measure(seconds, cases if cases is not None else list(_frames()))), *worst_inputs()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--attack")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--spin", type=float)
    given = parser.parse_args()
    if given.attack is not None:
        attack(given.attack, given.port)
    elif given.spin is not None:
        spin(given.spin)
    else:
        for row in run(given.seconds, given.cases):
            sys.stdout.write(json.dumps(row) + "\n")
