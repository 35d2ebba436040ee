"""The commands of running deployments: init, node, status, pub, sub, up, as processes."""

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unisono import connect_sync
from unisono.cli.node import watch
from unisono.model.deployment import Deployment, load_deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

UNISONO = (sys.executable, "-c", "from unisono.cli.main import main; main()")


def unisono(*arguments: str, code: int = 0, text: str | None = None) -> str:
    done = subprocess.run([*UNISONO, *arguments], capture_output=True, text=True, input=text, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*UNISONO, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_deployment_is_made_started_asked_used_and_stopped(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file = str(tmp_path / "deployment.toml")
    unisono("init", file, "--region", "eu-central-1", "--port", str(port))
    node = start("node", file, "eu-central-1-1")
    try:
        assert node.stderr is not None
        assert "listens on port" in node.stderr.readline()
        where = f"unisono://127.0.0.1:{port}"
        assert json.loads(unisono("pub", where, "trades", "0", "--json"))["outcome"] == "accepted"
        published = subprocess.run(
            [*UNISONO, "pub", where, "trades", "a", "b"], capture_output=True, text=True, timeout=60
        )
        assert (published.returncode, published.stdout, published.stderr) == (0, "", "trades: 2 accepted\n")
        reading = start(
            "sub", where, "trades", "quotes", "--count", "3", "--json", "--journal", str(tmp_path / "journal")
        )
        with connect_sync(where) as session:
            session.publish_all("quotes", [b"1", b"2"])
            while reading.poll() is None:  # until the subscription is in force
                session.publish("trades", b"3")
        report = json.loads(unisono("status", file, "--json"))
        assert sorted(report["nodes"]["eu-central-1-1"]["topics"]) == ["quotes", "trades"]
        out, err = reading.communicate(timeout=30)
        assert reading.returncode == 0, err
        lines = [json.loads(line) for line in out.splitlines()]
        assert len(lines) == 3
        assert all({"topic", "position", "id", "number", "data", "late"} <= line.keys() for line in lines)
        (journal,) = (tmp_path / "journal").glob("*.jsonl")
        assert json.loads(unisono("audit", str(journal), "--json"))["deliveries"] == 3
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=30)
    assert node.returncode == 0
    assert list((tmp_path / "data" / "eu-central-1-1").glob("snapshot-*")), "a clean stop takes a snapshot"
    away = subprocess.run([*UNISONO, "status", file], capture_output=True, text=True, timeout=60)
    assert away.returncode == 1
    assert "does not answer" in " ".join(away.stdout.split())


def test_a_line_of_stdin_is_an_event_before_the_next_is_there_and_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file, where = str(tmp_path / "deployment.toml"), f"unisono://127.0.0.1:{port}"
    unisono("init", file, "--port", str(port))
    node = start("node", file, "local-1")
    with connect_sync(where, timeout=60) as session, session.subscribe("trades") as stream:
        reads, writes = os.pipe()
        publishing = subprocess.Popen([*UNISONO, "pub", where, "trades"], stdin=reads, stderr=subprocess.PIPE)
        os.write(writes, b"one\r\nt")
        assert [event.payload for event in stream.take(1, timeout=60)] == [b"one"]
        os.write(writes, b"wo\n\nfour")
        assert [event.payload for event in stream.take(2, timeout=60)] == [b"two", b""]
        publishing.send_signal(signal.SIGINT)
        assert publishing.wait(60) == 130
        assert publishing.stderr is not None
        assert publishing.stderr.read() == b""
        os.close(writes)
        os.close(reads)
        assert unisono("pub", where, "trades", text="the\nlast") == ""
        assert [event.payload for event in stream.take(2, timeout=60)] == [b"the", b"last"]
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=60)


def test_what_is_at_nodes_that_do_not_answer_is_not_said_to_be_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file = str(tmp_path / "deployment.toml")
    unisono("init", file, "--region", "eu", "--region", "us", "--distance", "eu,us=1", "--port", str(port))
    for command, kept in (("topics", "topics"), ("groups", "groups")):
        told = unisono(command, file, code=1).splitlines()
        assert [line.partition(": 127")[0] for line in told] == [
            f"node {node} does not answer, and its {kept} are not shown" for node in ("eu-1", "us-1")
        ]
    assert "node eu-1, the root, moves homes, and does not answer: 127" in unisono("move", file, "t", "us-1", code=2)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_who_gives_a_time_waits_no_longer_for_an_outcome(tmp_path: Path, form: tuple[str, ...]) -> None:
    (port,) = free_ports(1)
    file = str(tmp_path / "deployment.toml")
    unisono("init", file, "--region", "eu", "--region", "us", "--distance", "eu,us=1", "--port", str(port))
    with open(file, "a") as more:
        more.write('[[topics]]\nname = "trades"\nhome = "us-1"\n')
    nodes = [start("node", file, name) for name in ("eu-1", "us-1")]
    try:
        assert unisono("pub", file, "trades", "1", "--timeout", "60") == ""
        nodes[1].kill()
        done = subprocess.run(
            [*UNISONO, "pub", f"unisono://127.0.0.1:{port}", "trades", "2", "--timeout", "2", *form],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "no answer within 2 s (--timeout)" in done.stdout + done.stderr
        assert done.stderr.splitlines()[-1] == "unisono: trades: 1 may or may not have been published"
    finally:
        for node in nodes:
            node.terminate()
            node.communicate(timeout=60)


def test_ctrl_c_ends_a_command_that_still_connects() -> None:
    (port,) = free_ports(1)
    connecting = start("sub", f"unisono://127.0.0.1:{port}", "trades", "--timeout", "600")
    assert connecting.stderr is not None
    assert "asking again for 600 s" in connecting.stderr.readline()
    connecting.send_signal(signal.SIGINT)
    assert connecting.communicate(timeout=60) == ("", "")
    assert connecting.returncode == 0


def test_init_writes_a_star_with_measured_round_trips_and_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    unisono("init", str(file), "--region", "eu-central-1", "--region", "us-east-1")
    deployment = load_deployment(file)
    assert [node.parent for node in deployment.nodes] == [None, "eu-central-1-1"]
    assert deployment.round_trip_ms["eu-central-1 us-east-1"] > 50
    assert "exists" in unisono("init", str(file), code=2)


@pytest.mark.parametrize("by", ["tree", pytest.param("clock", marks=pytest.mark.campaign)])
def test_up_runs_regions_that_agree(by: str) -> None:
    options = ("--region", "us-east-1", "--region", "us-west-2", "--seconds", "3", "--rate", "50", "--json")
    summary = json.loads(unisono("up", *options, "--by", by))
    assert summary["agreed"]
    assert summary["compared"] > 20
    assert [site["gaps"] for site in summary["sites"]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("node", "missing.toml", "n"), "No such file"),
        (("pub", "unisono://127.0.0.1:1", "a", "b", "--timeout", "0.1"), "no node answers"),
        (("up", "--region", "atlantis"), "two or more different regions"),
        (("up", "--by", "clock", "--kind", "overlay"), "--by clock is for --kind sequencer"),
        (("sub", "http://127.0.0.1", "a"), "connect to unisono://, nats://"),
    ],
)
def test_what_cannot_run_says_why_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    problem = unisono(*arguments, code=2)
    assert reason in problem
    assert problem.count("\n") == 1


def test_what_breaks_in_a_callback_ends_a_node_and_what_a_stranger_breaks_does_not() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        deployment = Deployment(1, "breaks", nodes=(NodeSpec("n", listen="memory"),), broker=BrokerSpec("memory"))

        def break_with(error: Exception) -> None:
            raise error

        async with Node(deployment, "n") as node:
            watch(loop, node)
            loop.call_soon(break_with, ConnectionResetError("a stranger has gone"))
            loop.call_soon(break_with, KeyError("ours"))
            for _ in range(5):
                await asyncio.sleep(0)
            assert isinstance(node.failure, KeyError)

    asyncio.run(run())


BARE = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A service's or a container's: no locale at all."""


def test_a_command_works_with_closed_streams_in_any_locale_and_ends_when_nobody_reads_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file, where = str(tmp_path / "deployment.toml"), f"unisono://127.0.0.1:{port}"
    unisono("init", file, "--port", str(port))
    node = start("node", file, "local-1")
    try:
        assert node.stderr is not None
        node.stderr.readline()
        reading = subprocess.Popen(
            [*UNISONO, "sub", where, "trades"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BARE
        )
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stderr.readline() == b"subscribed to trades (total)\n"
        for closed in (0, 1, 2):
            command = shlex.join([*UNISONO, "pub", where, "trades", "zürich"]) + f" {closed}>&-"
            assert subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, env=BARE).returncode == 0
            assert reading.stdout.readline() == "trades\tzürich\n".encode()
        subprocess.run([*UNISONO, "pub", where, "trades", b"\xff"], check=True, timeout=60, capture_output=True)
        assert reading.stdout.readline() == "trades\t\ufffd\n".encode()
        reading.stdout.close()
        assert reading.wait(60) == 1, "though nothing was written any more"
        assert reading.stderr.read() == b""
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)


def test_ctrl_c_ends_a_command_that_is_still_being_read_without_a_word() -> None:
    """What is read before the command itself: next to nothing, so that at no moment a traceback can come of it."""
    read = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, unisono.__main__ as m; print(len([n for n in sys.modules if 'unisono.' in n]))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(read.stdout) == 1, "itself"
    program = (
        "import sys, signal; from importlib.abc import MetaPathFinder\n"
        "class Interrupted(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == NAME: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['unisono', 'pub', 'unisono://127.0.0.1:1', 't', 'x']\n"
        "from unisono.__main__ import main; main()"
    )
    for name in ("unisono.cli.main", "typer", "unisono.cli.pub", "unisono.runtime.connect"):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("NAME", repr(name))], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), name


def test_what_cannot_be_written_whole_is_named_and_not_left_behind(tmp_path: Path) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # as on a full disk: what is written ends in an error

    file = tmp_path / "deployment.toml"
    for words, named in (
        (("init", str(file)), f"{file} cannot be written: File too large"),
        (("simulate", "fifo/reorder", "--seeds", "0", "--journal", str(tmp_path)), "fifo-reorder-0.jsonl: File too"),
    ):
        done = subprocess.run([*UNISONO, *words], capture_output=True, text=True, timeout=60, preexec_fn=small)
        assert done.returncode == 2
        assert named in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["fifo-reorder-0.jsonl"]
