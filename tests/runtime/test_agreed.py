"""All parties of a deployment go by the same settings where these decide what is heard, and in which order."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_cluster import free_ports, running
from tests.runtime.test_session import take
from unisono.errors import PeerError
from unisono.model.agreed import agreed, disagreement
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.grid import Axis
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec, Sequencing, TopicSpec
from unisono.runtime.node.node import Node


def one_node(**changes: object) -> Deployment:
    spec = NodeSpec("n", listen=f"127.0.0.1:{free_ports(1)[0]}", roles=("sequencer", "broker"))
    topic = TopicSpec("trades", grid=(Axis("px", cuts=(50, 100)),))
    deployment = Deployment(1, "agreed", nodes=(spec,), topics=(topic,), broker=BrokerSpec("embedded"))
    return structs.replace(deployment, **changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"topics": (TopicSpec("trades", grid=(Axis("px", cuts=(60, 100)),)),)},
            "the grids of topics are others in the file of n",
        ),
        ({"sequencing": Sequencing(order="causal")}, 'sequencing.order is "causal" here and "pairwise" at n'),
        ({"sequencing": Sequencing(early=False)}, "sequencing.early is false here and true at n"),
    ],
    ids=["grid", "order", "early"],
)
def test_who_has_another_file_is_told_what_differs_and_loses_nothing_in_silence(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    """With another grid an event would go to a cell of the same name that its subscribers do not listen to."""

    async def run() -> None:
        deployment = one_node()
        async with asyncio.timeout(60), running(deployment, tmp_path):
            async with (
                unisono.connect(deployment) as session,
                session.subscribe("trades", where="px < 60") as stream,
            ):
                await session.publish("trades", {"px": 55})
                (event,) = await take(stream, 1)
                assert event.data == {"px": 55}
            async with unisono.connect(structs.replace(deployment, **changes), timeout=3600) as other:
                with pytest.raises(PeerError, match=told) as refused:
                    await other.publish("trades", {"px": 55})
                assert refused.value.code == "deployment"
                with pytest.raises(PeerError, match=told):
                    async with other.subscribe("trades"):
                        pass

    asyncio.run(run())


def test_a_number_is_the_same_in_a_program_and_in_a_file() -> None:
    """Only what differs may keep anybody out."""
    grid = (Axis("px", cuts=(50, 100)), Axis("n", values=(1, 2.5)))
    made = one_node(topics=(TopicSpec("trades", grid=grid),), sequencing=Sequencing(by="clock", tolerance_ms=100))
    read = parse_deployment(dump_deployment(made))
    assert agreed(read) == agreed(made)
    assert agreed(made)["sequencing.tolerance_ms"] == "100"
    other = structs.replace(made, sequencing=Sequencing(by="clock", tolerance_ms=100.5))
    assert disagreement(agreed(other), agreed(read), "n") == (
        "sequencing.tolerance_ms is 100.5 here and 100 at n: take the same file"
    )
    finer = structs.replace(made, topics=(TopicSpec("trades", grid=(Axis("px", cuts=(50.5, 100)), grid[1])),))
    assert "grids" in (disagreement(agreed(finer), agreed(read), "n") or "")


def test_who_may_not_come_in_is_told_at_once_and_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = one_node()
        stranger = unisono.connect(structs.replace(deployment, name="another"), timeout=3600)
        async with asyncio.timeout(20), running(deployment, tmp_path), stranger as other:
            with pytest.raises(PeerError, match="this is deployment 'agreed', not 'another'"):
                await other.publish("trades", 1)

    asyncio.run(run())


def test_nodes_with_different_files_do_not_order_together(tmp_path: Path) -> None:
    """The one whose file was changed cannot reach the tree, and is told why."""
    hub, east = (f"127.0.0.1:{port}" for port in free_ports(2))
    nodes = (
        NodeSpec("hub", listen=hub, roles=("sequencer", "broker")),
        NodeSpec("east", listen=east, parent="hub"),
    )
    deployment = one_node(nodes=nodes)
    changed = structs.replace(deployment, sequencing=Sequencing(order="global"))

    async def run() -> None:
        async with asyncio.timeout(60), Node(deployment, "hub", tmp_path), Node(changed, "east", tmp_path) as other:
            while Address("hub") not in other.links.rejections:
                await asyncio.sleep(0.01)
            assert 'sequencing.order is "global" here and "pairwise" at hub' in str(
                other.links.rejections[Address("hub")]
            )

    asyncio.run(run())
