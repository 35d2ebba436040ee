"""What a publisher asks its stamper for: requests in a row, in runs on one topic."""

from collections.abc import Iterator

from msgspec.structs import replace

from unisono.model.ids import Topic
from unisono.protocols.clock.messages import Create


def last_of(message: Create) -> int:
    """The last request it asks for."""
    return message.first + sum(count for _, count in message.runs) - 1


def part_before(message: Create, request: int) -> Create | None:
    """What it asks for before this request."""
    runs: list[tuple[Topic, int]] = []
    left = request - message.first
    for topic, count in message.runs:
        if left <= 0:
            break
        runs.append((topic, min(count, left)))
        left -= count
    return replace(message, runs=tuple(runs)) if runs else None


def follows(waits: Create, message: Create, upto: int) -> bool:
    """Whether it asks for what comes right after that, and for nothing beyond this request."""
    return message.first == last_of(waits) + 1 and last_of(message) <= upto


def joined(message: Create, following: Create) -> Create:
    """Both, the second asking for what comes after the first."""
    after, settled = max(message.after, following.after), max(message.settled, following.settled)
    return replace(message, runs=(*message.runs, *following.runs), after=after, settled=settled)


def runs_after(message: Create, after: int) -> Iterator[tuple[int, Topic, int]]:
    """First request, topic and count of the runs that follow request `after`."""
    request = message.first
    for topic, count in message.runs:
        skipped = min(count, max(0, after + 1 - request))
        if count > skipped:
            yield request + skipped, topic, count - skipped
        request += count
