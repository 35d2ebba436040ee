"""What a sequencer node handles: what its driver tells it, and the union of all its inputs."""

from msgspec import Struct

from unisono.machine import Fired, Restarted
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import (
    AllRecalled,
    AllYours,
    Born,
    ClientMessage,
    Collect,
    Disproved,
    Done,
    Fill,
    Install,
    Move,
    NotYours,
    Part,
    Prove,
    Proven,
    Recalled,
    Relocate,
    Routed,
    Turn,
    Unfinished,
    Update,
    Yours,
)
from unisono.structures.hosting import Announced, Forget, HostTopic, Lapse
from unisono.structures.sessions import LinkFree, LinkFull, PeerReborn, Reborn


class Migrate(Struct, frozen=True, tag="Migrate"):
    """From the driver: move the home of a topic to the parent or to a child."""

    topic: Topic
    to: Address


class HomeReborn(Struct, frozen=True, tag="HomeReborn"):
    """From the driver of a client: this node has forgotten which requests of ours it has numbered. Which topics are at
    home there, the machine knows: it alone follows them.

    Delivered when its consequences are drawn: what is asked from then on is asked with that in mind, and the node may
    be told that we know.
    """

    node: Address


class Inherited(Struct, frozen=True, tag="Inherited"):
    """To the driver: with a topic these clients have moved here; if one stays away, only this node can know."""

    clients: tuple[Address, ...]
    topic: Topic


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
    | Relocate
    | Born
    | Announced
    | Routed
    | HostTopic
    | Migrate
    | Forget
    | Lapse
    | Reborn
    | PeerReborn
    | Recalled
    | AllRecalled
    | Yours
    | NotYours
    | AllYours
    | Unfinished
    | LinkFull
    | LinkFree
    | Fired
    | Restarted
)
