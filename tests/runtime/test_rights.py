"""What a token may publish on and subscribe to is held by nodes, by the embedded broker, by NATS and by overlays."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

import unisono
from tests.runtime.test_cluster import Silent, running, star, url
from unisono.cli.main import application
from unisono.errors import MisuseError, TransportError, UnisonoError
from unisono.model.deployment import (
    Deployment,
    dump_deployment,
    for_clients,
    load_deployment,
    parse_deployment,
)
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec, Right, Security
from unisono.protocols.sequencer.messages import Collect, Creates, Wanted
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.deployed import embedded_endpoint, nats_user
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.links import control
from unisono.runtime.links.security import tokens_of
from unisono.runtime.tools.nats_server import find_binary
from unisono.runtime.tools.ports import free_ports

ORDERS = Right("orders", "ORDERS_TOKEN", publish=("orders.>",), subscribe=("orders.>", "trades"))
SECURITY = Security(token_variable="ALL_TOKEN", node_token_variable="NODE_TOKEN")


@pytest.fixture(autouse=True)
def _tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for who in ("ORDERS", "ALL", "NODE"):
        monkeypatch.setenv(f"{who}_TOKEN", f"token-of-{who.lower()}")


def limited() -> Deployment:
    return structs.replace(star(data=False, security=SECURITY), rights=(ORDERS,))


def test_a_token_does_what_its_right_says_and_is_told_what_it_may_not(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = limited()
        where = url(deployment, "hub")
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path),
            unisono.connect(where, token="token-of-all") as everything,
            unisono.connect(where, token="token-of-orders") as orders,
        ):
            for topic in ("trades", "quotes", "orders.eu"):
                assert isinstance(await everything.publish(topic, 1), unisono.Accepted)
            assert isinstance(await orders.publish("orders.eu", 1), unisono.Accepted)
            with pytest.raises(MisuseError, match=r"may not publish on 'trades', only on: orders.>"):
                await orders.publish("trades", 1)
            with pytest.raises(MisuseError, match="may not see quotes"):
                await orders.publish("quotes", 1)
            with pytest.raises(MisuseError, match="may not see quotes"):
                async with orders.subscribe("trades", "quotes"):
                    pass
            async with orders.subscribe(">") as stream:
                assert sorted(stream.topics) == ["orders.eu", "trades"]
                await everything.publish("quotes", 2)
                await everything.publish("secret", 2)
                await everything.publish("orders.eu", 2)
                await everything.publish("trades", 3)
                assert {(await anext(stream)).topic for _ in range(2)} == {"orders.eu", "trades"}
            assert "quotes" not in (await orders.status("west")).topics
            assert "quotes" in (await everything.status("west")).topics
            with pytest.raises(UnisonoError, match="token"):
                async with unisono.connect(where, token="guess", timeout=1.0):
                    pass

    asyncio.run(run())


def test_a_right_to_publish_is_no_right_to_subscribe(tmp_path: Path) -> None:
    async def run() -> None:
        writer = Right("writer", "ORDERS_TOKEN", publish=("trades",))
        deployment = structs.replace(star(data=False, security=SECURITY), rights=(writer,))
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east"), token="token-of-orders") as session,
        ):
            assert isinstance(await session.publish("trades", 1), unisono.Accepted)
            with pytest.raises(MisuseError, match="may not subscribe to 'trades', only to: nothing"):
                async with session.subscribe("trades"):
                    pass
            number = (await session.open_topics(["trades"]))["trades"]  # type: ignore[attr-defined]
            session.links.send(Address("east"), Collect(Address(f"{session.address}/9"), 1, (number,), (number,), ()))
            while not nodes["east"].refusals.counts["right"]:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_who_does_not_look_at_its_rights_is_refused_by_the_node(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = limited()
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east"), token="token-of-orders") as session,
        ):
            told: list[control.OverLimit] = []
            session._refused = told.append  # type: ignore[method-assign]
            east = nodes["east"]
            assert east.topic_names is not None
            await session.open_topics(["trades"])  # type: ignore[attr-defined]
            number = east.topic_names.mine["trades"]
            session.links.send(Address("east"), Creates(session.address, (Wanted(number, 1, 1, 1),)))
            while not told:
                await asyncio.sleep(0.01)
            assert (told[0].code, told[0].about) == ("right", session.address)
            assert east.sequencer is not None
            assert east.sequencer.ordering.machine.clock[number] == 0, "nothing has a number"

    asyncio.run(run())


def test_the_embedded_broker_holds_rights_by_itself(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = limited()
        async with asyncio.timeout(60), running(deployment, tmp_path) as nodes:
            hub = nodes["hub"]

            async def client() -> EmbeddedEns:
                ens = EmbeddedEns(*embedded_endpoint(deployment), Silent(), token="token-of-orders")
                await ens.open()
                return ens

            ens = await client()
            await ens.subscribe("trades")
            await ens.subscribe("orders.eu", control=True)
            ens.publish([Item("orders.eu", b"1", "p", 1)])
            await ens.flush()
            await ens.close()
            assert hub.refusals.counts["right"] == 0
            for subscribes in (True, False):
                ens, before = await client(), hub.refusals.counts["right"]
                if subscribes:
                    asking = asyncio.ensure_future(ens.subscribe("quotes"))
                else:
                    ens.publish([Item("trades", b"1", "p", 1)])
                while hub.refusals.counts["right"] == before:
                    await asyncio.sleep(0.01)
                await ens.close()
                if subscribes:
                    with pytest.raises(TransportError):
                        await asking

    asyncio.run(run())


def test_an_overlay_takes_and_hands_out_what_rights_allow(tmp_path: Path) -> None:
    async def run() -> None:
        node = NodeSpec("b", listen=f"127.0.0.1:{free_ports(1)[0]}", roles=("overlay",))
        deployment = Deployment(1, "o", nodes=(node,), kind="overlay", security=SECURITY, rights=(ORDERS,))
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "b"), token="token-of-all") as everything,
            unisono.connect(url(deployment, "b"), token="token-of-orders") as orders,
        ):
            with pytest.raises(MisuseError, match="may not subscribe to 'quotes'"):
                async with orders.subscribe("quotes"):
                    pass
            right, orders._right = orders._right, None
            async with orders.subscribe("quotes", "trades", where="px > 0") as stream:
                assert isinstance(await everything.publish("quotes", {"px": 1}), unisono.Accepted)
                assert isinstance(await everything.publish("trades", {"px": 2}), unisono.Accepted)
                assert (await anext(stream)).topic == "trades", "quotes are not handed out"
            orders._right = right
            outcome = await orders.publish("orders.eu", {"px": 1})
            assert isinstance(outcome, unisono.Accepted)
            with pytest.raises(MisuseError, match="may not publish on 'quotes'"):
                await orders.publish("quotes", {"px": 1})
            orders._right = None
            (await orders._publishing())._topic_windows.clear()
            refused = await orders.publish("quotes", {"px": 1})
            assert isinstance(refused, unisono.Refused)
            assert "may not publish on quotes" in refused.reason

    asyncio.run(run())


def test_nats_permissions_made_from_rights_let_through_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    port, node_port = free_ports(2)
    deployment = Deployment(
        1,
        "limited",
        nodes=(NodeSpec("n", listen=f"127.0.0.1:{node_port}"),),
        broker=BrokerSpec("nats", (f"nats://127.0.0.1:{port}",)),
        security=SECURITY,
        rights=(ORDERS,),
    )
    file.write_text(dump_deployment(deployment))
    assert load_deployment(file) == deployment
    section = CliRunner().invoke(application("rights"), ["rights", str(file), "--nats"], prog_name="unisono").stdout
    assert "token-of" not in section, "no secret is printed"
    config = tmp_path / "nats.conf"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\n{section}')
    found: list[str] = []

    class Told(Silent):
        def on_notice(self, notice: object) -> None:
            found.append(str(notice))

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(find_binary(), "-c", str(config), "-l", str(tmp_path / "log"))
        try:
            async with (
                asyncio.timeout(60),
                running(deployment, tmp_path),
                unisono.connect(url(deployment, "n"), token="token-of-all") as everything,
                unisono.connect(url(deployment, "n"), token="token-of-orders") as orders,
                orders.subscribe("orders.eu", "trades") as stream,
            ):
                assert isinstance(await orders.publish("orders.eu", 1), unisono.Accepted)
                assert isinstance(await everything.publish("trades", 2), unisono.Accepted)
                assert {(await anext(stream)).data for _ in range(2)} == {1, 2}
                login = NatsOptions((f"nats://127.0.0.1:{port}",), nats_user("token-of-orders"), "token-of-orders")
                raw = NatsEns(structs.replace(login, deployment="limited"), Told())
                await raw.open()
                raw.publish([Item("trades", b"x"), Item("orders.eu", b"x", control=True)])
                await raw.flush()
                assert len([each for each in found if "Permissions Violation" in each]) == 2, found
                for topic, is_control in (("quotes", False), ("quotes", True)):
                    with pytest.raises(TransportError, match="Permissions Violation"):
                        await raw.subscribe(topic, control=is_control)
                await raw.close()
                with pytest.raises(TransportError, match="Authorization"):
                    await NatsEns(structs.replace(login, password="guess"), Silent()).open()
        finally:
            process.terminate()
            await process.wait()

    asyncio.run(run())


def test_secrets_may_stand_in_files(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("of clients\n")
    (tmp_path / "nodes").write_text("of nodes\n")
    (tmp_path / "orders").write_text("of orders\n")
    security = Security(token_file="clients", node_token_file="nodes")
    right = Right("orders", token_file="orders", publish=("a",))
    tokens = tokens_of(security, tmp_path, (right,))
    assert (tokens.node, tokens.client, tokens.rights) == ("of nodes", "of clients", (("of orders", right),))
    with pytest.raises(MisuseError, match="the file missing"):
        tokens_of(Security(token_file="missing"), tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(MisuseError, match="which is empty"):
        tokens_of(Security(token_file="empty"), tmp_path)
    (tmp_path / "orders").write_text("of clients")
    with pytest.raises(MisuseError, match="have one token"):
        tokens_of(security, tmp_path, (right,))
    with pytest.raises(MisuseError, match="nodes need a token of their own"):
        tokens_of(Security(), tmp_path, (right,))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[security]\ntoken_file = "a"\ntoken_variable = "B"', "keep one of them"),
        ('[[rights]]\nname = "a"\npublish = ["x"]', "name its secret"),
        ('[[rights]]\nname = "a"\ntoken_file = "f"\npublish = ["x..y"]', "rights.a"),
        ('[[rights]]\nname = "a"\ntoken_file = "f"\n[[rights]]\nname = "a"\ntoken_file = "g"', "named twice"),
        ('broker.kind = "udp"\n[[rights]]\nname = "a"\ntoken_file = "f"', "all have the same rights"),
    ],
)
def test_rights_that_cannot_be_held_are_refused_with_what_to_do(text: str, problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        parse_deployment(f'version = 1\n{text}\n[[nodes]]\nname = "n"\n')


def test_clients_are_told_that_there_are_rights_and_not_whose() -> None:
    told = for_clients(limited())
    assert len(told.rights) == 1
    assert "orders" not in str(told.rights)


def test_a_right_covers_the_cells_of_a_topic() -> None:
    right = Right("r", "T", publish=("trades",), subscribe=("a.*",))
    assert right.may_publish("trades.cell-1-3")
    assert not right.may_publish("trades.other")
    assert right.may_subscribe("a.b")
    assert not right.may_subscribe("a")
