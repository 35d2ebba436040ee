"""Who knocks at the wrong door is told which is right: a NATS port, a broker's port, a door that wants a token."""

import asyncio
from contextlib import chdir
from pathlib import Path
from typing import get_args

import pytest
import trustme
from msgspec import structs
from typer.testing import CliRunner

import unisono
from unisono.cli.asking import ask_all
from unisono.cli.context import Destination
from unisono.cli.main import application
from unisono.errors import MisuseError, PeerError, TransportError
from unisono.model.deployment import Deployment, dump_deployment, load_deployment
from unisono.model.settings import Kind, NodeSpec, Region, Security
from unisono.runtime.links.control import AskReport, NodeReport
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


async def knock(where: str, token: str | None = None) -> None:
    async with unisono.connect(where, token=token, timeout=2):
        pass


def deployment(port: int, security: Security = Security()) -> Deployment:
    hub = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"))
    return Deployment(1, "doors", nodes=(hub,), security=security)


def test_a_node_address_at_a_nats_server() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"N","version":"2.10.0"}\r\n')

    async def main() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(PeerError, match=f"a NATS server speaks there. Write nats://{where}"):
                await knock(f"unisono://{where}")

    asyncio.run(main())


def test_a_nats_address_at_a_node(tmp_path: Path) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        async with Node(deployment(port), "hub", tmp_path):
            with pytest.raises(TransportError, match=f"write unisono://127.0.0.1:{port}"):
                await knock(f"nats://127.0.0.1:{port}")

    asyncio.run(main())


def test_the_port_of_the_broker_is_not_that_of_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        async with Node(deployment(port), "hub", tmp_path):
            with pytest.raises(PeerError, match=r"is no unisono node: .* A node listens where its deployment says"):
                await knock(f"unisono://127.0.0.1:{port + 1}")

    asyncio.run(main())


def test_a_door_that_wants_a_token_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        guarded = deployment(port, Security(token_variable="DOOR"))
        async with Node(guarded, "hub", tmp_path):
            for token, words in ((None, "showed none"), ("wrong", "wrong token for a client")):
                with pytest.raises(PeerError, match=f"{words}.*--token, the variable UNISONO_TOKEN, or connect"):
                    await knock(f"unisono://127.0.0.1:{port}", token)
            await knock(f"unisono://127.0.0.1:{port}", "right")
            monkeypatch.delenv("DOOR")
            with pytest.raises(MisuseError, match="environment variable DOOR, and it is not set: set it, or"):
                async with unisono.connect(guarded):
                    pass

    monkeypatch.setenv("DOOR", "right")
    asyncio.run(main())


def test_waiting_cannot_help_who_has_a_wrong_token_or_speaks_tls_to_a_plain_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a deployment file the broker is the first that is asked; who waits for it says so first."""

    async def main() -> None:
        (port,) = free_ports(1)
        guarded = deployment(port, Security(token_variable="DOOR"))
        (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
        async with Node(guarded, "hub", tmp_path):
            for problem, options in (
                ("token", {"token": "wrong"}),
                ("no TLS with the embedded broker", {"authority": tmp_path / "ca.pem"}),
            ):
                with pytest.raises(TransportError, match=problem):
                    async with unisono.connect(guarded, timeout=1, **options):  # type: ignore[arg-type]
                        pass
        assert [record for record in caplog.records if "waits up to" in record.getMessage()] == []

    monkeypatch.setenv("DOOR", "right")
    asyncio.run(main())


def test_a_token_that_a_node_does_not_know_is_the_fault_that_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        async with Node(deployment(port), "hub", tmp_path):
            with pytest.raises(PeerError, match=r"^hub does not know our token: .*--token"):
                await knock(f"unisono://127.0.0.1:{port}", "wrong")

    asyncio.run(main())


def test_a_region_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        there = structs.replace(deployment(port), regions=(Region("local"),))
        async with Node(there, "hub", tmp_path):
            with pytest.raises(MisuseError, match="region 'mars' is not one of deployment doors: local"):
                async with unisono.connect(f"unisono://127.0.0.1:{port}", region="mars"):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["overlay", "causal", "regions"])
def test_a_broker_that_lets_nobody_in_is_not_said_to_be_away(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        broker = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=(kind,))
        guarded = Deployment(1, "doors", kind=kind, nodes=(broker,), security=Security(token_variable="DOOR"))
        async with Node(guarded, "hub"):
            with pytest.raises(PeerError, match=r"^broker hub at .*wrong token for a client.*--token"):
                async with unisono.connect(guarded, token="wrong", timeout=1):
                    pass
        with pytest.raises(TransportError, match=r"^no broker answers \(hub at .*unisono node FILE hub"):
            async with unisono.connect(guarded, token="right", timeout=1):
                pass

    monkeypatch.setenv("DOOR", "right")
    asyncio.run(main())


def test_a_node_of_another_deployment_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Two deployments on one machine, with the same ports and names of nodes: `status` must not show the other's."""

    async def main() -> None:
        (port,) = free_ports(1)
        mine = structs.replace(deployment(port), name="mine")
        async with Node(deployment(port), "hub", tmp_path):
            (tmp_path / "mine.toml").write_text(dump_deployment(mine))
            file = Destination(str(tmp_path / "mine.toml"), None, None)
            _, answers = await ask_all(file, 5, AskReport, NodeReport)
            _, own = await ask_all(Destination(f"unisono://127.0.0.1:{port}", None, None), 5, AskReport, NodeReport)
        assert isinstance(own["hub"], NodeReport)
        assert "this is deployment 'doors', not 'mine'" in str(answers["hub"])
        assert isinstance(answers["hub"], TransportError)

    asyncio.run(main())


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_deployment_of_the_same_name_and_another_id_is_not_taken_for_ours(tmp_path: Path, kind: Kind) -> None:
    """`unisono init` gives every deployment the same name and ports: `status`, clients and nodes tell them apart."""

    async def main() -> None:
        (port,) = free_ports(1)
        init("x.toml", "--kind", kind, "--region", "eu", "--port", str(port))
        init("mine.toml", "--kind", kind, "--region", "eu", "--port", str(port))
        async with Node(load_deployment(tmp_path / "x.toml"), "eu-1", tmp_path):
            _, answers = await ask_all(Destination("mine.toml", None, None), 5, AskReport, NodeReport)
            assert "this is another deployment 'unisono': its id is" in str(answers["eu-1"])
            assert isinstance(answers["eu-1"], TransportError)
            with pytest.raises(PeerError, match=r"eu-1.*: this is another deployment"):
                async with unisono.connect("mine.toml", timeout=2) as session:
                    await session.publisher("trades")
            if kind == "sequencer":
                other = NodeSpec("us-1", parent="eu-1", listen=f"127.0.0.1:{free_ports(1)[0]}")
                mine = load_deployment(tmp_path / "mine.toml")
                mine = structs.replace(mine, nodes=(*mine.nodes, other))
                async with Node(mine, "us-1", tmp_path) as us:
                    async with asyncio.timeout(30):
                        while not any("another deployment" in problem for problem in us.health().problems()):
                            await asyncio.sleep(0.02)

    def init(*arguments: str) -> None:
        done = CliRunner().invoke(application("init"), ["init", *arguments], prog_name="unisono")
        assert done.exit_code == 0, done.output

    with chdir(tmp_path):
        asyncio.run(main())


@pytest.mark.parametrize("where", ["unisono://127.0.0.1", "unisono://", "unisono://a:1,b"])
def test_an_address_without_a_port_is_told_so(where: str) -> None:
    with pytest.raises(MisuseError, match=r"an address has a host and a port, like unisono://"):
        asyncio.run(knock(where))
