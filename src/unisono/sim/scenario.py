"""Scenarios: deployment + workload + script + faults + promises, in one TOML text; the only door into the simulator.

    about = "two topics, events overtake each other"
    protocol = "fifo"                       # the stage that builds it: unisono/sim/stages/<protocol>.py
    promises = ["fifo", "exactly-once"]     # judges (unisono.audit) the run must satisfy; an order adds its own
    deployment = "five-sites.toml"          # a file beside this one, or a [deployment] table
    [workload]                              # random subscriptions and publications
    [[script]]                              # exact operations at exact times
    [[faults]]
    [links] · [[rules]] · [ens] · [service] · [driver]
    [options]                               # for the protocol; its stage knows them

`play(load("fifo/reorder"), seed=7)` gives a journal, the same one for ever.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import Deployment, check_deployment, load_deployment
from unisono.model.explained import meant
from unisono.model.journal import Header, Journal
from unisono.sim import stages
from unisono.sim.disk import DriverSpec
from unisono.sim.ens import EnsSpec
from unisono.sim.faults import Fault, schedule_faults
from unisono.sim.links import LinkRule, LinkSpec
from unisono.sim.service import ServiceSpec
from unisono.sim.spec import Span, Spec, plain, read
from unisono.sim.stages import Client, Operation, Operations
from unisono.sim.workloads import Workload, WorkloadSpec
from unisono.sim.world import World

BUILT_IN = Path(__file__).parent / "scenarios"
BY_ORDER: dict[str, tuple[str, ...]] = {"pairwise": (), "global": ("acyclic",), "causal": ("acyclic", "causal")}
"""What `sequencing.order` of the deployment promises more under the sequencer (decision 4)."""
OF_A_DEPLOYMENT = ("pairwise-order", "exactly-once", "complete")
"""What is promised when a deployment is played without a scenario around it."""


class Scenario(Spec, frozen=True):
    """Everything about a run but its seed."""

    protocol: str
    name: str = ""
    about: str = ""
    promises: tuple[str, ...] = ()
    deployment: Deployment = Deployment(version=1)
    workload: WorkloadSpec = WorkloadSpec()
    script: tuple[Operation, ...] = ()
    faults: tuple[Fault, ...] = ()
    links: LinkSpec = LinkSpec()
    rules: tuple[LinkRule, ...] = ()
    """Links that differ from `links`; the last one that names both ends counts."""
    ens: EnsSpec = EnsSpec()
    service: ServiceSpec | None = None
    """Of every host; stages may choose otherwise."""
    driver: DriverSpec = DriverSpec()
    """How hosts take turns, and how long commits take."""
    options: dict[str, Any] = field(default_factory=dict)
    """The protocol's own; read by its stage with `scenario.config(ItsConfig)`."""
    snapshot_every: int = 64
    """Durable hosts replace their log by a snapshot when it has this many inputs; 0: never."""
    settle: Span = Span(60_000_000)
    """How long after the last operation everything must have come to rest; costs nothing when it has."""
    deadline: Span | None = None
    """With the promise "deadline": what nobody may wait longer for, from the moment a subscriber knows of an event."""
    trace: bool = False
    """Journal every message, too."""

    @property
    def promised(self) -> tuple[str, ...]:
        """`promises`, and with the sequencer what the deployment's order adds to them."""
        more = BY_ORDER[self.deployment.sequencing.order] if self.protocol == "sequencer" and self.promises else ()
        return tuple(dict.fromkeys([*self.promises, *more]))

    @property
    def topics(self) -> list[str]:
        """Names of all topics: the deployment's, then t0, t1, … up to the workload's number."""
        names = [topic.name for topic in self.deployment.topics]
        count = self.workload.topics or len(names) or 4
        return (names + [f"t{i}" for i in range(max(0, count - len(names)))])[:count]

    @property
    def clients(self) -> list[Client]:
        """Subscribers c0, c1, … and, if the workload has them, publishers p0, p1, …, spread over the regions."""
        regions = [region.name for region in self.deployment.regions] or ["local"]
        names = [f"c{i}" for i in range(self.workload.clients)]
        names += [f"p{i}" for i in range(self.workload.publishers)]
        names += sorted({operation.who for operation in self.script if operation.do in CLIENT_OPERATIONS} - {*names})
        return [Client(name, regions[i % len(regions)]) for i, name in enumerate(names)]

    def config(self, into: type[Any]) -> Any:
        """The options as the protocol's config Struct."""
        return read(self.options, into, f"{self.name}: options")


CLIENT_OPERATIONS = ("subscribe", "unsubscribe", "publish")


def names() -> list[str]:
    """The built-in scenarios."""
    return sorted(path.relative_to(BUILT_IN).with_suffix("").as_posix() for path in BUILT_IN.rglob("*.toml"))


def load(name: str | Path) -> Scenario:
    """A built-in scenario by name ("fifo/reorder"), or a TOML file by path."""
    path = BUILT_IN / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
        if path.suffix != ".toml":
            near = meant(str(name), names())
            raise MisuseError(
                f"no scenario {str(name)!r}{near or ':'} built in are {', '.join(names())}; a file ends in .toml"
            )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(str(path), getattr(error, "strerror", None) or "not a text") from None
    built_in = path.is_relative_to(BUILT_IN)
    return parse(text, str(name), path.parent, str(name) if built_in else str(path))


def parse(text: str, name: str, folder: Path, where: str = "scenario") -> Scenario:
    """A scenario from TOML text; deployment files are looked for in `folder`.

    The text of a deployment is a scenario too: its nodes order the default workload over its distances.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(where, str(error)) from None
    if "protocol" not in raw and "nodes" in raw:
        raw = {"protocol": "sequencer", "promises": list(OF_A_DEPLOYMENT), "deployment": raw}
    deployment = raw.get("deployment")
    try:
        if isinstance(deployment, str):
            raw["deployment"] = plain(load_deployment(folder / deployment))
        elif deployment is not None:
            check_deployment(deployment)
    except FormatError as error:
        raise FormatError(f"{where}: {error.where}", error.problem) from None
    scenario = read({"name": name, **raw}, Scenario, where)
    if scenario.protocol not in stages.NAMES:
        raise FormatError(where, f"no protocol {scenario.protocol!r}: there are {', '.join(stages.NAMES)}")
    return scenario


def with_options(scenario: Scenario, options: Mapping[str, Any]) -> Scenario:
    """The scenario with some values replaced: `with_options(s, {"workload.clients": 20, "options.nodes_max": 3})`."""
    raw = plain(scenario)
    for path, value in options.items():
        *tables, key = path.split(".")
        table = raw
        for step in tables:
            table = table.setdefault(step, {}) if isinstance(table, dict) else None
            if not isinstance(table, dict):
                raise MisuseError(f"{scenario.name}: {path!r} names nothing: {step!r} is not a table")
        table[key] = plain(value)
    return read({key: value for key, value in raw.items() if value is not None}, Scenario, scenario.name)


def play(scenario: Scenario, seed: int) -> Journal:
    """Lets the scenario happen once. The same scenario and seed give the same journal, byte for byte."""
    world = stage(scenario, seed)
    last = max([scenario.workload.begin + scenario.workload.duration, *(operation.at for operation in scenario.script)])
    world.run(until=last + scenario.settle)
    if world.on_end is not None:
        world.on_end()
    world.note("end")
    return Journal(
        Header(
            promises=scenario.promised,
            scenario=scenario.name,
            seed=seed,
            skew_us=world.skew_us,
            tolerance_us=world.tolerance_us,
        ),
        world.records,
    )


def stage(scenario: Scenario, seed: int) -> World:
    """The world of a scenario before anything has happened: hosts started, operations and faults scheduled."""
    world = World(
        seed,
        links=scenario.links,
        rules=scenario.rules,
        latencies=scenario.deployment.latencies() if scenario.deployment.regions else None,
        ens=scenario.ens,
        driver=scenario.driver,
        deadline_us=scenario.deadline,
        trace=scenario.trace,
    )
    for name in scenario.topics:
        world.topic(name)
    extra = stages.build(scenario.protocol, world, scenario)
    for operation in scenario.script:
        world.at(operation.at, _operate, world, operation, extra)
    clients = [world.host(client.name) for client in scenario.clients]
    spec = scenario.workload
    subscribers = clients[: spec.clients]
    publishers = clients[spec.clients : spec.clients + spec.publishers] or subscribers
    Workload(world, spec, subscribers, publishers, scenario.topics).schedule()
    schedule_faults(world, scenario.faults)
    return world


def _operate(world: World, operation: Operation, extra: Operations) -> None:
    if operation.do in extra:
        extra[operation.do](operation)
        return
    host = world.host(operation.who)
    match operation.do:
        case "subscribe":
            host.subscribe(*operation.topics)
        case "unsubscribe":
            host.unsubscribe(*operation.topics)
        case "publish":
            for topic in operation.topics:
                host.publish(topic, operation.payload.encode(), operation.attributes)
        case "crash":
            host.crash()
        case "restart":
            host.restart()
        case _:
            raise MisuseError(f"do = {operation.do!r} is no operation of this scenario (docs/reference/scenarios.md)")


def encode(scenario: Scenario) -> bytes:
    """JSON that `decode` reads back: how scenarios travel to other processes."""
    return msgspec.json.encode(plain(scenario))


def decode(text: bytes) -> Scenario:
    return read(msgspec.json.decode(text), Scenario, "scenario")
