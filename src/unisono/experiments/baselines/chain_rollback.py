"""The thesis' chapter 4 to the letter: replicas that order by the chain's timestamps, apply at once and roll back.

Managers are those of `chain`. A publisher multicasts its operation when its timestamp is complete. A key is the numbers
of the topics up to its own, compared one after the other: all replicas have the same topics, so keys are total. What
is held back is applied after a time, or when there is no more room; with `eager` as soon as no number is missing
before it. That does not say enough: (n, 1) belongs between (n) and (n + 1), and nobody can know that it is coming.
"""

from typing import assert_never

from unisono.experiments.baselines.chain import ChainTicket, ChainTicketed, Visit
from unisono.machine import Accepted, Deliver, Effect, Fired, Publish, Send, SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.uec.log import KeyedLog, PlacedOperation
from unisono.protocols.uec.messages import Placed

ChainKey = tuple[int, ...]


class ChainReplica:
    """Publisher and replica at once; every other replica hears what it publishes."""

    def __init__(
        self,
        me: Address,
        replicas: tuple[Address, ...],
        managers: dict[Topic, Address],
        hold_us: Micros = Micros(0),
        hold_max: int = 0,
        eager: bool = False,
    ) -> None:
        self._me, self._managers, self._eager = me, managers, eager
        self._others = tuple(replica for replica in replicas if replica != me)
        self._open: dict[int, Event] = {}
        self._topics: dict[int, Topic] = {}
        self._events: dict[str, Event] = {}
        self._local: dict[int, int] = {}  # the last number applied of each topic
        self.log: KeyedLog[ChainKey] = KeyedLog(hold_us, hold_max)

    def handle(self, message: Publish | ChainTicket | ChainTicketed | Fired, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=event, request=request):
                self._open[request], self._topics[request] = event, topic
                return [Send(self._managers[topic], Visit(self._me, request, topic))]
            case ChainTicket(request=request, entries=entries):
                topic = self._topics.pop(request)
                upto = {x: number for x, number in entries.items() if x <= topic}
                ticketed = ChainTicketed(upto, self._open.pop(request))
                sent: list[Effect] = [Send(other, ticketed) for other in self._others]
                return [*sent, Deliver(Accepted(request)), *self._hear(ticketed, now)]
            case ChainTicketed():
                return self._hear(message, now)
            case Fired():
                return [*self._placed(self.log.release(now)), *self._until_release()]
            case _:
                assert_never(message)

    def _hear(self, ticketed: ChainTicketed, now: Micros) -> list[Effect]:
        key = tuple(number for _, number in sorted(ticketed.entries.items()))
        self._events[ticketed.event.id] = ticketed.event
        effects = self._placed(self.log.add(key, ticketed.event.id, now))
        while (
            self._eager and (ready := next((held for held in self.log.held if self._is_next(held)), None)) is not None
        ):
            effects += self._placed(self.log.release_upto(ready))
        return [*effects, *self._until_release()]

    def _until_release(self) -> list[Effect]:
        release = self.log.next_release
        return [] if release is None else [SetTimer("hold", release)]

    def _is_next(self, key: ChainKey) -> bool:
        """Nothing that comes before it can be missing."""
        *above, own = key
        return own == self._local.get(len(above), 0) + 1 and all(
            number <= self._local.get(topic, 0) for topic, number in enumerate(above)
        )

    def _placed(self, changes: list[PlacedOperation[ChainKey]]) -> list[Effect]:
        for change in changes:
            topic = len(change.key) - 1
            self._local[topic] = max(self._local.get(topic, 0), change.key[-1])
        return [Deliver(Placed(change.key, self._events[change.operation], change.undone)) for change in changes]
