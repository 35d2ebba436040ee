"""What every machine that is at home with topics is told, whatever order it makes: which topics, and who has left.

`TopicNames` stands around such a machine, and a node's driver speaks to both.
"""

from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.numbers import TopicNumber


class HostTopic(Struct, frozen=True, tag="Host"):
    """From the driver: become the home of a new topic; `Announced` is delivered when all who have to know it do."""

    topic: Topic


class Announced(Struct, frozen=True, tag="Announced"):
    """Every node up to the root knows the new topic; on its way down to its home, and delivered there."""

    topic: TopicNumber


class AtHome(Struct, frozen=True, tag="AtHome"):
    """To what stands around the machine: after data was lost, these topics are at home here, and no others."""

    topics: tuple[Topic, ...]


class Forget(Struct, frozen=True, tag="Forget"):
    """A client has closed its session and its address will never come back: not with topics that are moving just now,
    and not by what of it is still under way."""

    client: Address


class Lapse(Struct, frozen=True, tag="Lapse"):
    """From the driver: this client has been away from here for too long. Other nodes may still know it."""

    client: Address
