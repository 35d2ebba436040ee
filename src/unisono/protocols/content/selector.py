"""A mapping layer: content above, topics beneath (paper 000, section 3.3; its reference [17]).

It decorates a client machine (an ordering module, or any other with the interface of a topic broker) and has that
interface itself, with a filter. A topic with a grid is a set of cells, each a topic to the machine inside: an event is
published in the one cell it lies in, a subscription joins the cells its filter meets, and what is heard there and does
not match is dropped. A topic without a grid is one cell: all of it is heard, and filtered after delivery.

Order needs nothing here. The machine inside orders events across the topics of a subscription, so it orders them across
cells, whichever cells others have joined; leaving events out of a sequence moves none of the others. What is promised
within a topic only is promised within a cell: without causal order, events of one publisher in two cells may change
places, for all subscribers alike.

Notices speak of the topics inside: a number, a gap, a base are those of a cell. A topic with a grid has a `Joined` of
its own when all its cells that the filter meets are in force; `Selected` comes when a new filter decides alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from unisono.errors import MisuseError
from unisono.machine import (
    Deliver,
    Effect,
    Heard,
    Joined,
    Machine,
    Publish,
    Refused,
    Select,
    Selected,
    Subscribe,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event, EventRow
from unisono.model.grid import Cell, Grid
from unisono.model.ids import Topic
from unisono.model.predicate import EVERY_EVENT, Filter, flatten
from unisono.model.time import Micros

Content = Callable[[Event], Mapping[str, object]]


def attributes(event: Event) -> Mapping[str, object]:
    return event.attributes


class Cells:
    """A topic's grid, and the topics that are its cells."""

    def __init__(self, grid: Grid, topics: Mapping[Cell, Topic]) -> None:
        self.grid, self.topics = grid, dict(topics)


class Selector:
    """Selects by content over the machine inside; `where` holds for all topics subscribed to."""

    def __init__(self, inside: Machine, where: Filter = EVERY_EVENT, content: Content = attributes) -> None:
        """`content` says what filters see of an event; publishers must choose its cell by the same."""
        self.inside = inside
        self._content = content
        self._where = where
        self._old: Filter | None = None  # while a new filter is taking over, what came before it
        self._grids: dict[Topic, Cells] = {}
        self._wanted: dict[Topic, dict[Topic, None]] = {}  # topic subscribed to -> its cells that are joined
        self._missing: dict[Topic, None] = {}  # cells of grids asked for and not in force yet
        self._untold: dict[Topic, None] = {}  # topics with a grid that are not in force yet

    def know(self, topic: Topic, cells: Cells) -> None:
        """This topic has a grid; to be told before the topic is used."""
        self._grids[topic] = cells

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=said, request=request) if topic in self._grids:
                events = said if isinstance(said, tuple | EventRow) else (said,)
                effects = [e for i, event in enumerate(events) for e in self._publish(topic, event, request + i, now)]
            case Subscribe(topics=topics):
                effects = self._subscribe(topics, now)
            case Unsubscribe(topics=topics):
                effects = self._unsubscribe(topics, now)
            case Select(where=where):
                effects = self._select(where, now)
            case _:
                effects = self._ask(message, now)
        if self._old is not None and not self._missing:
            effects += self._take_over(now)
        return effects

    def _publish(self, topic: Topic, event: Event, request: int, now: Micros) -> list[Effect]:
        try:
            cell = self._grids[topic].grid.cell_of(flatten(self._content(event)))
        except MisuseError as error:
            return [Deliver(Refused(request, str(error)))]
        return self._ask(Publish(self._grids[topic].topics[cell], event, request), now)

    # Subscribing.

    def _cells(self, topic: Topic) -> dict[Topic, None]:
        """The topics inside that a subscription to this one joins."""
        cells = self._grids.get(topic)
        if cells is None:
            return {topic: None}
        return dict.fromkeys(cells.topics[cell] for cell in cells.grid.cells_met(self._where))

    def _subscribe(self, topics: tuple[Topic, ...], now: Micros) -> list[Effect]:
        new: dict[Topic, None] = {}
        for topic in dict.fromkeys(topics):
            if topic not in self._wanted:
                self._wanted[topic] = self._cells(topic)
                new.update(self._wanted[topic])
                if topic in self._grids:
                    self._untold[topic] = None
                    self._missing.update(self._wanted[topic])
        # All at once: the machine inside makes one subscription of them.
        return self._ask(Subscribe(tuple(new)), now) if new else []

    def _unsubscribe(self, topics: tuple[Topic, ...], now: Micros) -> list[Effect]:
        gone: dict[Topic, None] = {}
        for topic in topics:
            gone.update(self._wanted.pop(topic, {}))
            self._untold.pop(topic, None)
        for cell in gone:
            self._missing.pop(cell, None)
        return self._ask(Unsubscribe(tuple(gone)), now) if gone else []

    def _select(self, where: Filter, now: Micros) -> list[Effect]:
        """Joins what the new filter meets beyond the old one. Until that is in force, events of either pass."""
        self._old = self._where if self._old is None else self._old | self._where
        self._where = where
        new: dict[Topic, None] = {}
        for topic, joined in self._wanted.items():
            beyond = {cell: None for cell in self._cells(topic) if cell not in joined}
            joined.update(beyond)
            new.update(beyond)
        self._missing.update(new)
        return self._ask(Subscribe(tuple(new)), now) if new else []

    def _take_over(self, now: Micros) -> list[Effect]:
        """The new filter decides alone, and cells that only the old one met are left."""
        self._old = None
        gone: list[Topic] = []
        for topic, joined in self._wanted.items():
            self._wanted[topic] = kept = self._cells(topic)
            gone += [cell for cell in joined if cell not in kept]
        effects = self._ask(Unsubscribe(tuple(gone)), now) if gone else []
        return [*effects, Deliver(Selected())]

    # The machine inside.

    def _ask(self, message: Any, now: Micros) -> list[Effect]:
        kept: list[Effect] = []
        for effect in self.inside.handle(message, now):
            if type(effect) is Deliver:
                match effect.item:
                    case Heard(message=Event() as event):
                        if not self._matches(event):
                            continue
                    case Heard(message=(tuple() | EventRow()) as events) if not all(map(self._matches, events)):
                        each = one_by_one(effect.item)
                        kept += [Deliver(heard) for heard in each if self._matches(heard.message)]
                        continue
                    case Joined(topic=cell):
                        self._missing.pop(cell, None)
                        if any(cell in joined for joined in self._wanted.values()):
                            kept.append(effect)
                            kept += self._in_force(cell)
                        continue  # the machine inside ends a change under way before it begins to leave
                    case _:
                        pass
            kept.append(effect)
        return kept

    def _matches(self, event: Event) -> bool:
        try:
            flat = flatten(self._content(event))
        except MisuseError:  # no publisher of ours lets it pass: NaN, broken text
            return False
        return self._where.matches(flat) or (self._old is not None and self._old.matches(flat))

    def _in_force(self, cell: Topic) -> list[Effect]:
        told = [
            t for t in self._untold if cell in self._wanted[t] and not any(c in self._missing for c in self._wanted[t])
        ]
        for topic in told:
            del self._untold[topic]
        return [Deliver(Joined(topic)) for topic in told]
