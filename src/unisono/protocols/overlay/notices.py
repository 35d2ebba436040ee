"""Who is told that publishers cannot be heard, and when (decision 30).

Beyond a lost link publishers may advertise more than before, and others may begin: so all subscribers are told, with
the names of those that publish on their topics, whatever they advertised there. Whoever could not be named or told then
is named when the two parts hear each other again: a publisher that began meanwhile, and all of them to a subscription
that was made meanwhile. So for every publisher either its events come, or a notice says from where on they may be
missing.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import NamedTuple

from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.model.predicate.values import EVERYTHING, NOTHING, Values
from unisono.protocols.overlay.messages import OverlayCut
from unisono.protocols.overlay.state import BrokerEffects
from unisono.protocols.overlay.tables import Ad, Tables
from unisono.structures.content import TOPIC

GONE_MAX = 10_000
"""Publishers out of reach that are remembered; of one that is not, subscribers may be told twice."""


class LostPublisher(NamedTuple):
    """A publisher that was lost with a link."""

    cut: int
    last: int
    topics: Values
    """Those on which it had advertised something: their subscribers know its name."""


class Notices:
    """What the clients of one broker have been told."""

    def __init__(self, tables: Tables, out: BrokerEffects) -> None:
        self._tables, self._out = tables, out
        self.cuts = 0
        """How often all have been told; a subscription keeps how often that was when it was made."""
        self._gone: dict[str, LostPublisher] = {}

    def last_of(self, publisher: str) -> int:
        """The last event that could be heard of a publisher that is or was out of reach."""
        gone = self._gone.get(publisher)
        return gone.last if gone is not None else 0

    def cut(self, ads: Iterable[Ad]) -> None:
        """These were lost with a link: one notice to everybody, though it may name nobody."""
        self.cuts += 1
        lost = {name: LostPublisher(self.cuts, last, topics) for name, (last, topics) in _by_publisher(ads).items()}
        for name, gone in lost.items():
            self._gone.pop(name, None)
            self._gone[name] = gone
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        on_topics = _OnTopics({name: gone.topics for name, gone in lost.items()})
        for client, subs in self._tables.local_clients():
            named = on_topics.names(self._topics_wanted(subs))
            self._out.send(Address(client), OverlayCut(tuple((name, lost[name].last) for name in named)))

    def heard_again(self, ads: Iterable[Ad]) -> None:
        """These can be heard from now on: names them to whom they have not been named."""
        back = {name: topics for name, (_, topics) in _by_publisher(ads).items()}
        gone = {name: self._gone.pop(name) for name in back if name in self._gone}
        told = {cut: _OnTopics({name: g.topics for name, g in gone.items() if g.cut == cut}) for cut in _cuts(gone)}
        on_topics = _OnTopics(back)
        for client, subs in self._tables.local_clients():
            named = {
                name: gone[name].last if name in gone else 0 for name in on_topics.names(self._topics_wanted(subs))
            }
            for cut, then in told.items():  # whoever was named to it when a link was lost
                earlier = [name for name in subs if self._tables.subs[name].since < cut]
                for name in then.names(self._topics_wanted(earlier)):
                    named.pop(name, None)
            if named:
                self._out.send(Address(client), OverlayCut(tuple(named.items())))

    def _topics_wanted(self, subs: Iterable[str]) -> Values:
        return reduce(or_, (_topics_of(self._tables.subs[name].filter) for name in subs), NOTHING)


class _OnTopics:
    """Publishers by the topics they advertise; many clients want the same topics, so each set is compared once."""

    def __init__(self, publishers: Mapping[str, Values]) -> None:
        self._publishers: dict[Values, list[str]] = {}
        for name, topics in publishers.items():
            self._publishers.setdefault(topics, []).append(name)
        self._found: dict[Values, list[str]] = {}

    def names(self, wanted: Values) -> list[str]:
        if wanted not in self._found:
            met = (names for topics, names in self._publishers.items() if wanted.overlaps(topics))
            self._found[wanted] = [name for names in met for name in names]
        return self._found[wanted]


def _cuts(gone: Mapping[str, LostPublisher]) -> dict[int, None]:
    return {each.cut: None for each in gone.values()}


def _by_publisher(ads: Iterable[Ad]) -> dict[str, tuple[int, Values]]:
    """How far each had come, and the topics of its advertisements."""
    found: dict[str, tuple[int, Values]] = {}
    for ad in ads:
        _, topics = found.get(ad.publisher, (0, NOTHING))
        found[ad.publisher] = (ad.progress.last, topics | _topics_of(ad.filter))
    return found


def _topics_of(filter: Filter) -> Values:
    """The topics of which a filter selects something."""
    sides = (dict(box.sides).get(TOPIC, EVERYTHING) for box in filter.boxes)
    return reduce(or_, sides, NOTHING)
