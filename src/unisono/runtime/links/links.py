"""Who is reachable over which connection: dialing, accepting, reconnecting, and letters to addresses.

A process has one `Links`. Hosts of the process are attached under their addresses and get letters by a plain call;
peers are dialed and kept connected (pauses double up to `redial_s_max`), or connect to us. A letter goes to the address
itself, or else to the party that owns it: `c7/2` belongs to the client `c7`. Letters to nobody are dropped and counted:
sessions between nodes and the requests of clients are sent again until answered, so a link may lose, and only they know
what is worth keeping.

Reading from a connection stops while a host it feeds is full; that is how a slow machine slows those who talk to it. It
also stops while letters of a client wait: for their turn, since others have theirs, or for its `Pace`. Links between
nodes have no pace.

An address belongs to whoever has connected under it. A client that has lost its connection and dials again, while the
other end has not noticed yet, shows the secret of its first hello and takes its address over; nobody else can. Nodes
take over from nodes: what keeps strangers from being one is a token.
"""

import asyncio
import hmac
import logging
import os
import random
import secrets
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from unisono.errors import PeerError, TransportError, UnisonoError, said
from unisono.model.address import host_port
from unisono.model.ids import Address
from unisono.model.settings import Right
from unisono.runtime.links.connecting import connected
from unisono.runtime.links.connection import Connection, SendMeter, WireConfig
from unisono.runtime.links.frames import Codec, Hello, Letter, Rejected
from unisono.runtime.links.greeting import RejectedError
from unisono.runtime.links.holding import Holding
from unisono.runtime.links.pace import ALONE_S, BACKLOG_MAX, BACKLOG_S, TURN_LETTERS_MAX
from unisono.runtime.links.refusals import Refusals
from unisono.runtime.links.security import Tokens

logger = logging.getLogger(__name__)

BACKLOG = 100
"""Connections that wait to be accepted."""
TURNED_AWAY_MAX = 32
"""Connections for which there was no room, and that stay to read why: each is an open file. Others go at once."""
OFFENCES_MAX = 200
"""Refusals that leave a connection open; with the next it is closed."""


class LetterReceiver(Protocol):
    """Somebody in this process who gets letters: a host."""

    def post(self, message: Any) -> None: ...

    @property
    def is_full(self) -> bool: ...

    def when_roomy(self, callback: Callable[[], None]) -> None: ...


class LinksConfig(Struct, frozen=True):
    """Pace of reconnecting and bounds of connections."""

    redial_s_min: float = 0.05
    redial_s_max: float = 1.0
    connections_max: int = 10_000
    """Accepted connections; further ones are closed at once."""
    connections_unknown_max: int = 256
    """Of these, those that have not introduced themselves; for a further one the oldest of them is closed."""
    hello_addresses_max: int = 8
    """Addresses of one connection."""
    questions_per_s: int = 500
    """Of one client, or of all that ask more than that together."""
    bytes_max: int = 1 << 30
    """What all connections may hold: frames that are not whole, letters that wait, what others do not read."""
    wire: WireConfig = WireConfig()


class LinkCounters(Struct):
    """What the links of a process have done."""

    received: int = 0
    sent: int = 0
    to_nobody: int = 0
    forged: int = 0
    closed: int = 0


def owner(address: Address) -> Address:
    """The party an address belongs to: what is before the first slash."""
    return Address(address.partition("/")[0])


def is_named(address: str) -> bool:
    """Whether a client has given itself this name for ever (`client.publishing.named`), instead of one per session."""
    return address.startswith("@")


class Links:
    """All connections of one process."""

    def __init__(
        self,
        hello: Hello,
        codec: Codec,
        admit: Callable[[Hello], Rejected | None],
        sender: Callable[[Any], Address | None],
        up: Callable[[Hello], None],
        down: Callable[[Hello, UnisonoError | None], None],
        config: LinksConfig = LinksConfig(),
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        tokens: Tokens = Tokens(),
        refusals: Refusals | None = None,
    ) -> None:
        """`admit` gives the reason to reject a party; `sender` says who a message claims to be from."""
        self.counters = LinkCounters()
        self.refusals = refusals or Refusals()
        self.holding = Holding(config.bytes_max)
        """What all connections hold; those of an embedded broker count, too."""
        self.backlog: Callable[[], int] = lambda: 0
        """For the owner: how many inputs wait to be handled."""
        self._tokens, self._seed = tokens, secrets.token_bytes(16)
        self._accepted: dict[Connection, None] = {}
        self._turned_away: dict[Connection, None] = {}
        self._unknown: dict[Connection, None] = {}  # of these, who has not introduced itself, in the order of arrival
        self._hello, self._codec, self._config = hello, codec, config
        self._admit, self._sender, self._up, self._down = admit, sender, up, down
        self._server_tls, self._client_tls = server_tls, client_tls
        self._routes: dict[Address, LetterReceiver | Connection] = {}
        self._connections: dict[Connection, None] = {}
        self._spoke: dict[Connection, float] = {}  # when; the two who did so last
        self._paced: dict[Connection, None] = {}  # who has used up its time
        self._dialing: dict[Address, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._dice = random.Random()  # only spreads reconnects in time
        self._closing = False
        self.meters: dict[Address, SendMeter] = {}
        self.problems: dict[Address, str] = {}
        """Why a peer that we dial is not connected, the last time it was tried."""
        self.rejections: dict[Address, RejectedError] = {}
        """Of peers that are there and did not let us in, the last time."""
        self._traffic: dict[str, tuple[int, int]] = {}  # of connections that are gone

    async def bind(self, host: str, port: int) -> int:
        """Takes a port, so that nobody else does; returns it (useful when asked for port 0). `serve` accepts."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._make(self._hello),
                host,
                port,
                ssl=self._server_tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=self._config.wire.hello_s if self._server_tls is not None else None,
                start_serving=False,
            )
        except OSError as error:
            raise TransportError(f"cannot listen on {host_port(host, port)}: {said(error)}") from None
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def serve(self) -> None:
        """Accepts parties from now on, if a port was taken; before, their connections are refused."""
        if self._server is None:
            return
        try:
            for one in self._server.sockets:
                with socket.socket(fileno=os.dup(one.fileno())) as same:
                    same.listen(BACKLOG)  # uvloop does not say when this fails
            await self._server.start_serving()
        except OSError as error:  # two may have bound one port, as long as neither listened
            raise TransportError(f"cannot listen: {error.strerror or error}") from None

    def attach(self, address: Address, sink: LetterReceiver) -> None:
        self._routes[address] = sink

    def detach(self, address: Address) -> None:
        self._routes.pop(address, None)

    def dial(self, peer: Address, host: str, port: int, *others: tuple[str, int]) -> None:
        """Connects to a peer and stays connected until `hang_up` or `close`; it may also be at `others`."""
        if peer not in self._dialing:
            places = ((host, port), *others)
            self._dialing[peer] = asyncio.create_task(self._keep_dialing(peer, places), name=f"dial {peer}")

    def hang_up(self, peer: Address) -> None:
        task = self._dialing.pop(peer, None)
        if task is not None:
            task.cancel()

    def right_of(self, party: Address) -> Right | None:
        """What is allowed to this party of ours; None: everything that its kind may do."""
        route = self._routes.get(party)
        return self._tokens.right_of(route.token) if isinstance(route, Connection) and self._tokens.rights else None

    def is_trusted(self, party: Address) -> bool:
        """Whether this party has shown what nodes show, or nobody has to."""
        route = self._routes.get(party)
        return not self._tokens.node or not isinstance(route, Connection) or route.token == self._tokens.node

    def meter(self, peer: Address) -> None:
        """From now on what is sent there is counted, and what that costs."""
        route = self._routes.get(peer)
        if isinstance(route, Connection):
            route.meter = self.meters.setdefault(peer, SendMeter())

    def is_up(self, address: Address) -> bool:
        return address in self._routes

    def round_trip_s(self, address: Address) -> float | None:
        """How long a party that we have dialed took to answer our hello; one in this process takes no time."""
        route = self._routes.get(address)
        if isinstance(route, Connection):
            return route.round_trip_s
        return None if route is None else 0.0

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes from and to each node that was ever connected, and all clients together as `clients`."""
        sums = dict(self._traffic)
        for connection in self._connections:
            _add_traffic(sums, connection)
        return sums

    def parties(self) -> Iterable[Hello]:
        return [connection.peer for connection in self._connections if connection.peer is not None]

    def send(self, to: Address, message: Any) -> None:
        route = self._routes.get(to)
        if route is None:
            route = self._routes.get(owner(to))
            if route is None:
                self.counters.to_nobody += 1
                return
        self.counters.sent += 1
        if isinstance(route, Connection):
            route.post(Letter(to, message))
        else:
            route.post(message)

    def offended(self, by: Address, error: PeerError) -> None:
        """Something of this party was refused. Who goes on is cut off: refusing costs as well."""
        self.refusals.count(error.code, f"{by}: {error}")
        route = self._routes.get(owner(by))
        if isinstance(route, Connection):
            route.offences += 1
            if route.offences >= OFFENCES_MAX:
                route.refuse(error)
            else:
                self.charge(by)

    def charge(self, by: Address, questions: int = 1) -> None:
        """This party has asked for so much of our time; if it has none left, what it says next waits."""
        route = self._routes.get(owner(by))
        if not isinstance(route, Connection) or route.peer is None or route.peer.kind != "client":
            return
        seconds, now = questions / self._config.questions_per_s, asyncio.get_running_loop().time()
        if not route.pace.spend(seconds, now, self._sharing):
            route.stops = True

    @property
    def _sharing(self) -> int:
        return max(1, len(self._paced))

    def flush(self, to: Address) -> None:
        """What was sent there leaves now, not at the end of the loop turn."""
        route = self._routes.get(to)
        if isinstance(route, Connection):
            route.flush()

    async def close(self) -> None:
        self._closing = True
        for task in self._dialing.values():
            task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in [*self._connections, *self._accepted]:
            connection.close()
        if self._dialing:
            await asyncio.wait(list(self._dialing.values()))
        self._dialing.clear()

    # connections

    def _make(self, hello: Hello, dialed: bool = False) -> Connection:
        connection = Connection(
            self._codec,
            hello,
            dialed,
            self._introduced,
            self._receive,
            self._lost,
            self._config.wire,
            self._tokens,
            self._made,
            self.refusals.count,
            self.pause_s,
            self.holding,
        )
        if dialed:
            connection.gone = asyncio.get_running_loop().create_future()
        return connection

    def _dialing_hello(self, peer: Address) -> Hello:
        """Each node gets another secret of a client, so that none can take its place at another."""
        if self._hello.kind == "node":
            return self._hello
        return replace(self._hello, secret=blake2b(peer.encode(), key=self._seed, digest_size=16).digest())

    def _made(self, connection: Connection) -> Rejected | None:
        if connection.dialed:
            return None
        if len(self._accepted) >= self._config.connections_max:
            connection.is_hurried = len(self._turned_away) >= TURNED_AWAY_MAX
            self._turned_away[connection] = None
            return Rejected(f"{self._config.connections_max} connections are the most here", "connections")
        if len(self._unknown) >= self._config.connections_unknown_max:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.refuse(PeerError("too many connections have not introduced themselves", "hello-late"))
        self._accepted[connection] = self._unknown[connection] = None
        return None

    async def _keep_dialing(self, peer: Address, places: tuple[tuple[str, int], ...]) -> None:
        pause = self._config.redial_s_min
        turn = 0
        while not self._closing:
            host, port = places[turn % len(places)]
            turn += 1
            try:
                made = self._make(self._dialing_hello(peer), dialed=True)
                connection = await connected(made, host, port, self._client_tls)
            except OSError as error:  # includes TLS failures
                self.problems[peer] = f"{host_port(host, port)}: {said(error)}"
                logger.debug("%s at %s:%s: %s", peer, host, port, error)
            else:
                assert connection.gone is not None
                try:
                    await connection.gone
                finally:
                    connection.close()
                if connection.peer is not None:
                    turn -= 1  # it was here, so it may be back here
                    pause = self._config.redial_s_min
                why = connection.error or "it closed the connection"
                self.problems[peer] = f"{host_port(host, port)}: {why}"
                if isinstance(connection.error, RejectedError):
                    self.rejections[peer] = connection.error
                else:
                    self.rejections.pop(peer, None)
            await asyncio.sleep(pause * (0.5 + self._dice.random()))
            pause = min(2 * pause, self._config.redial_s_max)

    def _introduced(self, connection: Connection, hello: Hello) -> Rejected | None:
        if not 1 <= len(hello.addresses) <= self._config.hello_addresses_max:
            most = self._config.hello_addresses_max
            return Rejected(f"a connection has 1 to {most} addresses, not {len(hello.addresses)}", "address")
        rejected = self._admit(hello)
        if rejected is not None:
            return rejected
        holders = [(address, self._routes.get(address)) for address in hello.addresses]
        for address, held in holders:
            if isinstance(held, Connection):
                if not _may_take_over(hello, held.peer):
                    return Rejected(f"somebody is connected as {address!r}", "address-taken")
            elif held is not None:
                return Rejected(f"{address} is not yours", "address")
        for address, held in holders:
            if isinstance(held, Connection):
                error = TransportError(f"{address} has connected again")
                held.close(error)
                self._forget(held, error)  # now, so that the end of the old connection precedes the new one
        self._unknown.pop(connection, None)
        self._connections[connection] = None
        for address in hello.addresses:
            self._routes[address] = connection
        # Now, and not in the next turn: what the party says may already be here, in the same bytes as its hello or read
        # before the loop takes its turn (uvloop does). What is posted meanwhile leaves after our own hello.
        self._up(hello)
        return None

    def _receive(self, connection: Connection, letters: list[Letter[Any]]) -> None:
        assert connection.peer is not None
        if connection not in self._connections or connection.error is not None:
            return  # its party has connected again, or was refused, and this is its past
        self.counters.received += len(letters)
        self._spoke.pop(connection, None)
        self._spoke[connection] = asyncio.get_running_loop().time()
        if len(self._spoke) > 2:
            del self._spoke[next(iter(self._spoke))]
        connection.heard += len(letters)
        if connection.waits:
            connection.unheard.extend(letters)
        elif connection.heard > TURN_LETTERS_MAX and connection.peer.kind == "client":
            connection.unheard.extend(letters)
            self._hand_over_some(connection)
        else:
            self._hand_over(connection, letters)

    def _hand_over(self, connection: Connection, letters: list[Letter[Any]]) -> None:
        """To the sinks they are for; what is left when the connection has to stop waits before all others."""
        assert connection.peer is not None
        addresses = connection.peer.addresses
        routes = self._routes
        filled: LetterReceiver | None = None
        for place, letter in enumerate(letters):
            if connection.stops:
                connection.unheard.extendleft(reversed(letters[place:]))
                break
            claimed = self._sender(letter.message)
            if claimed is not None and claimed not in addresses and owner(claimed) not in addresses:
                self.counters.forged += 1
                connection.refuse(PeerError(f"{', '.join(addresses)} speaks in the name of {claimed}", "forged"))
                return
            sink = routes.get(letter.to)
            if sink is None or isinstance(sink, Connection):
                self.counters.to_nobody += 1
                continue
            sink.post(letter.message)
            filled = sink
        if connection.error is not None:
            return
        if filled is not None and filled.is_full:
            self._hold(connection)
            filled.when_roomy(partial(self._go_on, connection))
        elif connection.stops:
            loop = asyncio.get_running_loop()
            self._hold(connection)
            self._paced[connection] = None
            loop.call_later(connection.pace.wait_s(loop.time(), self._sharing), self._go_on, connection)
        elif connection.unheard:
            self._hold(connection)
            asyncio.get_running_loop().call_later(self.pause_s(connection), self._go_on, connection)

    def _hand_over_some(self, connection: Connection) -> None:
        unheard = connection.unheard
        self._hand_over(connection, [unheard.popleft() for _ in range(min(len(unheard), TURN_LETTERS_MAX))])

    def pause_s(self, connection: Connection) -> float:
        """Before this one goes on saying what it has already begun to: none if nobody else speaks."""
        others = [at for who, at in self._spoke.items() if who is not connection]
        return BACKLOG_S if others and max(others) > asyncio.get_running_loop().time() - ALONE_S else 0.0

    def _hold(self, connection: Connection) -> None:
        connection.waits = True
        connection.pause_reading()

    def _go_on(self, connection: Connection) -> None:
        if self.backlog() > BACKLOG_MAX and connection in self._connections and connection.error is None:
            asyncio.get_running_loop().call_later(BACKLOG_S, self._go_on, connection)
            return
        self._paced.pop(connection, None)
        connection.waits = connection.stops = False
        if connection not in self._connections or connection.error is not None:
            connection.unheard.clear()
            return
        self._hand_over_some(connection)
        if not connection.waits:
            connection.resume_reading()

    def _lost(self, connection: Connection, error: UnisonoError | None) -> None:
        self.counters.closed += 1
        self._accepted.pop(connection, None)
        self._unknown.pop(connection, None)
        self._turned_away.pop(connection, None)
        if connection.gone is not None and not connection.gone.done():
            connection.gone.set_result(None)
        self._forget(connection, error)

    def _forget(self, connection: Connection, error: UnisonoError | None) -> None:
        if self._connections.pop(connection, self) is self:
            return  # never introduced, or forgotten already
        assert connection.peer is not None
        _add_traffic(self._traffic, connection)
        for address in connection.peer.addresses:
            if self._routes.get(address) is connection:
                del self._routes[address]
        if not self._closing:
            self._down(connection.peer, error)


def _add_traffic(sums: dict[str, tuple[int, int]], connection: Connection) -> None:
    peer = connection.peer
    if peer is not None:
        name = peer.addresses[0] if peer.kind == "node" else "clients"
        come, gone = sums.get(name, (0, 0))
        sums[name] = come + connection.bytes_in, gone + connection.bytes_out


def _may_take_over(newcomer: Hello, holder: Hello | None) -> bool:
    if holder is None or newcomer.kind != holder.kind:
        return False
    return newcomer.kind == "node" or (bool(holder.secret) and hmac.compare_digest(newcomer.secret, holder.secret))
