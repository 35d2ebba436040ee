"""How two parties introduce themselves, without showing what they know.

Who dials says `Hello`. If it knows a token its hello has a nonce, and it is answered with a `Challenge`, a nonce of the
other side; it sends a `Proof`, a keyed hash of both nonces and of all that it has said, and the answering `Hello`
carries the same of the other side. So no token crosses the wire, an impostor at a node's address learns none, and who
dials with a token finds out that it is an impostor. What an eavesdropper has heard can be tried against guessed tokens:
tokens are long and random, or TLS hides it all.
"""

import secrets
from collections.abc import Callable
from typing import Any, Literal

from msgspec.structs import replace

from unisono.errors import PeerError
from unisono.model.agreed import agreed
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.runtime.links.frames import (
    Challenge,
    Hello,
    Proof,
    Rejected,
    agree_on_protocol,
    decode_hello,
    encode_frame,
)
from unisono.runtime.links.security import NONCE_BYTES, Tokens, is_proof, prove

_DIAL, _ANSWER = b"unisono dial", b"unisono answer"

GIVE_A_TOKEN = (
    "Give the deployment's token: a client by --token, the variable UNISONO_TOKEN, or connect(…, token=…); "
    "a node by [security] of its file"
)
NOT_PROVEN = f"does not know our token: it has another one, or none. {GIVE_A_TOKEN}"


def hello_of(
    kind: Literal["node", "client"], me: Address, deployment: Deployment, features: tuple[str, ...] = ()
) -> Hello:
    """How a party of a deployment begins."""
    name, identity = deployment.name, deployment.id
    return Hello(kind, (me,), features=features, deployment=name, id=identity, agreed=agreed(deployment))


class Greeting:
    """One side of one introduction: bytes in, frames out, and `peer` when both are introduced."""

    def __init__(self, hello: Hello, dialed: bool, tokens: Tokens, admit: Callable[[Hello], Rejected | None]) -> None:
        self.peer: Hello | None = None
        self.token = ""
        """The one that whoever dialed us has proven."""
        self._dialed, self._tokens, self._admit = dialed, tokens, admit
        self._hello = replace(hello, nonce=secrets.token_bytes(NONCE_BYTES)) if dialed and tokens.own else hello
        self._said = encode_frame(self._hello)[4:]
        self._challenge = b""
        self._waiting: tuple[Hello, bytes] | None = None  # who has to prove something, and what it said

    def begin(self) -> list[Any]:
        return [self._hello] if self._dialed else []

    def hear(self, body: bytes | memoryview) -> list[Any]:
        """What to send in answer; raises PeerError."""
        message = decode_hello(body)
        if isinstance(message, Rejected):
            raise RejectedError(message)
        if self._dialed:
            return self._hear_answer(message)
        if isinstance(message, Hello) and self._waiting is None:
            return self._hear_hello(message, bytes(body))
        if isinstance(message, Proof) and self._waiting is not None:
            return self._hear_proof(message, *self._waiting)
        raise PeerError(f"{type(message).__name__} where none is due", "hello-first")

    # who dials

    def _hear_answer(self, message: Hello | Challenge | Proof) -> list[Any]:
        if isinstance(message, Hello):
            agree_on_protocol(message.protocols)
            if self._tokens.own and not self._is_proven(message):
                raise PeerError(f"{', '.join(message.addresses)} {NOT_PROVEN}", "token")
            self._let_in(message)
            return []
        if isinstance(message, Proof) or self._challenge or not self._tokens.own:
            raise PeerError(f"{type(message).__name__} where none is due", "hello-first")
        self._challenge = message.nonce
        return [Proof(prove(self._tokens.own, _DIAL, message.nonce, self._said))]

    def _is_proven(self, answer: Hello) -> bool:
        said = (_ANSWER, self._challenge, self._hello.nonce, _named(answer))
        return bool(self._challenge) and is_proof(answer.proof, self._tokens.own, *said)

    # who is dialed

    def _hear_hello(self, hello: Hello, said: bytes) -> list[Any]:
        agree_on_protocol(hello.protocols)
        if hello.nonce and self._tokens.is_any:
            self._waiting = hello, said
            self._challenge = secrets.token_bytes(NONCE_BYTES)
            return [Challenge(self._challenge)]
        if self._tokens.asks(hello.kind):
            raise PeerError(f"wrong token: a {hello.kind} has to show one, and this one showed none", "token")
        self._let_in(hello)
        return [self._hello]

    def _hear_proof(self, message: Proof, hello: Hello, said: bytes) -> list[Any]:
        token = self._tokens.proven(hello.kind, message.proof, _DIAL, self._challenge, said)
        if token is None and self._tokens.asks(hello.kind):
            raise PeerError(f"wrong token for a {hello.kind}", "token")
        self.token = token or ""
        self._let_in(hello)
        answer = (_ANSWER, self._challenge, hello.nonce, _named(self._hello))
        return [replace(self._hello, proof=prove(token, *answer)) if token is not None else self._hello]

    def _let_in(self, hello: Hello) -> None:
        rejected = self._admit(hello)
        if rejected is not None:
            raise PeerError(rejected.reason, rejected.code)
        self.peer = hello


class RejectedError(PeerError):
    """The other side has refused us."""

    def __init__(self, message: Rejected) -> None:
        todo = f". {GIVE_A_TOKEN}" if message.code == "token" and GIVE_A_TOKEN not in message.reason else ""
        super().__init__(f"rejected: {message.reason}{todo}", message.code)


def _named(hello: Hello) -> bytes:
    return encode_frame([hello.kind, hello.addresses, hello.deployment])
