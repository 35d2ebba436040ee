"""Nodes that listen before they serve, clients that are witnesses, and the person who lets a node go on.

A connection ends with the process at one of its ends. After a start the others dial again, each after a while of its
own: until then nothing of what they say to each other arrives; then both ends learn that it stands, before anything
else is said over it.
"""

from functools import partial
from typing import Any

from unisono.machine import Deliver, Effect, Fired, Machine, Send
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.admission import (
    Admission,
    AdmissionConfig,
    Disconnected,
    HasForgotten,
    Listens,
    PartyConnected,
    Reached,
    Serving,
)
from unisono.protocols.sequencer.inputs import HomeReborn, Inherited
from unisono.protocols.sequencer.lives import Began, Height, Lives, Seal, Witness
from unisono.protocols.sequencer.messages import Collect, Creates, Install, Update
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.door import SimulatedDoor
from unisono.sim.host import SimulatedHost
from unisono.sim.world import World
from unisono.structures.hosting import Lapse
from unisono.structures.leases import LEASE, Away, ClientLeases, Here, Lapsed, Registered, Remembered
from unisono.structures.sessions import Reborn, Reconnected

NOTICED_US = 200_000
"""A connection that is lost is noticed within this time."""
A_PERSON_COMES_US = 300_000
"""How long a node that has found that it has forgotten is down, before it is told to go on."""


def manager_of(machine: Any) -> TopicManager:
    """What is inside all sessions."""
    inside = machine.inside
    while not isinstance(inside, TopicManager):
        inside = inside.inside
    return inside


class Listening:
    """One node, over all its lives."""

    def __init__(
        self,
        world: World,
        host: SimulatedHost,
        config: AdmissionConfig,
        dials_again_us: int,
        neighbours: tuple[str, ...],
        lease_us: Micros,
    ) -> None:
        """`neighbours`: nodes that hold a session with this one. `lease_us`: of clients that are away; 0: for ever."""
        self._lease_us = lease_us
        self._world, self._host, self._config, self._dials_again_us = world, host, config, dials_again_us
        self._neighbours = neighbours
        self._witness = Witness()  # on its disk
        self._goes_on = False
        self.leases: ClientLeases | None = None
        host.on_start, host.on_down = self._start, self._down
        host.door = SimulatedDoor(host, self._door, self._see)
        world.after(0, self._begin)
        world.after(1, self._meet_all)

    def _door(self, machine: Any) -> Machine:
        host, me = self._host, Address(self._host.name)
        # The directory of a first life is new, and everybody knows it.
        config = self._config if host.life > 1 else AdmissionConfig(Micros(0), self._config.show_us)
        seal, life = Seal("simulated", me, ""), f"{me}/{host.life}"
        admission = Admission(machine, seal, life, lambda: host.disk.height, client_of, self._witness, _asker, config)
        if not self._lease_us:
            return admission
        leases = self.leases = ClientLeases(self._lease_us, client_of, lambda client: False)
        return _NodeDoor(admission, leases, {Address(name): None for name in self._neighbours})

    def _begin(self) -> None:
        host, machine = self._host, self._host.machine
        assert isinstance(machine, Lives)
        if self._goes_on:
            self._goes_on = False
            host.receive(Reborn(max(machine.incarnation + 1, 1 + self._world.now // 1000)))
        host.receive(Began(f"{host.name}/{host.life}", host.disk.height))
        if host.life > 1 and self._lease_us:
            host.ask_door(Lapsed(tuple(machine.lapsed)))
            host.ask_door(Remembered(tuple(manager_of(machine).clients())))
        host.ask_door(Listens())

    def _start(self) -> None:
        """A later life: nothing of what was said to an earlier one, or by it, is still under way."""
        self._begin()
        host, dice = self._host, self._world.dice("dials")
        for other in self._others():
            pair = [(host.address, other.address), (other.address, host.address)]
            self._world.network.hinder(pair, "cut")
            self._world.after(dice.randint(1, self._dials_again_us), self._meet_again, other, pair, host.life)

    def _down(self) -> None:
        for other in self._others():
            other.ask_door(Disconnected(self._host.address))

    def _others(self) -> list[SimulatedHost]:
        return [other for other in self._world.hosts.values() if other is not self._host]

    def _meet_all(self) -> None:
        for other in self._others():
            self._host.ask_door(PartyConnected(other.address))

    def _meet_again(self, other: SimulatedHost, pair: list[tuple[Address, Address]], life: int) -> None:
        self._world.network.heal(pair, "cut")
        host = self._host
        if host.life != life or not host.is_up or not other.is_up:
            return
        are_nodes = isinstance(other.machine, Lives)
        for one, peer in ((host, other), (other, host)):
            one.ask_door(PartyConnected(peer.address))
            if other.address in self._neighbours or (one is other and not are_nodes):
                one.receive(Reconnected(peer.address))

    def pairs(self, other: SimulatedHost) -> list[tuple[Address, Address]]:
        return [(self._host.address, other.address), (other.address, self._host.address)]

    def lose(self, client: str) -> None:
        if self._host.is_up:
            self._host.ask_door(Disconnected(Address(client)))

    def meet(self, client: SimulatedHost) -> None:
        """A connection stands."""
        if self._host.is_up and client.is_up:
            self._host.ask_door(PartyConnected(Address(client.name)))
            client.ask_door(PartyConnected(self._host.address))
            client.receive(Reconnected(self._host.address))

    def _see(self, item: Any) -> bool:
        if isinstance(item, HasForgotten):
            self._world.note("fault", self._host.name, note=f"has forgotten: {item.why}")
            self._host.crash()
            self._world.after(A_PERSON_COMES_US, self._go_on)
        return isinstance(item, HasForgotten | Serving)

    def _go_on(self) -> None:
        if not self._host.is_up:
            self._goes_on = True
            self._host.restart()


def _asker(message: Any) -> Address | None:
    return message.publisher if isinstance(message, Creates) else None


def client_of(sid: Address) -> Address:
    return sid


class _NodeDoor:
    """Leases, then admission."""

    def __init__(self, admission: Admission, leases: ClientLeases, nodes: dict[Address, None]) -> None:
        self._admission, self._leases, self._nodes = admission, leases, nodes

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        about: Any = None
        match message:
            case PartyConnected(party=party) if party not in self._nodes:
                about = Here(party)
            case Disconnected(party=party) if party not in self._nodes:
                about = Away(party)
            case Inherited(clients=clients):
                return self._leases.handle(Remembered(clients), now)
            case Remembered() | Lapsed():
                return self._leases.handle(message, now)
            case Collect(sid=sid) | Install(sid=sid) | Update(sid=sid):
                about = Registered(sid)
            case Fired(key=key) if key.startswith(LEASE):
                return self._lapse(self._leases.handle(message, now), now)
        effects = self._leases.handle(about, now) if about is not None else []
        return effects + self._admission.handle(message, now)

    def _lapse(self, effects: list[Effect], now: Micros) -> list[Effect]:
        lapses = [effect.item for effect in effects if isinstance(effect, Deliver) and isinstance(effect.item, Lapse)]
        return [effect for lapse in lapses for effect in self._admission.handle(lapse, now)]


class Absences:
    """Clients that reach no node for a while, though the broker is there: shorter than their lease, or longer.

    Who is turned away when it is back, since a node has forgotten it, begins anew under another name.
    """

    def __init__(self, world: World, nodes: list[Listening], clients: list[str], spans: tuple[int, ...]) -> None:
        self._world, self._nodes, self._clients, self._spans = world, nodes, clients, spans

    def schedule(self, begin: int, duration: int) -> None:
        dice = self._world.dice("absences")
        for span in self._spans:
            self._world.at(begin + dice.randint(0, duration), self._leave, span)

    def _leave(self, span: int) -> None:
        dice = self._world.dice("absences")
        client = self._world.host(dice.choice(self._clients))
        pairs = [pair for node in self._nodes for pair in node.pairs(client)]
        self._world.note("fault", client.name, note=f"reaches no node for {span} us")
        self._world.network.hinder(pairs, "cut")
        for node in self._nodes:
            self._world.after(dice.randint(0, NOTICED_US), node.lose, client.name)
        self._world.after(span + NOTICED_US, self._return, client, pairs)

    def _return(self, client: SimulatedHost, pairs: list[tuple[Address, Address]]) -> None:
        self._world.network.heal(pairs, "cut")
        if any(node.leases is not None and node.leases.is_forgotten(Address(client.name)) for node in self._nodes):
            self._world.note("fault", client.name, note="is turned away: it has been forgotten")
            topics = [self._world.topic_name(topic) for topic in client.subscribed]
            client.crash()
            client.restart(disk=False)
            if topics:
                client.subscribe(*topics)
        for node in self._nodes:
            node.meet(client)


class Witnessing:
    """A client that hands back what nodes have shown to it."""

    def __init__(self, host: SimulatedHost) -> None:
        host.door = SimulatedDoor(host, partial(_WitnessDoor, host))


class _WitnessDoor:
    def __init__(self, host: SimulatedHost, machine: Any) -> None:
        self._host, self._witness = host, Witness()

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Height(node=node):
                if not self._witness.note(message):
                    return []
                return [Deliver(HomeReborn(node))]
            case HomeReborn(node=node) | PartyConnected(party=node):
                reminder = self._witness.reminder(node, Address(self._host.name))
                return [Send(node, reminder)] if reminder is not None else []
            case Reached() | Disconnected():
                return []
            case _:
                return [Deliver(message)]
