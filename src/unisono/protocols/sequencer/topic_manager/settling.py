"""Whose a topic is, after nodes have lost data and go on (REBORN, HOMES; decision 25 and the one on homes).

A home may have moved after the moment to which a node was set back: the node believes to have what it gave away, and
knows nothing of what it was given. Every hop of a topic has a number, which both ends of the link remember, so the
highest number that anybody near remembers tells where it went last. A node that is reborn orders and answers nothing
until its children, and then its parent, have said what they have and what they gave to it. Then it keeps what nobody
knows a later hop of, gives up what is elsewhere, and takes what was given to it and is in nobody's hands; that is
begun again, like all that it keeps. Where both ends of a link have forgotten, the parent decides.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from unisono.machine import Deliver, Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.messages import (
    AllRecalled,
    AllYours,
    Born,
    Disproved,
    Done,
    Fill,
    NotYours,
    Proven,
    Recalled,
    Relocate,
    Yours,
)
from unisono.protocols.sequencer.topic_manager.numbering import Numbering
from unisono.protocols.sequencer.topic_manager.site import Site
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic
from unisono.structures.hosting import Announced, AtHome

REST_US = Micros(1 * SECOND)
"""After it has settled, a node numbers nothing for so long: who listened hears that the topics begin again, and comes
back, before there is anything new to miss."""
Held = Fill | Done | Proven | Disproved | Announced | Relocate
"""What neighbours say only once, and a node that has forgotten can not handle yet."""


class _Known(NamedTuple):
    """The last that somebody remembers of a topic."""

    moves: int
    number: int
    is_gone: bool
    """It left that side of the link."""


class _Place(NamedTuple):
    moves: int
    number: int
    where: Address | None
    """This node, or the child below which it is; None: not here and not below."""
    is_lost: bool = False
    """It was on its way here, or here, and what was known of it is gone."""


class Settling:
    """What a node that has forgotten hears from its neighbours, and what it tells those that have."""

    def __init__(self, site: Site, numbering: Numbering, learn: Callable[[Topic, Address, list[Effect]], None]) -> None:
        self._site, self._numbering, self._learn = site, numbering, learn
        self.first = 0
        """Numbers begin after this; later incarnations never issue what earlier ones did."""
        self.is_open = False
        """We have forgotten, and do not know yet what is ours."""
        self.rests = False
        """We know what is ours, and wait for those who listen."""
        self.recalling: dict[Address, None] = {}
        """Children that have not told us yet what we have forgotten."""
        self.held: list[Held] = []
        self._round = 0  # questions to the parent are counted, so that an old answer is not taken for a new one
        self._claims: dict[Address, dict[Topic, _Known]] = {}
        self._asking: dict[Address, int] = {}
        self._ours: dict[Topic, _Known] = {}  # what our parent says is below it by way of us
        self._not_ours: dict[Topic, int] = {}

    # We have forgotten, or a neighbour has.

    def begin(self, first: int, now: Micros, out: list[Effect]) -> None:
        self.first, self.is_open = first, True
        self.recalling, self.held = dict.fromkeys(self._site.children), []
        self._claims, self._asking = {}, {}
        self._go_on(now, out)

    def child_reborn(self, child: Address) -> None:
        """Whatever it has said was said by one that it is no longer."""
        self._claims.pop(child, None)
        self._asking.pop(child, None)
        if self.is_open:
            self.recalling[child] = None

    def parent_reborn(self, now: Micros, out: list[Effect]) -> None:
        if self.is_open:
            self._go_on(now, out)
        else:
            self._tell_above({topic: self._own(topic) for topic in self._topics()}, 0, out)

    def recall(self, message: Recalled) -> None:
        known = _Known(message.moves, message.number, message.is_gone)
        self._claims.setdefault(message.child, {})[message.topic] = known

    def all_recalled(self, message: AllRecalled, now: Micros, out: list[Effect]) -> None:
        self._asking[message.child] = message.asks
        if self.is_open:
            self.recalling.pop(message.child, None)
            self._go_on(now, out)
        else:
            self._answer(message.child, out)

    def yours(self, message: Yours) -> None:
        if self.is_open:
            self._ours[message.topic] = _Known(message.moves, message.number, False)

    def not_yours(self, message: NotYours, out: list[Effect]) -> None:
        topic, site = message.topic, self._site
        if self.is_open:
            self._not_ours[topic] = message.moves
        elif topic in site.clock:
            if topic in site.below:
                out.append(Send(site.below[topic], message))
            self._place(topic, _Place(message.moves, site.clock[topic], None))
            site.split_anew()
            out.append(Deliver(AtHome(tuple(site.hosted))))

    def all_yours(self, message: AllYours, now: Micros, out: list[Effect]) -> None:
        if self.is_open and not self.recalling and message.asks == self._round:
            self._settle(now, out)

    def rest(self, now: Micros, out: list[Effect]) -> None:
        self.rests = True
        self._site.set_timer("rest", Micros(now + REST_US), out)

    @property
    def missing(self) -> str:
        """Who has not spoken yet, in words."""
        children = ", ".join(self.recalling)
        return f"its children know: {children}" if children else f"its parent knows: {self._site.parent}"

    # What is told.

    def _go_on(self, now: Micros, out: list[Effect]) -> None:
        if self.recalling:
            return
        if self._site.parent is None:
            self._settle(now, out)
            return
        self._round += 1
        self._ours, self._not_ours = {}, {}
        self._tell_above(self._places(), self._round, out)

    def _tell_above(self, places: dict[Topic, _Place], asks: int, out: list[Effect]) -> None:
        parent, me = self._site.above(), self._site.me
        for topic, place in places.items():
            out.append(Send(parent, Recalled(topic, me, place.number, place.moves, place.where is None)))
        out.append(Send(parent, AllRecalled(me, asks)))

    def _answer(self, child: Address, out: list[Effect]) -> None:
        """We know what is ours; the child, unless it asks, knows that too, and may have to hear otherwise."""
        site, claims, asks = self._site, self._claims.pop(child, {}), self._asking.pop(child, 0)
        for topic, known in claims.items():
            if topic not in site.moves and topic not in site.clock and (asks or not known.is_gone):
                self._learn(topic, child, out)
            moves = site.moves.get(topic, 0)
            if site.below.get(topic) == child:
                site.saw(topic, known.number)
                site.moves[topic] = max(moves, known.moves)
            elif not known.is_gone:
                out.append(Send(child, NotYours(topic, max(moves, known.moves))))
        if asks:
            for topic, where in site.below.items():
                if where == child and (topic not in claims or claims[topic].is_gone):
                    out.append(Send(child, Yours(topic, site.moves.get(topic, 0), site.clock[topic])))
            out.append(Send(child, AllYours(asks)))

    # What is ours.

    def _topics(self) -> Iterator[Topic]:
        yield from dict.fromkeys([*self._site.clock, *self._site.left])

    def _own(self, topic: Topic) -> _Place:
        site = self._site
        where = site.me if topic in site.hosted else site.below.get(topic)
        return _Place(site.moves.get(topic, 0), site.clock.get(topic, site.left.get(topic, 0)), where)

    def _places(self) -> dict[Topic, _Place]:
        """Where the topics are, as far as we and our children remember: the last hop that anybody knows of counts."""
        places: dict[Topic, _Place] = {}
        for topic in self._topics():
            places[topic] = own = self._own(topic)
            child = self._site.below.get(topic)
            if child is not None and not self._has(child, topic) and not self._asking.get(child):
                places[topic] = _Place(own.moves, own.number, self._site.me, is_lost=True)  # it never got there
        for child, claims in self._claims.items():
            for topic, known in claims.items():
                place = places.get(topic)
                if known.is_gone:
                    if place is None or known.moves > place.moves:
                        places[topic] = _Place(known.moves, known.number, self._site.me, is_lost=True)
                elif place is None or known.moves >= place.moves:
                    number = max(known.number, place.number if place is not None else 0)
                    places[topic] = _Place(known.moves, number, child)
        return places

    def _has(self, child: Address, topic: Topic) -> bool:
        known = self._claims.get(child, {}).get(topic)
        return known is not None and not known.is_gone

    def _settle(self, now: Micros, out: list[Effect]) -> None:
        site, me = self._site, self._site.me
        places = self._places()
        for topic, known in self._ours.items():
            place = places.get(topic)
            if place is None or place.where is None or known.moves > place.moves:
                moves = max(known.moves, place.moves if place is not None else 0)
                places[topic] = _Place(moves, known.number, me, is_lost=True)
        for topic, moves in self._not_ours.items():
            places[topic] = _Place(moves, places[topic].number if topic in places else 0, None)
        self.is_open, self._ours, self._not_ours = False, {}, {}
        self.rest(now, out)
        for topic, place in places.items():
            self._place(topic, place)
            if place.where == me:
                self._begin_again(topic, place, now, out)
        site.split_anew()
        out.append(Deliver(AtHome(tuple(site.hosted))))
        for child in site.children:
            self._answer(child, out)

    def _place(self, topic: Topic, place: _Place) -> None:
        """Unless it is here."""
        site = self._site
        site.decisions.forget(topic)
        site.moves[topic] = place.moves
        if place.where == site.me:
            return
        site.hosted.pop(topic, None)
        site.below.pop(topic, None)
        site.left.pop(topic, None)
        self._numbering.marking.pop(topic, None)
        self._numbering.followed.pop(topic, None)
        if place.where is None:
            site.clock.pop(topic, None)
            site.left[topic] = place.number
        else:
            site.below[topic] = place.where
            site.clock[topic] = max(site.clock.get(topic, 0), place.number)

    def _begin_again(self, topic: Topic, place: _Place, now: Micros, out: list[Effect]) -> None:
        """At numbers where no earlier life of the topic can have been; nobody subscribes any more."""
        site, least = self._site, self._numbering.shared_subscriptions_min
        site.below.pop(topic, None)
        site.left.pop(topic, None)
        home = site.hosted.setdefault(topic, HostedTopic(topic, least))
        issued = max(site.clock.get(topic, 0), place.number)
        number = site.clock[topic] = max(issued + 1, self.first)
        home.begin_again(number, least)
        self._numbering.mark(topic, now, out)  # whoever still listens asks, and hears that it is forgotten
        if place.is_lost:
            site.moves[topic] = place.moves + 1
            up = site.parent
            out.append(Deliver(Announced(topic)) if up is None else Send(up, Born(topic, site.me)))

    # Durability.

    def snapshot(self) -> Any:
        return {
            "first": self.first,
            "is_open": self.is_open,
            "rests": self.rests,
            "recalling": list(self.recalling),
            "held": [msgspec.to_builtins(message) for message in self.held],
            "round": self._round,
            "claims": {
                child: {t: list(known) for t, known in claims.items()} for child, claims in self._claims.items()
            },
            "asking": dict(self._asking),
            "ours": {topic: list(known) for topic, known in self._ours.items()},
            "not_ours": dict(self._not_ours),
        }

    def restore(self, snapshot: Any) -> None:
        self.first, self.is_open, self._round = snapshot["first"], snapshot["is_open"], snapshot["round"]
        self.rests, self.recalling = snapshot["rests"], dict.fromkeys(snapshot["recalling"])
        self.held = msgspec.convert(snapshot["held"], list[Held])
        self._claims = {
            child: {topic: _Known(*known) for topic, known in claims.items()}
            for child, claims in snapshot["claims"].items()
        }
        self._asking = dict(snapshot["asking"])
        self._ours = {topic: _Known(*known) for topic, known in snapshot["ours"].items()}
        self._not_ours = dict(snapshot["not_ours"])
