"""Logging in to NATS with nkeys, `.creds` files and TLS client certificates: real servers, a node, clients."""

import asyncio
import base64
import binascii
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import unisono
from tests.runtime.test_session import take
from unisono.errors import FormatError, MisuseError, TransportError
from unisono.machine import Accepted
from unisono.model.deployment import dump_deployment, for_clients, load_deployment, parse_deployment
from unisono.runtime.brokers.nats.login import SEED, USER, encode_key, read_login
from unisono.runtime.driver.log import LogConfig
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.nats_server import NatsServer
from unisono.runtime.tools.ports import free_ports

ACCOUNT, OPERATOR = 0, 14 << 3


class Identity:
    """An nkey pair of some kind."""

    def __init__(self, kind: int = USER) -> None:
        self.kind, self.key = kind, Ed25519PrivateKey.generate()
        self.public = encode_key(kind, self.key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        body = bytes([SEED | self.kind >> 5, (self.kind & 31) << 3]) + self.key.private_bytes_raw()
        return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")

    def vouch(self, subject: str, kind: str, claims: dict[str, Any]) -> str:
        """A JWT of NATS, signed by this identity."""
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {"jti": subject, "iat": 1, "iss": self.public, "name": kind, "sub": subject}
        body["nats"] = {**claims, "type": kind, "version": 2}
        text = ".".join(_b64(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_b64(self.key.sign(text.encode()))}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Server(NatsServer):
    """A nats-server with settings of the test's."""

    more: dict[str, object]

    def settings(self) -> dict[str, object]:
        return {**super().settings(), **self.more}


def creds(path: Path, user: Identity, jwt: str) -> Path:
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\nIMPORTANT\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return path


def play(
    tmp_path: Path,
    more: dict[str, object],
    settings: str,
    story: Callable[[str, str], Awaitable[None]],
    tls: bool = False,
) -> None:
    """A server, a node over it with these settings of its broker, and a story that is told their addresses."""

    async def main() -> None:
        server = Server(tmp_path / "server")
        server.more = more
        await server.start()
        (port,) = free_ports(1)
        scheme = "tls" if tls else "nats"
        (tmp_path / "deployment.toml").write_text(
            f'version = 1\nkind = "sequencer"\n[[nodes]]\nname = "hub"\nlisten = "127.0.0.1:{port}"\ndata = "data"\n'
            f'[broker]\nkind = "nats"\nservers = ["{scheme}://127.0.0.1:{server.port}"]\n{settings}'
        )
        try:
            config = NodeConfig(witness_s=0, log=LogConfig(sync=False))
            async with Node(load_deployment(tmp_path / "deployment.toml"), "hub", base=tmp_path, config=config):
                await story(f"unisono://127.0.0.1:{port}", f"nats://127.0.0.1:{server.port}")
        finally:
            server.kill()

    asyncio.run(main())


async def hears_itself(where: str, **options: Any) -> None:
    async with unisono.connect(where, timeout=20, **options) as session, session.subscribe("trades") as stream:
        assert await session.publish("trades", {"px": 1}) == Accepted(1, "ordered")
        (event,) = await take(stream, 1)
        assert event.data == {"px": 1}


def test_nodes_and_clients_log_in_with_nkeys_of_their_own(tmp_path: Path) -> None:
    node, client, stranger = Identity(), Identity(), Identity()
    for name, identity in (("node", node), ("client", client), ("stranger", stranger)):
        (tmp_path / f"{name}.nk").write_text(identity.seed + "\n")

    async def story(where: str, nats: str) -> None:
        await hears_itself(where, credentials=tmp_path / "client.nk")
        await hears_itself(nats, credentials=tmp_path / "client.nk")
        for wrong in ({}, {"credentials": tmp_path / "stranger.nk"}):
            with pytest.raises(TransportError, match="Authorization"):
                async with unisono.connect(where, timeout=0.3, **wrong):
                    pass

    users = [{"nkey": node.public}, {"nkey": client.public}]
    play(tmp_path, {"authorization": {"users": users}}, 'node_credentials = "node.nk"\n', story)


def test_creds_files_work_and_the_variable_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, account, user = Identity(OPERATOR), Identity(ACCOUNT), Identity()
    limits = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    limits |= {"wildcards": True}  # type: ignore[dict-item]
    trust = {
        "operator": operator.vouch(operator.public, "operator", {}),
        "resolver": "MEMORY",
        "resolver_preload": {account.public: operator.vouch(account.public, "account", {"limits": limits})},
    }
    named = creds(
        tmp_path / "us.creds", user, account.vouch(user.public, "user", {"subs": -1, "data": -1, "payload": -1})
    )

    async def story(where: str, nats: str) -> None:
        await hears_itself(where, credentials=named)
        monkeypatch.setenv("UNISONO_CREDENTIALS", str(named))
        await hears_itself(nats)

    play(tmp_path, trust, 'credentials = "us.creds"\n', story)


def test_a_server_that_wants_certificates_of_its_clients_is_shown_one(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("us@x.example")),
    ):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    files = {name: str(tmp_path / path) for name, path in (("cert_file", "server.pem"), ("key_file", "server.key"))}
    asked = {**files, "ca_file": str(tmp_path / "ca.pem"), "verify": True}

    async def story(where: str, nats: str) -> None:
        shown = {"certificate": tmp_path / "client.pem", "key": tmp_path / "client.key"}
        session = unisono.connect(tmp_path / "deployment.toml", timeout=20, **shown)
        async with session as session, session.subscribe("trades") as stream:
            await session.publish("trades", 1)
            assert [event.data for event in await take(stream, 1)] == [1]
        await hears_itself(nats, authority=tmp_path / "ca.pem", **shown)
        with pytest.raises((TransportError, ssl.SSLError)):
            async with unisono.connect(nats, authority=tmp_path / "ca.pem", timeout=0.5):
                pass

    settings = 'authority = "ca.pem"\ncertificate = "client.pem"\nkey = "client.key"\n'
    play(tmp_path, {"tls": asked}, settings, story, tls=True)


def test_what_holds_no_seed_of_a_user_is_refused_and_not_shown(tmp_path: Path) -> None:
    bad = {
        "empty": "",
        "words": "my secret seed",
        "account": Identity(ACCOUNT).seed,
    }
    good = Identity()
    bad["flipped"] = good.seed[:20] + ("A" if good.seed[20] != "A" else "B") + good.seed[21:]
    for name, text in {**bad, "public": good.public}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(MisuseError, match="no seed of a user") as refused:
            read_login(tmp_path / name)
        assert not text or text not in str(refused.value)
    with pytest.raises(MisuseError, match="No such file"):
        read_login(tmp_path / "nowhere")
    (tmp_path / "good").write_text(good.seed)
    assert read_login(tmp_path / "good").public == good.public


def test_files_of_the_broker_are_relative_to_the_deployment_and_stay_with_nodes(tmp_path: Path) -> None:
    text = 'version = 1\n[[nodes]]\nname = "hub"\n[broker]\nkind = "nats"\nservers = ["nats://h:1"]\n'
    text += 'credentials = "a.nk"\n'
    (tmp_path / "d.toml").write_text(text)
    found = load_deployment(tmp_path / "d.toml")
    assert found.broker.credentials == str(tmp_path / "a.nk")
    assert parse_deployment(dump_deployment(found)) == found
    assert for_clients(found).broker.credentials is None
    with pytest.raises(FormatError, match="it is for nats"):
        parse_deployment(text.replace('"nats"', '"embedded"'))
    with pytest.raises(FormatError, match="name the certificate"):
        parse_deployment(text + 'key = "k.pem"\n')
