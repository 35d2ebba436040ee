"""TLS contexts and the tokens of a deployment, which names files and variables; secrets are read here."""

import hmac
import os
import ssl
from pathlib import Path
from typing import Literal, NamedTuple

from unisono.errors import MisuseError, said
from unisono.model.settings import Right, Security

SYSTEM = "system"
"""As an authority: those that the operating system trusts."""


NONCE_BYTES = 16


class Tokens(NamedTuple):
    """What a process knows: the token it shows itself, and those it asks of nodes and clients. Empty: nobody is asked.

    No token ever leaves the process: who dials proves that it knows one (`prove`), and is shown the same.
    """

    own: str = ""
    node: str = ""
    client: str = ""
    rights: tuple[tuple[str, Right], ...] = ()
    """Tokens of clients that may only do some things."""

    def asks(self, kind: Literal["node", "client"]) -> bool:
        """Whether somebody of this kind has to prove a token."""
        return bool(self.node if kind == "node" else self.client or self.rights)

    @property
    def is_any(self) -> bool:
        return bool(self.node or self.client or self.rights)

    def right_of(self, token: str) -> Right | None:
        """What is allowed with it; None: everything that its kind may do."""
        return next((right for known, right in self.rights if known == token), None)

    def proven(self, kind: Literal["node", "client"], proof: bytes, *said: bytes) -> str | None:
        """The token that the proof was made with; a node may do whatever a client may, never the other way round."""
        limited = [token for token, _ in self.rights]
        for token in (self.node, self.client, *limited) if kind == "client" else (self.node,):
            if token and is_proof(proof, token, *said):
                return token
        return None


def prove(token: str, *said: bytes) -> bytes:
    """Shows knowledge of a token to somebody who has named a nonce in what was said."""
    return hmac.digest(token.encode(), b"".join(len(part).to_bytes(4, "big") + part for part in said), "sha256")


def is_proof(proof: bytes, token: str, *said: bytes) -> bool:
    return hmac.compare_digest(proof, prove(token, *said))


def token_of(security: Security, base: Path = Path()) -> str:
    """The token of clients, from the environment or a file; empty if the deployment names neither."""
    return read_secret(security.token_variable, security.token_file, base)


def tokens_of(security: Security, base: Path = Path(), rights: tuple[Right, ...] = ()) -> Tokens:
    """All tokens, for a node. Without one of their own, nodes show the token of clients."""
    client = token_of(security, base)
    node = read_secret(security.node_token_variable, security.node_token_file, base) or client
    limited = tuple((read_secret(right.token_variable, right.token_file, base), right) for right in rights)
    known = [token for token in (node, client) if token] + [token for token, _ in limited]
    if limited and len(set(known)) < len(known):
        raise MisuseError("two [[rights]] or [security] have one token: nobody could tell whose it is")
    if limited and not node:
        raise MisuseError("with [[rights]] nodes need a token of their own: security.node_token_variable or _file")
    return Tokens(node, node, client, limited)


def read_secret(variable: str | None, file: str | None, base: Path) -> str:
    """What stands there; empty if neither is named. Raises MisuseError if it is not there."""
    if variable is not None:
        token = os.environ.get(variable, "")
        if not token:
            raise MisuseError(
                f"the deployment wants a token in the environment variable {variable}, and it is not set: set it, or "
                "give clients --token or connect(…, token=…)"
            )
        return token
    if file is None:
        return ""
    try:
        token = (base / file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"the deployment wants a token in the file {file}: {said(error)}") from None
    if not token:
        raise MisuseError(f"the deployment wants a token in the file {file}, which is empty")
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
        raise MisuseError(f"security.authority {security.authority!r}: {said(error)}") from None


def _load(context: ssl.SSLContext, security: Security, base: Path) -> None:
    assert security.certificate is not None
    key = str(base / security.key) if security.key is not None else None
    try:
        context.load_cert_chain(str(base / security.certificate), key)
    except (OSError, ssl.SSLError) as error:
        raise MisuseError(f"security.certificate {security.certificate!r}: {said(error)}") from None
