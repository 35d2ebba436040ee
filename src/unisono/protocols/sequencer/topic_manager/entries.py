"""The entries a node decides: values of its clock, of which a timestamp says what has changed since the one before.

A topic's group and the topics a node knows change rarely, so they are split once into those decided here and those
left to the nodes above. A timestamp is then one look at the clock and one comparison with the last values given. The
last changes of the clock are kept in a list, so that a busy topic with a large group, between two numbers of which
little happens, need not search for what differs.
"""

from itertools import compress
from operator import is_not, itemgetter, ne
from typing import Any

from unisono.model.ids import Topic
from unisono.protocols.sequencer.messages import Entries, Numbers, Topics

RECENT = 1000
"""At least so many changes of the clock are remembered."""


class _Given:
    """The last values given for a topic, and how its group is split."""

    __slots__ = ("at", "here", "numbers", "places", "rest", "take", "todo")

    def __init__(self, here: Topics, numbers: tuple[int | None, ...]) -> None:
        self.here = here
        self.places = {x: place for place, x in enumerate(here)}
        self.numbers = numbers
        self.at = -1  # how many changes of the clock there had been; -1: not known
        self.todo: Topics | None = None  # None: to be split anew
        self.rest: Topics = ()
        # itemgetter wants one argument at least, and gives a tuple for two: `fill` cuts what was taken twice.
        self.take = itemgetter(*(here if len(here) > 1 else here * 2)) if here else None


class Decisions:
    """What one node has put into the timestamps of every topic that passed it."""

    def __init__(self, everything: bool, root: bool) -> None:
        """`everything`: timestamps are full. `root`: there is nobody above to leave anything to."""
        self._everything = everything
        self._root = root
        self._given: dict[Topic, _Given] = {}
        self._recent: list[Topic] = []  # the topics whose clocks have changed last, in that order
        self._older = 0  # how many changes are no longer in the list

    def note(self, topic: Topic, number: int) -> None:
        """The clock of the topic has changed."""
        self._recent.append(topic)
        if len(self._recent) > 2 * RECENT:
            del self._recent[:RECENT]
            self._older += RECENT

    def fill(
        self, clock: Entries, topic: Topic, todo: Topics, full: Topics, bars: Entries
    ) -> tuple[Topics, Numbers, Topics]:
        """The entries decided here (those of `full` in any case), and the topics left to the nodes above."""
        given = self._given.get(topic)
        if given is None or (given.todo is not todo and given.todo != todo):
            given = self._split(clock, topic, todo)
        if given.take is None:
            return (), (), given.rest
        here, before, since = given.here, given.numbers, given.at
        numbers: Numbers = given.take(clock)
        if len(here) == 1:
            numbers = numbers[:1]
        if bars:
            numbers = tuple([max(number, bars.get(x, 0)) for x, number in zip(here, numbers)])
        given.numbers = numbers
        changes = self._older + len(self._recent)
        given.at = -1 if bars else changes
        if self._everything:
            return here, numbers, given.rest
        if full or bars:
            differ = [n != b or x in full for x, n, b in zip(here, numbers, before)]
        elif numbers == before:
            return (), (), given.rest
        elif since >= self._older and 4 * (changes - since) < len(here):
            places = given.places
            changed = sorted({places[x] for x in self._recent[since - self._older :] if x in places})
            return tuple([here[i] for i in changed]), tuple([numbers[i] for i in changed]), given.rest
        else:
            # Where both were taken from the clock, one that has not moved is the same object.
            differ = list(map(ne if since < 0 else is_not, numbers, before))
            if all(differ):  # a turn of many topics changes them all: nothing is copied
                return here, numbers, given.rest
        return tuple(compress(here, differ)), tuple(compress(numbers, differ)), given.rest

    def _split(self, clock: Entries, topic: Topic, todo: Topics) -> _Given:
        here = tuple([x for x in todo if x in clock])
        before = self._given.get(topic)
        known: Entries = {} if before is None else dict(zip(before.here, before.numbers))  # type: ignore[arg-type]
        given = self._given[topic] = _Given(here, tuple([known.get(x) for x in here]))
        given.todo = todo
        if not self._root:  # what is in no clock there was registered by a client, and nobody hosts it
            given.rest = tuple([x for x in todo if x not in clock])
        return given

    def forget(self, topic: Topic) -> None:
        self._given.pop(topic, None)

    def split_anew(self) -> None:
        """The node knows other topics than before."""
        for given in self._given.values():
            given.todo = None

    def snapshot(self) -> Any:
        return {topic: dict(zip(given.here, given.numbers)) for topic, given in self._given.items()}

    def restore(self, snapshot: Any) -> None:
        self._given = {topic: _Given(tuple(given), tuple(given.values())) for topic, given in snapshot.items()}
