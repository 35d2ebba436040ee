"""Causal order by gossip against acknowledged broadcast, with the same deadlines (paper 003, figure 6).

Eight brokers send one frame each per round, a tick of 10 ms. In every round each subscriber sleeps with probability p,
and what is sent to it waits; it crashes for good with one in a thousand; one in a thousand datagrams is lost. A frame
lives for L = ceil(log2 of the members) + 3 rounds. What counts is what a subscriber that lives as long as the frame is
told by its deadline. Brokers never sleep. Played in the simulator: datagrams take up to 4 ms.
"""

import pickle
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import fmean
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from unisono.experiments.baselines.acknowledged import (
    AcknowledgedFrame,
    AcknowledgedMember,
    AcknowledgedSender,
    AcknowledgedSpeak,
    MemberGone,
)
from unisono.experiments.experiment import Experiment, Figure, ResultRow, Value
from unisono.machine import Effect, Heard, Restarted, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import MILLISECOND, Micros
from unisono.protocols.causal.broker import CausalBroker
from unisono.protocols.causal.client import CausalClient
from unisono.protocols.causal.config import CausalConfig, spread_of
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.mesh import seeds_of
from unisono.protocols.causal.messages import (
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalPublication,
    CausalRequest,
    FromMember,
)
from unisono.protocols.causal.wire import ENTRY_BYTES, DatagramCodec, packed_bytes
from unisono.sim.host import SimulatedHost
from unisono.sim.links import LinkSpec, Loss, Uniform
from unisono.sim.spec import Span
from unisono.sim.world import World

TICK_US = 10 * MILLISECOND
WARM = 20
"""Rounds before the first frame: views fill."""
SAMPLED = 16
"""Of so many messages one is measured."""
WINDOWS = {"acknowledged, window 4": 4, "acknowledged, window 8": 8}
FEEDER = Address("feeder")
PAPER_BYTES = {8: 4, 16: 8}
"""Of an ordering vector, by brokers."""


class DeliveryOptions(Struct, frozen=True):
    """The paper's setting by default."""

    subscribers: Annotated[
        int, Meta(ge=0, description="one number instead of 50, 100, 150 and 200; 0: all of these")
    ] = 0
    sleep: Annotated[float, Meta(ge=0, lt=1, description="one p instead of 0.2 to 0.5; 0: all of these")] = 0.0
    brokers: Annotated[int, Meta(ge=2, le=64, description="each sends one frame per round")] = 8
    rounds: Annotated[int, Meta(ge=1, description="in which frames are sent")] = 30
    crash: Annotated[float, Meta(ge=0, lt=1, description="chance of a subscriber to die in a round")] = 0.001
    loss: Annotated[float, Meta(ge=0, lt=1, description="share of datagrams that are lost")] = 0.001
    fanout: Annotated[int, Meta(ge=1, description="partners per round of gossip")] = 3
    seed: int = 0


class _Play:
    """One world, whoever orders in it."""

    def __init__(self, options: DeliveryOptions, scheme: str) -> None:
        links = LinkSpec(Uniform(Span(500), Span(4_000)), fifo=False, loss=Loss(options.loss, 1.0))
        self.options, self.scheme = options, scheme
        self.world = World(options.seed, links=links)
        self.dice = Random(f"{options.seed}/{options.sleep}/{options.subscribers}")
        life = spread_of(options.subscribers + options.brokers)
        self.config = CausalConfig(
            tick_us=Micros(TICK_US), eps_ticks=1, life_ticks=life, spread_ticks=life, deadline_ticks_max=life + 2,
            delay_ticks=4, publish_ticks=2, round_ticks=1, fanout=options.fanout,
        )  # fmt: skip
        self.members = [Address(f"s{i}") for i in range(options.subscribers)]
        self.brokers = [Address(f"b{i}") for i in range(options.brokers)]
        self.gone: dict[Address, int] = {}  # when it died
        self.asleep: dict[Address, None] = {}
        self.told: dict[tuple[Address, str], int] = {}
        self.born: dict[str, int] = {}
        self.messages = self.bytes = self.copies = 0
        self.codec = DatagramCodec(self.config)

    def run(self) -> ResultRow:
        options = self.options
        for number, name in enumerate(self.brokers):
            self._add(name, partial(self._broker, name, number))
        for name in self.members:
            host = self._add(name, partial(self._member, name))
            host.on_deliver = partial(self._hear, name)
        end = WARM + options.rounds
        for tick in range(1, end + 2 * self.config.life_ticks):
            self.world.at(tick * TICK_US, self._round, WARM <= tick < end)
        last = (end + 2 * self.config.life_ticks) * TICK_US
        self.world.run(until=last)
        return self._row()

    def _add(self, name: Address, build: Callable[[], Any]) -> SimulatedHost:
        host = self.world.add(name, lambda _: build())
        host.on_effect = self._measure
        self.world.after(0, host.receive, Restarted())
        return host

    def _broker(self, name: Address, number: int) -> Any:
        if self.scheme in WINDOWS:
            others = tuple(each for each in (*self.brokers, *self.members) if each != name)
            return AcknowledgedSender(name, number, others, WINDOWS[self.scheme], self.config)
        return CausalBroker(name, number, CausalGroups(), self.config, Random(name), seeds=self._seeds())

    def _member(self, name: Address) -> Any:
        if self.scheme in WINDOWS:
            return AcknowledgedMember(name, self.config)
        client = CausalClient(name, lambda topic: "t", CausalGroups(), self.config, Random(name), seeds=self._seeds())
        self.world.after(1, lambda: self.world.host(name).subscribe("t"))
        return client

    def _seeds(self) -> Any:
        return seeds_of(tuple((name, "local") for name in self.brokers))

    def _round(self, speaks: bool) -> None:
        """What the world does to everybody at the begin of a round."""
        for name in self.members:
            host = self.world.host(name)
            if name in self.gone:
                continue
            if self.dice.random() < self.options.crash:
                self.gone[name] = self.world.now
                host.crash()
                for broker in self.brokers if self.scheme in WINDOWS else ():
                    self.world.host(broker).receive(MemberGone(name))
                continue
            sleeps = self.dice.random() < self.options.sleep
            if sleeps and name not in self.asleep:
                self.asleep[name] = None
                host.pause()
            elif not sleeps and name in self.asleep:
                del self.asleep[name]
                host.resume()
        for number, name in enumerate(self.brokers) if speaks else ():
            self._speak(name, number)

    def _speak(self, name: Address, number: int) -> None:
        sequence = len(self.born) + 1
        event = Event(FEEDER, sequence, "t", b"x" * 32)
        self.born[event.id] = self.world.now
        if self.scheme in WINDOWS:
            message: Any = AcknowledgedSpeak(event)
        else:
            clock = self.world.now // TICK_US
            message = CausalPublication(FEEDER, number, sequence, (0,), (event,), (), 0, clock + 2)
        self.world.host(name).receive(message)

    def _hear(self, name: Address, item: Any) -> None:
        if isinstance(item, Heard) and not item.late:
            self.told[name, item.message.id] = self.world.now

    def _measure(self, effect: Effect) -> None:
        if not isinstance(effect, Send):
            return
        self.messages += 1
        match effect.message:
            case AcknowledgedFrame():
                self.copies += 1
                # A vector of all members and an identity; the acknowledgement is counted with it.
                self.bytes += 4 * (len(self.members) + len(self.brokers)) + 5 + 8
            case (CausalGossip() | CausalRequest() | CausalFrames()) as message if self.messages % SAMPLED == 0:
                frames = _frames_of(message)
                self.copies += SAMPLED * len(frames)
                bare = tuple(structs.replace(frame, body=()) for frame in frames)
                self.bytes += SAMPLED * sum(map(len, self.codec.encode(_with(message, bare))))

    def _row(self) -> ResultRow:
        options, life_us = self.options, self.config.life_ticks * TICK_US
        owed = [
            (name, event)
            for event, born in self.born.items()
            for name in self.members
            if self.gone.get(name, born + 2 * life_us) > born + life_us + TICK_US
        ]
        got = [(name, event) for name, event in owed if (name, event) in self.told]
        rounds = [(self.told[each] - self.born[each[1]]) / TICK_US for each in got]
        alive = [self.world.host(name) for name in self.members[:8] if name not in self.gone]
        delivered = max(1, len(got))
        ours = {
            "ratio": len(got) / max(1, len(owed)),
            "rounds": fmean(rounds) if rounds else 0.0,
            "frames_per_s": len(got) / max(1, len(owed)) * options.brokers * 1e6 / TICK_US,
            "metadata_bytes": self.bytes / delivered,
            "copies": self.copies / delivered,
            "state_bytes": fmean([_size_of(host) for host in alive]) if alive else 0.0,
        }
        if self.scheme not in WINDOWS:
            ours["vector_bytes"] = float(2 + ENTRY_BYTES * options.brokers)
            ours["packed_bytes"] = float(packed_bytes(options.brokers, self.config.life_ticks, self.config.eps_ticks))
        paper = {"vector_bytes": float(PAPER_BYTES[options.brokers])} if options.brokers in PAPER_BYTES else {}
        setting: dict[str, Value] = {"subscribers": options.subscribers, "p": options.sleep, "scheme": self.scheme}
        return ResultRow(setting, ours, paper if self.scheme not in WINDOWS else {})


def _frames_of(message: FromMember) -> tuple[CausalFrame, ...]:
    match message:
        case CausalGossip(push=frames) | CausalFrames(frames=frames):
            return frames
        case _:
            return ()


def _with(message: FromMember, frames: tuple[CausalFrame, ...]) -> FromMember:
    match message:
        case CausalGossip():
            return structs.replace(message, push=frames)
        case CausalFrames():
            return structs.replace(message, frames=frames)
        case _:
            return message


def _size_of(host: SimulatedHost) -> int:
    """What a subscriber keeps."""
    machine: Any = host.machine
    order = machine.order if isinstance(machine, AcknowledgedMember) else machine.mesh
    return len(pickle.dumps(order))


def parts(options: DeliveryOptions) -> list[DeliveryOptions]:
    counts = [options.subscribers] if options.subscribers else [50, 100, 150, 200]
    sleeps = [options.sleep] if options.sleep else [0.2, 0.3, 0.4, 0.5]
    return [structs.replace(options, subscribers=count, sleep=p) for p in sleeps for count in counts]


def run(options: DeliveryOptions) -> list[ResultRow]:
    return [_Play(part, scheme).run() for part in parts(options) for scheme in ("gossip", *WINDOWS)]


EXPERIMENT = Experiment(
    "Delivery by the deadline, gossip against acknowledged broadcast",
    "paper 003, figure 6",
    DeliveryOptions,
    run,
    Figure("subscribers", "ratio", "scheme"),
    parts=parts,
)
