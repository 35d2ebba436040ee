"""How much a subscription may hold back for its order."""

import pytest
from msgspec import structs

from tests.runtime.test_cluster import star
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.promise import Promise
from unisono.model.settings import Sequencing
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.sequencer.client import OrderingClient
from unisono.runtime.client.ordering import client_ordering


def room(deployment: Deployment, buffer: int) -> int:
    promise = Promise(buffer_events_max=buffer)
    machine = client_ordering(deployment, Address("me")).subscriber(Address("me/1"), promise, "wait", False)
    if isinstance(machine, OrderingClient):
        return machine.subscriber.config.buffer_max
    assert isinstance(machine, ClockClient)
    return machine.subscriber._config.held_max


@pytest.mark.parametrize("by", ["tree", "clock"])
def test_whoever_has_room_for_more_that_nobody_has_read_has_it_for_what_is_held_back(by: str) -> None:
    deployment = structs.replace(star(), sequencing=Sequencing(by=by))  # type: ignore[arg-type]
    assert [room(deployment, buffer) for buffer in (1_000, 100_000, 1_000_000)] == [100_000, 100_000, 1_000_000]
