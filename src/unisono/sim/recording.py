"""The journal's view of a host: what its machine delivers to the application becomes records."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from unisono.machine import Accepted, CutOff, Gap, Heard, Joined, Refused, Selected, Stalled, Unknown
from unisono.model.event import Event, EventRow
from unisono.model.ids import event_id

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost


def events_in(message: Any, depth: int = 4) -> Iterator[Event]:
    """The events a message carries, however a protocol has wrapped them."""
    if isinstance(message, Event):
        yield message
    elif depth and isinstance(message, Struct | tuple | list):
        parts = (
            message
            if isinstance(message, tuple | list | EventRow)
            else (getattr(message, f) for f in message.__struct_fields__)
        )
        for part in parts:
            yield from events_in(part, depth - 1)


def write_notice(host: "SimulatedHost", item: Any) -> None:
    """Writes the record of one delivered item; what is no notice leaves none."""
    world, me = host.world, host.name
    match item:
        case Heard(topic=topic, message=Event() as event, number=number, late=late):
            host.position += 1
            name = event.id
            # A deadline runs from the moment the subscriber first knew of the event.
            known_at = host.known_at.pop(name, None)
            world.note(
                "tag" if late else "deliver",
                me,
                subscriber=me,
                event=name,
                position=host.position,
                topic=world.topic_name(topic) if number else event.topic,  # a number is that of a cell
                number=number or None,
                publisher=event.publisher,
                publisher_seq=event.sequence,
                published_us=world.published_us.get(name),
                delivered_us=world.now,
                deadline_us=None if known_at is None or world.deadline_us is None else known_at + world.deadline_us,
            )
        case Joined(topic=topic, base=base, gate=gate):
            host.subscribed[topic] = base
            world.note(
                "subscribe",
                me,
                subscriber=me,
                topic=world.topic_name(topic),
                number=base,
                published_us=host.hears_since(topic),
                clock={world.topic_name(x): number for x, number in gate.items()} or None,
                note=host.where,
            )
        case Selected():
            for topic, base in host.subscribed.items():
                where, now = world.topic_name(topic), world.now
                world.note("subscribe", me, subscriber=me, topic=where, number=base, published_us=now, note=host.where)
        case Gap(topic=topic, first=first, publisher=publisher, reason=reason) if publisher:
            name = event_id(publisher, first)
            world.note("gap", me, subscriber=me, topic=world.topic_name(topic), event=name, note=reason)
        case CutOff(publishers=publishers, reason=reason):
            world.note("cut", me, subscriber=me, clock=dict(publishers), note=reason)
        case Gap(topic=topic, first=first, last=last, reason=reason):
            where = world.topic_name(topic)
            world.note("gap", me, subscriber=me, topic=where, number=first, last_number=last, note=reason)
        case Stalled(topic=topic, reason=reason):
            world.note("stalled", me, subscriber=me, topic=world.topic_name(topic), note=reason)
        case Accepted(request=request, strength=strength):
            world.note("outcome", me, event=f"{me}:{request}", note=f"accepted {strength}")
        case Refused(request=request):
            world.note("outcome", me, event=f"{me}:{request}", note="refused")
        case Unknown(request=request):
            world.note("outcome", me, event=f"{me}:{request}", note="unknown")
