"""TLS contexts and the tokens of a deployment, which names files and variables; secrets are read here."""

import hmac
import os
import ssl
from pathlib import Path
from typing import Literal, NamedTuple

from unisono.errors import MisuseError
from unisono.model.deployment import Security

SYSTEM = "system"
"""As an authority: those that the operating system trusts."""


PROOF_BYTES = 32
NONCE_BYTES = 16


class Tokens(NamedTuple):
    """What a process knows: the token it shows itself, and those it asks of nodes and clients. Empty: nobody is asked.

    No token ever leaves the process: who dials proves that it knows one (`prove`), and is shown the same.
    """

    own: str = ""
    node: str = ""
    client: str = ""

    def asks(self, kind: Literal["node", "client"]) -> bool:
        """Whether somebody of this kind has to prove a token."""
        return bool(self.node if kind == "node" else self.client)

    def proven(self, kind: Literal["node", "client"], proof: bytes, *said: bytes) -> str | None:
        """The token that the proof was made with; a node may do whatever a client may, never the other way round."""
        for token in (self.node, self.client) if kind == "client" else (self.node,):
            if token and is_proof(proof, token, *said):
                return token
        return None


def prove(token: str, *said: bytes) -> bytes:
    """Shows knowledge of a token to somebody who has named a nonce in what was said."""
    return hmac.digest(token.encode(), b"".join(len(part).to_bytes(4, "big") + part for part in said), "sha256")


def is_proof(proof: bytes, token: str, *said: bytes) -> bool:
    return hmac.compare_digest(proof, prove(token, *said))


def token_of(security: Security) -> str:
    """The token of clients from the environment; empty if the deployment names no variable."""
    return _read(security.token_variable)


def tokens_of(security: Security) -> Tokens:
    """Both tokens, for a node. Without a variable of their own, nodes show the token of clients."""
    client = _read(security.token_variable)
    node = _read(security.node_token_variable) or client
    return Tokens(node, node, client)


def _read(variable: str | None) -> str:
    if variable is None:
        return ""
    token = os.environ.get(variable, "")
    if not token:
        raise MisuseError(f"the deployment wants a token in the environment variable {variable}")
    return token


def server_context(security: Security, base: Path) -> ssl.SSLContext | None:
    """What a listening node presents; None without a certificate."""
    if security.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, security, base)
    return context


def client_context(security: Security, base: Path) -> ssl.SSLContext | None:
    """What a dialing party checks."""
    if security.authority is None:
        return None
    if security.authority == SYSTEM:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(base / security.authority))
    except (OSError, ssl.SSLError) as error:
        raise MisuseError(f"security.authority {security.authority!r}: {error}") from None


def _load(context: ssl.SSLContext, security: Security, base: Path) -> None:
    assert security.certificate is not None
    key = str(base / security.key) if security.key is not None else None
    try:
        context.load_cert_chain(str(base / security.certificate), key)
    except (OSError, ssl.SSLError) as error:
        raise MisuseError(f"security.certificate {security.certificate!r}: {error}") from None
