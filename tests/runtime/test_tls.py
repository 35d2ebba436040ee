"""TLS between nodes and clients, as the deployment's security section says."""

import asyncio
from pathlib import Path

import pytest
import trustme

import unisono
from tests.runtime.test_cluster import Silent, running, star, url
from unisono.model.deployment import dump_deployment
from unisono.model.settings import Security
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.client.publishing.named import NamedEvent, named_publisher


def issue(directory: Path) -> Security:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "node.pem"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    return Security(certificate="node.pem", authority="ca.pem")


def test_nodes_and_clients_talk_over_tls_and_plain_parties_stay_outside(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False, security=issue(tmp_path))
        file = tmp_path / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        async with asyncio.timeout(120), running(deployment, tmp_path):
            async with unisono.connect(file) as session, session.subscribe("trades", "quotes") as stream:
                assert isinstance(await session.publish("trades", 1), unisono.Accepted)
                assert isinstance(await session.publish("quotes", 2), unisono.Accepted)
                assert [(await anext(stream)).data for _ in range(2)] == [1, 2]
            with pytest.raises(unisono.TransportError):
                async with unisono.connect(url(deployment, "hub"), timeout=0.3):
                    pass

    asyncio.run(run())


def test_a_seed_is_asked_over_tls_and_so_is_the_embedded_broker(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False, security=issue(tmp_path))
        authority = tmp_path / "ca.pem"
        async with asyncio.timeout(60), running(deployment, tmp_path):
            async with (
                unisono.connect(url(deployment, "east"), authority=authority, timeout=30) as session,
                session.subscribe("trades") as stream,
            ):
                assert isinstance(await session.publish("trades", 1), unisono.Accepted)
                assert (await anext(stream)).data == 1
            async with named_publisher(url(deployment, "east"), "outbox", authority=authority) as publisher:
                await publisher.publish([NamedEvent("trades", 1, b"2")])
            plain = EmbeddedEns(*embedded_endpoint(deployment), Silent())
            with pytest.raises(unisono.TransportError):
                await plain.open()
            with pytest.raises(unisono.TransportError, match="certificate"):
                async with unisono.connect(url(deployment, "east"), authority="system", timeout=0.3):
                    pass

    asyncio.run(run())


def test_nodes_of_another_authority_are_not_trusted(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False, security=issue(tmp_path))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        issue(elsewhere)
        file = elsewhere / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        async with asyncio.timeout(60), running(deployment, tmp_path):
            with pytest.raises(unisono.TransportError, match="certificate verify failed"):
                async with unisono.connect(file, timeout=0.5):
                    pass

    asyncio.run(run())


def test_a_certificate_that_is_not_there_is_a_misuse(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False, security=Security(certificate="missing.pem"))
        with pytest.raises(unisono.MisuseError, match=r"missing\.pem"):
            async with running(deployment, tmp_path):
                pass

    asyncio.run(run())
