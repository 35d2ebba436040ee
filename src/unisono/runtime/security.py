"""TLS contexts and the token of a deployment, which names files and a variable; secrets are read here."""

import hmac
import os
import ssl
from pathlib import Path

from unisono.errors import MisuseError
from unisono.model.deployment import Security


def token_of(security: Security) -> str:
    """The token from the environment; empty if the deployment names no variable."""
    if security.token_variable is None:
        return ""
    token = os.environ.get(security.token_variable, "")
    if not token:
        raise MisuseError(f"the deployment wants a token in the environment variable {security.token_variable}")
    return token


def same_token(given: str, wanted: str) -> bool:
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
