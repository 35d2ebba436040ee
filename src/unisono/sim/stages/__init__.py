"""Stages: how the protocol of a scenario is set up in a world. One module per protocol, named like it.

A stage module has one function,

    def build(world: World, scenario: Scenario) -> Operations:

It adds one host per node of `scenario.deployment` and one per entry of `scenario.clients`:

    world.add(client.name, lambda name: FifoMachine(Address(name), config), region=client.region)
    world.add(node.name, lambda name: Sessions(TopicManager(...), ...), region=node.region,
              snapshot_every=scenario.snapshot_every, service=scenario.service)

`name` is what the host goes by in this life: its address, or `address#3` after it lost its memory. A client's machine
takes `Publish`, `Subscribe`, `Unsubscribe` (messages are `Event`s, topics numbers of `world.topic(name)`) and delivers
notices; subscribing, publishing and journalling are done by the world. Options come from `scenario.config(ItsConfig)`.
What is returned are operations of the protocol beside subscribe, unsubscribe, publish, crash and restart, for scripts
(`do = "move"`): a function of the `Operation` per word, mostly none.

To add a protocol: write the module and name it in `NAMES`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from msgspec import field

from unisono.model.event import Scalar
from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.scenario import Scenario
    from unisono.sim.world import World

NAMES = ("fifo", "sequencer", "clock", "coded", "overlay", "regions", "causal", "groups")
"""Protocols that have a stage. Modules are imported when a scenario asks for them."""


class Client(NamedTuple):
    """A host of the workload."""

    name: str
    region: str


class Operation(Spec, frozen=True):
    """One line of a script."""

    at: Span
    do: str
    who: str = ""
    topics: tuple[str, ...] = ()
    to: str = ""
    payload: str = ""
    attributes: dict[str, Scalar] = field(default_factory=dict)


Operations = Mapping[str, Callable[[Operation], None]]


def build(protocol: str, world: "World", scenario: "Scenario") -> Operations:
    operations: Operations = import_module(f"unisono.sim.stages.{protocol}").build(world, scenario)
    return operations
