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


def runs_after(message: Create, after: int) -> Iterator[tuple[int, Topic, int]]:
    """First request, topic and count of the runs that follow request `after`."""
    request = message.first
    for topic, count in message.runs:
        skipped = min(count, max(0, after + 1 - request))
        if count > skipped:
            yield request + skipped, topic, count - skipped
        request += count
