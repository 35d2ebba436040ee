"""Events as brokers that route by content see them: what filters look at, whose they are, and what is too much."""

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.interest import is_pattern
from unisono.model.predicate import EVERY_EVENT, NO_EVENT, Filter, flatten, only
from unisono.model.predicate.values import Values, check_number, point, prefixed, union_all

TOPIC = "$topic"
"""The attribute under which filters see an event's topic; names that begin with $ are not for publishers."""


class EventLimits(Struct, frozen=True):
    """What one event may weigh; a broker and its clients use the same."""

    payload_bytes_max: int = 1 << 20
    attributes_max: int = 128
    attribute_chars_max: int = 16_384
    """Of all names and texts together."""


def flat(event: Event) -> dict[str, object]:
    """What filters see of an event."""
    return {**flatten(event.attributes), TOPIC: event.topic}


def why_not(event: Event, limits: EventLimits) -> str | None:
    """The reason not to take an event, in words; None if there is none."""
    attributes = event.attributes
    if len(event.payload) > limits.payload_bytes_max:
        return f"{event.id}: a payload of {len(event.payload)} bytes; the most is {limits.payload_bytes_max}"
    if len(attributes) > limits.attributes_max:
        return f"{event.id}: {len(attributes)} attributes; the most is {limits.attributes_max}"
    chars = 0
    for name, value in attributes.items():
        if not isinstance(name, str):
            return f"{event.id}: attribute {name!r} has no text for a name"
        if name.startswith("$"):
            return f"{event.id}: names that begin with $ are not for publishers"
        chars += len(name)
        if isinstance(value, str):
            chars += len(value)
        elif not isinstance(value, bool):
            try:
                check_number(value)
            except MisuseError as error:
                return f"{event.id}: attribute {name!r}: {error}"
    if chars > limits.attribute_chars_max:
        return f"{event.id}: {chars} characters of attributes; the most is {limits.attribute_chars_max}"
    try:
        flatten(attributes)
    except MisuseError as error:
        return f"{event.id}: {error}"
    return None


def about(*names: str) -> Filter:
    """The topics, or all that begin like a pattern: as much of them as brokers can route by."""
    parts = [_names_like(name) for name in names]
    known = [values for values in parts if values is not None]
    if len(known) < len(parts):
        return EVERY_EVENT
    return only(TOPIC, union_all(known)) if known else NO_EVENT


def _names_like(name: str) -> Values | None:
    """None: any."""
    if not is_pattern(name):
        return point(name)
    words = name.split(".")
    wild = next(i for i, word in enumerate(words) if is_pattern(word))
    return prefixed("".join(f"{word}." for word in words[:wild])) if wild else None


def is_own(source: Address, name: str) -> bool:
    """Nobody can take or withhold a name of somebody else."""
    return name == source or name.startswith((f"{source}/", f"{source}."))
