"""Who we are to a NATS server beside passwords: a `.creds` file (a JWT and a seed) or a bare nkey seed.

The server sends a nonce, we sign it with Ed25519; the seed never leaves the process.
"""

import base64
import binascii
import re
import ssl
from pathlib import Path
from typing import NamedTuple, Protocol

from unisono.errors import MisuseError, said
from unisono.model.settings import BrokerSpec

BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END")
SEED, USER = 18 << 3, 20 << 3
"""What the first bytes of a seed and of a user's key say, so that their texts begin with S and U."""


class Signing(Protocol):
    """An Ed25519 key."""

    def sign(self, data: bytes) -> bytes: ...


class NatsLogin(NamedTuple):
    """What is shown instead of a password."""

    key: Signing
    public: str
    jwt: str = ""

    def answer(self, nonce: str) -> dict[str, object]:
        """What goes into CONNECT."""
        signature = base64.urlsafe_b64encode(self.key.sign(nonce.encode())).decode().rstrip("=")
        return {"jwt": self.jwt, "sig": signature} if self.jwt else {"nkey": self.public, "sig": signature}


def read_login(path: Path) -> NatsLogin:
    """From a `.creds` file, or one with a seed alone; raises MisuseError that names the file and no secret."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"broker.credentials {str(path)!r}: {said(error)}") from None
    blocks: dict[str, str] = dict(BLOCK.findall(text))
    seed, jwt = blocks.get("USER NKEY SEED", text if not blocks else ""), blocks.get("NATS USER JWT", "")
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        body, check = raw[:-2], int.from_bytes(raw[-2:], "little")
    except (ValueError, binascii.Error):
        body, check = b"", -1
    kind = (body[0] & 7) << 5 | body[1] >> 3 if len(body) == 34 else 0
    if not body or body[0] & 0xF8 != SEED or kind != USER or binascii.crc_hqx(body, 0) != check:
        todo = "a file that `nsc` made for a user (.creds), or a user's seed, which begins with SU"
        raise MisuseError(f"broker.credentials {str(path)!r} holds no seed of a user: name {todo}")
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise MisuseError("broker.credentials needs a package: install unisono[nats]") from None
    key = Ed25519PrivateKey.from_private_bytes(body[2:])
    return NatsLogin(key, encode_key(USER, key.public_key().public_bytes_raw()), jwt)


def encode_key(kind: int, raw: bytes) -> str:
    """A public key as NATS writes it."""
    body = bytes([kind]) + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def login_of(broker: BrokerSpec, is_node: bool) -> NatsLogin | None:
    """With what a node, or a client, logs in; None: with a name and a password, or as nobody."""
    path = (broker.node_credentials if is_node else None) or broker.credentials
    return read_login(Path(path)) if path is not None else None


def broker_tls(broker: BrokerSpec) -> ssl.SSLContext | None:
    """Whom we trust, and the certificate we show if the server asks for one; None: as the machine does, and none."""
    if broker.authority is None and broker.certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=broker.authority)
    except (OSError, ssl.SSLError) as error:
        raise MisuseError(f"broker.authority {broker.authority!r}: {said(error)}") from None
    if broker.certificate is not None:
        try:
            context.load_cert_chain(broker.certificate, broker.key)
        except (OSError, ssl.SSLError) as error:
            raise MisuseError(f"broker.certificate {broker.certificate!r}: {said(error)}") from None
    return context
