"""Links: sessions survive lost connections and restarts exactly once; nobody speaks in another's name."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.toy import Add, Adder, Inputs, Seen, Toys, until
from unisono.errors import PeerError, UnisonoError
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.log import FileLog, LogConfig
from unisono.runtime.links.frames import Codec, FrameReader, Hello, Letter, decode_hello, encode_frame
from unisono.runtime.links.links import Links, LinksConfig
from unisono.runtime.links.security import Tokens
from unisono.structures.sessions import Frame, Handled, Reconnected, Sessions, SessionsConfig
from unisono.turns import TurnBounds

CHILD, PARENT = Address("child"), Address("parent")
CODEC = Codec(Frame[Toys] | Handled | Add)
QUICK = SessionsConfig(resend_after_us=Micros(50_000))


def sender(message: Any) -> Address | None:
    return message.source if isinstance(message, Frame | Handled) else None


class Party:
    """A process of the test: links and one toy on a session."""

    def __init__(self, me: Address, peer: Address, directory: Path, passes_on: bool) -> None:
        self.me, self.peer = me, peer
        self.errors: list[UnisonoError | None] = []
        self.links = Links(
            Hello("node", (me,)),
            CODEC,
            lambda hello: None,
            sender,
            self._up,
            lambda _hello, error: self.errors.append(error),
            LinksConfig(redial_s_min=0.01, redial_s_max=0.05),
            tokens=Tokens("secret", "secret", ""),
        )
        self.adder = Adder(peer if passes_on else None)
        machine = Sessions(self.adder, me, (peer,), Toys, Toys, QUICK)
        self.seen = Seen(self.links.send)
        log = FileLog(directory, "toy 1", Inputs, LogConfig(sync=False))
        self.host = Host(me, machine, self.seen, log)
        self.links.attach(me, self.host)

    def _up(self, hello: Hello) -> None:
        self.host.post(Reconnected(self.peer))

    async def stop(self) -> None:
        await self.links.close()
        await self.host.stop(snapshot=False)


async def listen(links: Links, port: int = 0) -> int:
    taken = await links.bind("127.0.0.1", port)
    await links.serve()
    return taken


async def listening(party: Party, port: int = 0) -> int:
    await party.host.start()
    return await listen(party.links, port)


def test_messages_arrive_once_and_in_order_across_cut_connections(tmp_path: Path) -> None:
    async def run() -> None:
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        child = Party(CHILD, PARENT, tmp_path / "child", passes_on=True)
        port = await listening(parent)
        await child.host.start()
        child.links.dial(PARENT, "127.0.0.1", port)
        sums = []
        for amount in range(300):
            child.host.post(Add(amount))
            sums.append(sum(range(amount + 1)))
            if amount % 50 == 20:
                await until(lambda: parent.links.is_up(CHILD))
                for connection in list(parent.links._connections):
                    connection.close(PeerError("cut by the test"))
            await asyncio.sleep(0)
        await until(lambda: parent.seen.delivered[-1] == sums[-1])
        assert [item for item in parent.seen.delivered if item != "restarted"] == sums
        assert len(child.errors) >= 5
        await child.stop()
        await parent.stop()

    asyncio.run(run())


def test_messages_arrive_once_and_in_order_across_restarts(tmp_path: Path) -> None:
    async def run() -> None:
        child = Party(CHILD, PARENT, tmp_path / "child", passes_on=True)
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        port = await listening(parent)
        await child.host.start()
        child.links.dial(PARENT, "127.0.0.1", port)
        delivered: list[Any] = []
        for round_ in range(6):
            for _ in range(40):
                child.host.post(Add(1))
            await until(lambda parent=parent, round_=round_: parent.adder.total > round_ * 40)  # type: ignore[misc]
            party = (parent, child)[round_ % 2]
            await party.stop()
            if party is parent:
                delivered += parent.seen.delivered
                parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
                await listening(parent, port)
            else:
                child = Party(CHILD, PARENT, tmp_path / "child", passes_on=True)
                await child.host.start()
                child.links.dial(PARENT, "127.0.0.1", port)
        await until(lambda: parent.seen.delivered[-1] == 240)
        delivered += parent.seen.delivered
        assert [item for item in delivered if item != "restarted"] == list(range(1, 241))
        await child.stop()
        await parent.stop()

    asyncio.run(run())


def test_a_party_with_a_wrong_token_stays_outside(tmp_path: Path) -> None:
    async def run() -> None:
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        port = await listening(parent)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame(Hello("node", (CHILD,))))
        assert b"wrong token" in await asyncio.wait_for(reader.read(), 10)
        assert not parent.links.is_up(CHILD)
        writer.close()
        await parent.stop()

    asyncio.run(run())


def test_a_party_is_announced_before_anything_it_says_and_hears_our_hello_first() -> None:
    async def run() -> None:
        happened: list[str] = []

        class Listener:
            is_full = False

            def post(self, message: Any) -> None:
                happened.append(f"heard {message.amount}")

            def when_roomy(self, callback: Callable[[], None]) -> None:
                callback()

        def up(hello: Hello) -> None:
            happened.append(f"up {hello.addresses[0]}")
            links.send(CHILD, Add(2))

        links = Links(Hello("node", (PARENT,)), CODEC, lambda _: None, sender, up, lambda _hello, _error: None)
        links.attach(PARENT, Listener())
        port = await listen(links)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame(Hello("node", (CHILD,))) + encode_frame([Letter(PARENT, Add(1))]))
        frames = FrameReader(1 << 20)
        bodies: list[memoryview] = []
        while len(bodies) < 2:
            bodies += frames.feed(await asyncio.wait_for(reader.read(1 << 16), 60))
        assert isinstance(decode_hello(bodies[0]), Hello)
        assert CODEC.decode(bodies[1]) == [Letter(CHILD, Add(2))]
        assert happened == ["up child", "heard 1"]
        writer.close()
        await links.close()

    asyncio.run(run())


@pytest.mark.parametrize("forged", [Frame(CHILD, 1, Add(7)), Handled(CHILD, 0, resend=True)])
def test_a_party_that_speaks_in_anothers_name_is_cut_off_and_not_heard(tmp_path: Path, forged: Any) -> None:
    async def run() -> None:
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        port = await listening(parent)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame(Hello("client", (Address("mallory"),))))
        writer.write(encode_frame([Letter(PARENT, forged)]))
        await until(lambda: parent.links.counters.closed == 1)
        assert parent.links.counters.forged == 1
        assert parent.adder.total == 0
        writer.close()
        await parent.stop()

    asyncio.run(run())


def test_a_local_address_cannot_be_taken_over_by_a_party(tmp_path: Path) -> None:
    async def run() -> None:
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        port = await listening(parent)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame(Hello("client", (PARENT,))))
        assert b"not yours" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await parent.stop()

    asyncio.run(run())


def test_of_two_connections_of_a_party_the_one_whose_hello_is_read_last_stays_and_the_other_is_closed() -> None:
    """An older connection may be read of after a newer one: who dialled that one reads of its end, and dials again."""

    async def run() -> None:
        ends: list[str] = []
        links = Links(
            Hello("node", (PARENT,)),
            CODEC,
            lambda _: None,
            sender,
            lambda hello: ends.append(f"up {hello.addresses[0]}"),
            lambda hello, _error: ends.append(f"down {hello.addresses[0]}"),
        )
        port = await listen(links)
        hello = encode_frame(Hello("client", (Address("c"),), secret=b"its own"))
        _, older = await asyncio.open_connection("127.0.0.1", port)
        reader, newer = await asyncio.open_connection("127.0.0.1", port)
        newer.write(hello)
        await until(lambda: ends == ["up c"])
        older.write(hello)
        await asyncio.wait_for(reader.read(), 30)  # to its end
        assert ends == ["up c", "down c", "up c"]
        assert links.is_up(Address("c"))
        older.close()
        newer.close()
        await until(lambda: not links.is_up(Address("c")))
        await links.close()

    asyncio.run(run())


def test_a_full_host_stops_the_reading_and_loses_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        parent = Party(PARENT, CHILD, tmp_path / "parent", passes_on=False)
        parent.host.turns.bounds = TurnBounds(queue_max=50, inputs_max=5)
        port = await listening(parent)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame(Hello("client", (Address("c1"),))))
        longest = 0
        for _ in range(200):
            writer.write(encode_frame([Letter(PARENT, Add(1))] * 10))
            longest = max(longest, len(parent.host.turns.waiting))
            await asyncio.sleep(0)
        await until(lambda: parent.adder.total == 2000)
        # What one read of the socket brings may come on top of the bound.
        assert longest < 2000
        writer.close()
        await parent.stop()

    asyncio.run(run())
