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


class Tokens(NamedTuple):
    """What a node knows: its own token, and the one it asks of clients. Empty: nobody is asked."""

    node: str
    client: str

    def admits(self, given: str, kind: Literal["node", "client"]) -> bool:
        """A node may do whatever a client may, never the other way round."""
        if _same(given, self.node):
            return True
        return kind == "client" and _same(given, self.client)


def token_of(security: Security) -> str:
    """The token of clients from the environment; empty if the deployment names no variable."""
    return _read(security.token_variable)


def tokens_of(security: Security) -> Tokens:
    """Both tokens, for a node. Without a variable of their own, nodes show the token of clients."""
    client = _read(security.token_variable)
    return Tokens(_read(security.node_token_variable) or client, client)


def _read(variable: str | None) -> str:
    if variable is None:
        return ""
    token = os.environ.get(variable, "")
    if not token:
        raise MisuseError(f"the deployment wants a token in the environment variable {variable}")
    return token


def _same(given: str, wanted: str) -> bool:
    return not wanted or hmac.compare_digest(given.encode(), wanted.encode())


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
