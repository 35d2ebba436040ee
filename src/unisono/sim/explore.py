"""All interleavings of a small case: every order in which pending messages can be handled, each state visited once.

Random runs miss what needs three rare coincidences; a small instance explored whole does not. A `Situation` is a set of
machines and the messages on their way. Between two hosts messages keep their order where `fifo` says so and overtake
each other at will elsewhere; what the ENS carries arrives in any order. Inputs from above wait in scripts, one
per host, each in its order. `Persist` and timers are nothing here: nobody crashes, and nobody waits.

    start = settle(Situation.of({"home": node, "s": client}).tell("s", Subscribe((T,))))
    found = explore(start, {"p": [Publish(T, "a"), Publish(T, "b")]}, at_end=lambda final: check(final.delivered("s")))

Hosts here are the machines themselves, without `Sessions`: FIFO links stand for what sessions provide. States of a
machine are told apart by their pickled form, so a machine that keeps the same facts in another order counts as another
state: that costs time, never a missed case.

**What makes it cheap.** A machine is a function of its state and its input, and in a million situations it is in one
of some hundred states. So whatever occurs (states, messages, what lies in a lane, what was delivered) is noted once
and has a number from then on; a step of a machine is computed once for every state and message, and remembered; a
situation is some twenty numbers. Nothing is left out for that: the situations are those of the plain way, each
once.
"""

import io
import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from unisono.errors import InvariantError
from unisono.machine import Broadcast, Deliver, Heard, Join, Joined, Leave, Machine, Send, one_by_one
from unisono.model.time import Micros

ENS = "the ENS"
SCRIPT, NOWHERE = -1, -2


class MessagePath(NamedTuple):
    """A way for messages: between two hosts, or from the ENS for one topic."""

    source: str
    to: str
    topic: int = -1


class NextMove(NamedTuple):
    """One possible next step: a host handles a message, from a lane or (`SCRIPT`) the next one of its script."""

    host: int
    lane: int
    message: int


class MachineAnswer(NamedTuple):
    """What a machine in one state makes of one message."""

    state: int
    delivered: tuple[int, ...]
    sends: tuple[tuple[int, int], ...]
    """Lane and message."""
    requests: tuple[tuple[str, int, int], ...]
    """To the ENS: what, the topic, and the message that comes of it."""


class _Pickler(pickle.Pickler):
    """What cannot change is told by its number, so equal machines give equal bytes whichever of it they share; what can
    change stays shared as it is."""

    def __init__(self, file: io.BytesIO, number: Callable[[Any], int]) -> None:
        super().__init__(file, protocol=5)
        self._number = number

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind is str or kind is tuple or (issubclass(kind, Struct) and kind.__struct_config__.frozen):
            try:
                return self._number(obj)
            except TypeError:  # something in it can change
                return None
        return None


class _Unpickler(pickle.Unpickler):
    """The other way round."""

    def __init__(self, frozen: bytes, values: list[Any]) -> None:
        super().__init__(io.BytesIO(frozen))
        self._values = values

    def persistent_load(self, pid: Any) -> Any:
        return self._values[pid]


class _Numbers:
    """Values that can be hashed, each with a number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        number = self._known.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Memory:
    """All that has occurred in one case, by number. Number 0 is the empty tuple."""

    def __init__(self, names: Sequence[str], fifo: Callable[[str, str], bool]) -> None:
        self.names = list(names)
        self._numbers, self._inside = _Numbers(), _Numbers()
        self.noted = self._numbers.values
        self.number = self._numbers.number
        self.number(())
        self._fifo = fifo
        self._in_order: dict[int, bool] = {}
        self._answers: dict[tuple[int, int, int], MachineAnswer | InvariantError] = {}
        self._puts: dict[tuple[int, int, int], int] = {}
        self._moves: dict[int, tuple[NextMove, ...]] = {}

    def freeze(self, value: Any) -> int:
        """The number of a message or a machine."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._inside.number).dump(value)
        return self.number(buffer.getvalue())

    def thaw(self, number: int) -> Any:
        return _Unpickler(self.noted[number], self._inside.values).load()

    def host(self, name: str) -> int:
        return self.names.index(name)

    def lane(self, source: str, to: str, topic: int = -1) -> int:
        number = self.number(MessagePath(source, to, topic))
        if number not in self._in_order:
            self._in_order[number] = source != ENS and self._fifo(source, to)
        return number

    # What lies in a lane has a number too: of (lane, messages). Where messages may overtake it is kept as a bag.

    def put(self, lane: int, content: int, message: int) -> int:
        key = (lane, content, message)
        after = self._puts.get(key)
        if after is None:
            messages = (*(self.noted[content][1] if content else ()), message)
            after = self._puts[key] = self.number((lane, messages if self._in_order[lane] else tuple(sorted(messages))))
        return after

    def take(self, content: int, message: int) -> int:
        lane, messages = self.noted[content]
        at = messages.index(message)
        rest = messages[:at] + messages[at + 1 :]
        return self.number((lane, rest)) if rest else 0

    def moves(self, content: int) -> tuple[NextMove, ...]:
        """What may be handled next of what lies in a lane."""
        moves = self._moves.get(content)
        if moves is None:
            lane, messages = self.noted[content]
            host = self.host(self.noted[lane].to)
            heads = messages[:1] if self._in_order[lane] else dict.fromkeys(messages)
            moves = self._moves[content] = tuple([NextMove(host, lane, message) for message in heads])
        return moves

    def answer(self, host: int, state: int, message: int) -> MachineAnswer:
        key = (host, state, message)
        answer = self._answers.get(key)
        if answer is None:
            try:
                answer = self._ask(*key)
            except InvariantError as error:
                answer = error
            self._answers[key] = answer
        if isinstance(answer, InvariantError):
            raise answer
        return answer

    def _ask(self, host: int, state: int, message: int) -> MachineAnswer:
        machine, name = self.thaw(state), self.names[host]
        delivered: list[int] = []
        sends: list[tuple[int, int]] = []
        requests: list[tuple[str, int, int]] = []
        for effect in machine.handle(self.thaw(message), Micros(0)):
            match effect:
                case Send(to=to, message=sent) if to in self.names:
                    sends.append((self.lane(name, to), self.freeze(sent)))
                case Broadcast(topic=topic, message=sent, control=control):
                    requests.append(("broadcast", topic, self.freeze(Heard(topic, sent, control))))
                case Join(topic=topic):
                    requests.append(("join", topic, self.freeze(Joined(topic))))
                case Leave(topic=topic):
                    requests.append(("leave", topic, 0))
                case Deliver(item=item):
                    delivered += [self.freeze(one) for one in one_by_one(item)]
                case _:
                    pass
        return MachineAnswer(self.freeze(machine), tuple(delivered), tuple(sends), tuple(requests))


class Situation(NamedTuple):
    """A state of the whole, in the numbers of its memory."""

    memory: Memory
    states: tuple[int, ...]
    """Of every host's machine."""
    histories: tuple[int, ...]
    """What every host has delivered."""
    members: int = 0
    """Who listens to what at the ENS."""
    scripts: int = 0
    """What every host will still be told from above."""
    lanes: tuple[int, ...] = ()
    """What is on its way."""

    @staticmethod
    def of(machines: Mapping[str, Machine], fifo: Callable[[str, str], bool] = lambda source, to: True) -> "Situation":
        memory = Memory(list(machines), fifo)
        return Situation(memory, tuple(map(memory.freeze, machines.values())), (0,) * len(machines))

    def machine(self, host: str) -> Any:
        """A copy of a host's machine as it is now."""
        return self.memory.thaw(self.states[self.memory.host(host)])

    def delivered(self, host: str) -> list[Any]:
        """What a host has delivered to its application, in order."""
        memory = self.memory
        return list(map(memory.thaw, memory.noted[self.histories[memory.host(host)]]))

    def tell(self, host: str, *messages: Any) -> "Situation":
        """Lets a host handle inputs from above now."""
        after = self
        for message in messages:
            after = after.after(NextMove(self.memory.host(host), NOWHERE, self.memory.freeze(message)))
        return after

    def with_scripts(self, scripts: Mapping[str, Sequence[Any]]) -> "Situation":
        memory = self.memory
        inputs = [tuple(map(memory.freeze, scripts.get(name, ()))) for name in memory.names]
        return self._replace(scripts=memory.number(tuple(inputs)))

    def moves(self) -> Iterator[NextMove]:
        """Everything that may happen next."""
        for content in self.lanes:
            yield from self.memory.moves(content)
        for host, inputs in enumerate(self.memory.noted[self.scripts]):
            if inputs:
                yield NextMove(host, SCRIPT, inputs[0])

    def after(self, move: NextMove) -> "Situation":
        """The situation when a move has been made."""
        memory, states, histories, members, scripts, contents = self
        host, lane, message = move
        noted = memory.noted
        answer = memory.answer(host, states[host], message)
        lanes = {noted[content][0]: content for content in contents}
        if lane >= 0:
            lanes[lane] = memory.take(lanes[lane], message)
        elif lane == SCRIPT:
            inputs = noted[scripts]
            scripts = memory.number(_with(inputs, host, inputs[host][1:]))
        for to, sent in answer.sends:
            lanes[to] = memory.put(to, lanes.get(to, 0), sent)
        for what, topic, sent in answer.requests:
            listeners = noted[members]
            if what == "broadcast":
                for joined, name in listeners:
                    if joined == topic:
                        to = memory.lane(ENS, name, topic)
                        lanes[to] = memory.put(to, lanes.get(to, 0), sent)
                continue
            me = (topic, memory.names[host])
            own = memory.lane(ENS, memory.names[host], topic)
            if what == "join":
                members = memory.number(tuple(sorted({*listeners, me})))
                lanes[own] = memory.put(own, lanes.get(own, 0), sent)
            else:
                members = memory.number(tuple(member for member in listeners if member != me))
                lanes[own] = 0
        if answer.delivered:
            items = noted[histories[host]] + answer.delivered
            histories = _with(histories, host, memory.number(items))
        contents = tuple(sorted([content for content in lanes.values() if content]))
        return Situation(memory, _with(states, host, answer.state), histories, members, scripts, contents)

    def key(self) -> bytes:
        """Equal for equal situations of one memory, and only for those."""
        return array("I", (*self.states, *self.histories, self.members, self.scripts, *self.lanes)).tobytes()

    def tell_of(self, move: NextMove) -> str:
        """A move in words."""
        source = f" of {self.memory.noted[move.lane].source}" if move.lane >= 0 else ""
        return f"{self.memory.names[move.host]} handles {self.memory.thaw(move.message)!r}{source}"


class Explored(NamedTuple):
    """How far an exploration came."""

    states: int
    finals: int
    is_complete: bool
    """False: `states_max` was reached, and some orders were not tried."""


class BrokenError(InvariantError):
    """A check failed; the text tells the moves that led there."""


def settle(situation: Situation, moves_max: int = 100_000) -> Situation:
    """Makes moves, always the first one possible, until nothing is on its way."""
    for _ in range(moves_max):
        move = next(situation.moves(), None)
        if move is None:
            return situation
        situation = situation.after(move)
    raise InvariantError(f"this does not come to rest: {moves_max} moves")


def explore(
    start: Situation,
    scripts: Mapping[str, Sequence[Any]],
    at_end: Callable[[Situation], None],
    states_max: int = 200_000,
) -> Explored:
    """Visits every situation that can follow; `at_end` checks those in which nothing is left to do, and raises."""
    start = start.with_scripts(scripts)
    seen = {start.key()}
    finals = 0
    open_states: list[tuple[Situation, Any]] = [(start, None)]  # with the way there: (way before, move)
    while open_states:
        situation, way = open_states.pop()
        is_final = True
        for move in situation.moves():
            is_final = False
            try:
                after = situation.after(move)
            except InvariantError as error:
                raise BrokenError(f"{error}; after: {_tell(situation, (way, move))}") from error
            key = after.key()
            if key not in seen:
                if len(seen) >= states_max:
                    return Explored(len(seen), finals, is_complete=False)
                seen.add(key)
                open_states.append((after, (way, move)))
        if is_final:
            finals += 1
            try:
                at_end(situation)
            except AssertionError as error:
                raise BrokenError(f"{error}; after: {_tell(situation, way)}") from error
    return Explored(len(seen), finals, is_complete=True)


def _tell(situation: Situation, way: Any) -> str:
    moves = []
    while way is not None:
        way, move = way
        moves.append(situation.tell_of(move))
    return "; ".join(reversed(moves))


def _with(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])
