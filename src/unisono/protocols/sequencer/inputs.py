"""What a sequencer node handles: what its driver tells it, and the union of all its inputs."""

from msgspec import Struct

from unisono.machine import Fired, Restarted
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import (
    AllRecalled,
    Announced,
    Born,
    ClientMessage,
    Collect,
    Disproved,
    Done,
    Fill,
    Install,
    Move,
    Part,
    Prove,
    Proven,
    Recalled,
    Routed,
    Topics,
    Turn,
    Unfinished,
    Update,
    Yours,
)
from unisono.structures.sessions import LinkFree, LinkFull, PeerReborn


class Host(Struct, frozen=True, tag=True):
    """From the driver: become the home of a new topic; `Announced` is delivered when the whole tree knows it."""

    topic: Topic


class Migrate(Struct, frozen=True, tag=True):
    """From the driver: move the home of a topic to the parent or to a child."""

    topic: Topic
    to: Address


class Reborn(Struct, frozen=True, tag=True):
    """From the driver: a person has accepted that what was told after some moment is forgotten. The incarnation is
    higher than every one before, also than those that are forgotten."""

    incarnation: int


class HomeReborn(Struct, frozen=True, tag=True):
    """From the driver of a client: the home of these topics has forgotten which requests of ours it has numbered."""

    topics: Topics


class Forget(Struct, frozen=True, tag=True):
    """A client has closed its session and its address will never come back: not with topics that are moving just now,
    and not by what of it is still under way."""

    client: Address


class Lapse(Struct, frozen=True, tag=True):
    """From the driver: this client has been away from here for too long. Other nodes may still know it."""

    client: Address


class Inherited(Struct, frozen=True, tag=True):
    """To the driver: with a topic these clients have moved here; if one stays away, only this node can know."""

    clients: tuple[Address, ...]


Registration = Collect | Install | Update
NodeInput = (
    ClientMessage
    | Turn
    | Fill
    | Part
    | Done
    | Prove
    | Proven
    | Disproved
    | Move
    | Born
    | Announced
    | Routed
    | Host
    | Migrate
    | Forget
    | Lapse
    | Reborn
    | PeerReborn
    | Recalled
    | AllRecalled
    | Yours
    | Unfinished
    | LinkFull
    | LinkFree
    | Fired
    | Restarted
)
