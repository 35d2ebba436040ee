"""One question to one node, without a session: where is everything, and how are you."""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from unisono.errors import PeerError, TransportError, TurnedAwayError, UnisonoError, said
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.runtime.links import control
from unisono.runtime.links.connecting import connected
from unisono.runtime.links.connection import Connection
from unisono.runtime.links.frames import Codec, Hello, Letter, Rejected
from unisono.runtime.links.greeting import RejectedError
from unisono.runtime.links.security import Tokens

T = TypeVar("T")


async def ask_node(
    where: str,
    token: str,
    question: Callable[[Address], Any],
    answer: type[T],
    timeout_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
    deployment: Deployment | None = None,
) -> T:
    """Connects to `host:port`, asks, and returns the first message of the type `answer`. A node of another deployment
    than that, if one is given, gives no answer.

    report = await ask_node("127.0.0.1:7474", "", control.AskReport, control.NodeReport)
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()
    me = Address(f"ask{secrets.token_hex(5)}")

    def receive(connection: Connection, letters: list[Letter[Any]]) -> None:
        for letter in letters:
            if isinstance(letter.message, answer) and not answered.done():
                answered.set_result(letter.message)

    def admit(connection: Connection, hello: Hello) -> Rejected | None:
        loop.call_soon(connection.post, Letter(hello.addresses[0], question(me)))
        return None

    def closed(connection: Connection, error: UnisonoError | None) -> None:
        if not answered.done():
            answered.set_exception(error or TransportError("the node closed the connection"))

    name, identity = (deployment.name, deployment.id) if deployment is not None else ("", "")
    hello = Hello("client", (me,), deployment=name, id=identity)
    made = Connection(Codec(control.Letters), hello, True, admit, receive, closed, tokens=Tokens(own=token))
    host, port = endpoint(where)
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connected(made, host, port, tls)
            try:
                return await answered
            finally:
                answered.cancel()
                connection.close()
    except RejectedError as error:
        raise PeerError(f"{where}: {error}", error.code) from None
    except PeerError as error:
        if error.code == "token":
            raise
        todo = f"Write nats://{where}" if "NATS" in str(error) else "A node listens where its deployment says: `listen`"
        raise PeerError(f"{where} is no unisono node: {error}. {todo}", error.code) from None
    except ssl.SSLError as error:
        todo = "The other end speaks no TLS, or shows a certificate that the authority does not vouch for"
        raise TurnedAwayError(f"{where}: no TLS: {said(error)}. {todo}") from None
    except OSError as error:  # includes the timeout
        raise TransportError(f"{where}: {said(error)}") from None
