"""One event's life, told from a journal."""

from pathlib import Path

from msgspec import Struct

from unisono.audit.files import scan
from unisono.errors import MisuseError
from unisono.model.journal import Record


class Step(Struct, frozen=True):
    """One thing that happened to the event; times are null where the journal has none."""

    kind: str
    at_us: int | None
    after_us: int | None
    """Since the publication."""
    who: str | None
    text: str


class Story(Struct, frozen=True):
    event: str
    topic: str | None
    number: int | None
    publisher: str | None
    delivered: int
    tagged: int
    behind_us: dict[str, int]
    """Whose clock shows what cannot be, something of the event before its publication: at least so far back."""
    steps: list[Step]


def tell(path: str | Path, event: str) -> Story:
    """`tell("run.jsonl", "alice:17").steps`; raises MisuseError if the journal does not know the event."""
    own: list[Record] = []
    notices: list[Record] = []
    _, records = scan(path)
    is_timed = False
    for record in records:
        is_timed = is_timed or record.at_us != 0
        if record.event == event:
            own.append(record)
        elif record.kind in ("gap", "void") and record.event is None:
            notices.append(record)
    if not own:
        raise MisuseError(f"{path}: there is no event {event!r} in this journal")
    topic = next((record.topic for record in own if record.topic is not None), None)
    number = next((record.number for record in own if record.number is not None), None)
    publisher = next((record.publisher for record in own if record.publisher is not None), None)
    if number is not None:
        own += [record for record in notices if record.topic == topic and _covers(record, number)]
    own = _with_publication(own)
    moments = {id(record): _moment(record, is_timed) for record in own}
    if all(moment is not None for moment in moments.values()):
        own.sort(key=lambda record: moments[id(record)] or 0)
    born = next((moments[id(record)] for record in own if record.kind == "publish"), None)
    arrivals: dict[str | None, int | None] = {}
    steps = []
    for record in own:
        at, who = moments[id(record)], _who(record)
        if record.kind == "arrive":
            arrivals.setdefault(who, at)
        after = at - born if at is not None and born is not None else None
        steps.append(Step(record.kind, at, after, who, _words(record, who, at, arrivals.get(who))))
    delivered = sum(record.kind == "deliver" for record in own)
    tagged = sum(record.kind == "tag" for record in own)
    behind_us: dict[str, int] = {}
    for step in steps:
        if step.who is not None and step.after_us is not None and step.after_us < 0:
            behind_us[step.who] = max(behind_us.get(step.who, 0), -step.after_us)
    return Story(event, topic, number, publisher, delivered, tagged, behind_us, steps)


def _who(record: Record) -> str | None:
    """Whom it happened to; a name may be empty."""
    return next((name for name in (record.subscriber, record.who, record.publisher) if name is not None), None)


def _covers(notice: Record, number: int) -> bool:
    if notice.number is None:
        return False
    return notice.number <= number <= (notice.last_number if notice.last_number is not None else notice.number)


def _with_publication(own: list[Record]) -> list[Record]:
    """A log of deliveries has no publish record but may know the moment."""
    if any(record.kind == "publish" for record in own):
        return own
    for record in own:
        if record.published_us is not None:
            birth = Record("publish", publisher=record.publisher, event=record.event, published_us=record.published_us)
            return [birth, *own]
    return own


def _moment(record: Record, is_timed: bool) -> int | None:
    known = {"deliver": record.delivered_us, "tag": record.delivered_us, "publish": record.published_us}.get(
        record.kind
    )
    return known if known is not None else record.at_us if is_timed else None


def _words(record: Record, who: str | None, at: int | None, arrived: int | None) -> str:
    held = f" after being held for {(at - arrived) / 1000:.3f} ms" if at is not None and arrived is not None else ""
    where = f" at position {record.position}" if record.position is not None else ""
    note = f": {record.note}" if record.note else ""
    peer = f" to {record.peer}" if record.peer else ""
    clock = f" {{{', '.join(f'{name}: {value}' for name, value in record.clock.items())}}}" if record.clock else ""
    match record.kind:
        case "publish":
            return f"published by {'somebody' if who is None else record.publisher or who}{clock}"
        case "outcome":
            return f"{who or 'the publisher'} was told{note or ': the outcome'}"
        case "timestamp":
            where = f" {record.note}" if record.note else ""
            return f"numbered {record.number}{f' by {record.who}' if record.who else ''}{where}{clock}"
        case "deliver":
            return f"delivered to {who}{where}{held}"
        case "tag":
            return f"delivered to {who}{where}{held}, tagged out of order"
        case "gap":
            return f"{who} was told that it will not come{note}"
        case "void":
            return f"its number was declared empty{note}"
        case "arrive":
            return f"arrived at {who}{note}"
        case "send":
            return f"sent by {who}{peer}{note}"
        case _:
            return f"{record.kind}{f' at {who}' if who else ''}{peer}{note}"
