"""`entries.Decisions` for turns of many topics, with the `[fast]` extra: the same answers from a compiled kernel.

A node changes to it when the kernel is ready and a turn is large enough to pay for the way into it; nobody can tell.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unisono.model.ids import Topic
from unisono.protocols.sequencer.messages import Entries, Numbers, Topics
from unisono.protocols.sequencer.topic_manager.changes import Changes

UNKNOWN = -1
"""What stands for a value never given; numbers are not negative."""


class _Split:
    """How the group of a topic is split between this node and those above."""

    __slots__ = ("here", "rest", "row", "todo")

    def __init__(self, row: int, here: Topics, rest: Topics, todo: Topics | None) -> None:
        self.row, self.here, self.rest, self.todo = row, here, rest, todo


class BulkDecisions:
    """What one node has put into the (delta) timestamps of every topic that passed it."""

    def __init__(self, root: bool, changes: Changes) -> None:
        self._root = root
        self._changes = changes
        self._splits: dict[Topic, _Split] = {}

    def note(self, topic: Topic, number: int) -> None:
        """The clock of the topic has changed."""
        self._changes.set(topic, number)

    def fill_all(
        self, clock: Entries, topics: Iterable[Topic], todos: Sequence[Topics], counts: Sequence[int]
    ) -> Iterator[tuple[Topics, Numbers, Topics]]:
        """Topic after topic issues so many numbers and is filled; `clock` has not moved yet. No topic comes twice."""
        splits = []
        for topic, todo in zip(topics, todos):
            split = self._splits.get(topic)
            if split is None or (split.todo is not todo and split.todo != todo):
                split = self._split(clock, topic, todo)
            splits.append(split)
        ends, numbers = self._changes.turn([split.row for split in splits], counts)
        return self._parts(splits, ends, numbers)

    def _parts(
        self, splits: list[_Split], ends: list[int], numbers: Numbers
    ) -> Iterator[tuple[Topics, Numbers, Topics]]:
        """What was told to each; where its whole group has changed, its names are at hand."""
        start, names = 0, None
        for split, end in zip(splits, ends):
            here: Any = split.here
            if end - start != len(here):
                if names is None:
                    names = self._changes.names()
                here = names[start:end]
            yield here, numbers[start:end], split.rest
            start = end

    def fill(
        self, clock: Entries, topic: Topic, todo: Topics, full: Topics, bars: Entries
    ) -> tuple[Topics, Numbers, Topics]:
        """The entries decided here (those of `full` in any case), and the topics left to the nodes above."""
        split = self._splits.get(topic)
        if split is None or (split.todo is not todo and split.todo != todo):
            split = self._split(clock, topic, todo)
        now, seen = self._changes.look(topic)
        if bars:
            now = [max(number, bars.get(x, 0)) for x, number in zip(split.here, now)]
        if now != seen:
            self._changes.saw(topic, now)
        told = [
            (x, number) for x, number, before in zip(split.here, now, seen) if number != before or (full and x in full)
        ]
        if not told:
            return (), (), split.rest
        names, numbers = zip(*told)
        return names, numbers, split.rest

    def _split(self, clock: Entries, topic: Topic, todo: Topics) -> _Split:
        here = tuple([x for x in todo if x in clock])
        known = self._known(topic)
        for x in here:
            self._changes.set(x, clock[x])
        if topic in clock:
            self._changes.set(topic, clock[topic])
        row = self._changes.watch(topic, here, [known.get(x, UNKNOWN) for x in here])
        rest = () if self._root else tuple([x for x in todo if x not in clock])
        split = self._splits[topic] = _Split(row, here, rest, todo)
        return split

    def _known(self, topic: Topic) -> Entries:
        split = self._splits.get(topic)
        return {} if split is None else dict(zip(split.here, self._changes.look(topic)[1]))

    def forget(self, topic: Topic) -> None:
        self._splits.pop(topic, None)

    def split_anew(self) -> None:
        """The node knows other topics than before."""
        for split in self._splits.values():
            split.todo = None

    def snapshot(self) -> Any:
        return {topic: self._known(topic) for topic in self._splits}

    def restore(self, snapshot: Any) -> None:
        self._splits = {}
        for topic, given in snapshot.items():
            row = self._changes.watch(topic, tuple(given), given.values())
            self._splits[topic] = _Split(row, tuple(given), (), None)
