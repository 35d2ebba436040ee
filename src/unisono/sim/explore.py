"""All interleavings of a small case: every order in which pending messages can be handled, each state visited once.

Random runs miss what needs three rare coincidences; a small instance explored whole does not. A `Situation` is a set of
machines and the messages on their way. Between two hosts messages keep their order where `fifo` says so and overtake
each other at will elsewhere; what the ENS carries arrives in any order. Inputs from above wait in scripts, one
per host, each in its order. `Persist` and timers are nothing here: nobody crashes, and nobody waits.

    start = settle(Situation.of({"home": node, "s": client}).tell("s", Subscribe((T,))))
    found = explore(start, {"p": [Publish(T, "a"), Publish(T, "b")]}, at_end=lambda final: check(final.delivered("s")))

Hosts here are the machines themselves, without `Sessions`: FIFO links stand for what sessions provide. States are told
apart by their pickled form, so a machine that keeps the same facts in another order counts as another state: that
costs time, never a missed case.
"""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from unisono.errors import InvariantError
from unisono.machine import Broadcast, Deliver, Heard, Join, Joined, Leave, Machine, Send, one_by_one
from unisono.model.time import Micros

Channel = tuple[str, str, int]
"""From, to, and the topic for what the ENS carries (else -1)."""
ENS = "the ENS"


class Move(NamedTuple):
    """One possible next step: a host handles a message."""

    host: str
    channel: Channel | None
    """Where the message comes from; None: the host's script."""
    place: int
    message: bytes

    def __str__(self) -> str:
        return f"{self.host} handles {pickle.loads(self.message)!r}" + (
            f" of {self.channel[0]}" if self.channel else ""
        )


class Situation(NamedTuple):
    """A state of the whole: everything in it is immutable, machines and messages are pickled."""

    machines: tuple[tuple[str, bytes], ...]
    fifo: Callable[[str, str], bool]
    channels: tuple[tuple[Channel, tuple[bytes, ...]], ...] = ()
    members: tuple[tuple[int, str], ...] = ()
    scripts: tuple[tuple[str, tuple[bytes, ...]], ...] = ()
    delivered_items: tuple[tuple[str, tuple[bytes, ...]], ...] = ()

    @staticmethod
    def of(machines: Mapping[str, Machine], fifo: Callable[[str, str], bool] = lambda source, to: True) -> "Situation":
        return Situation(tuple((name, _freeze(machine)) for name, machine in machines.items()), fifo)

    def machine(self, host: str) -> Any:
        """A copy of a host's machine as it is now."""
        return pickle.loads(dict(self.machines)[host])

    def delivered(self, host: str) -> list[Any]:
        """What a host has delivered to its application, in order."""
        return [pickle.loads(item) for item in dict(self.delivered_items).get(host, ())]

    def tell(self, host: str, *messages: Any) -> "Situation":
        """Lets a host handle inputs from above now."""
        after = self
        for message in messages:
            after = after.after(Move(host, None, -1, _freeze(message)))
        return after

    def with_scripts(self, scripts: Mapping[str, Sequence[Any]]) -> "Situation":
        return self._replace(scripts=tuple((host, tuple(map(_freeze, inputs))) for host, inputs in scripts.items()))

    def moves(self) -> Iterator[Move]:
        """Everything that may happen next."""
        for channel, messages in self.channels:
            in_order = channel[0] != ENS and self.fifo(channel[0], channel[1])
            for index, message in enumerate(messages[:1] if in_order else messages):
                if message not in messages[:index]:
                    yield Move(channel[1], channel, index, message)
        for host, inputs in self.scripts:
            if inputs:
                yield Move(host, None, 0, inputs[0])

    def after(self, move: Move) -> "Situation":
        """The situation when a move has been made."""
        machines = dict(self.machines)
        channels = dict(self.channels)
        scripts = dict(self.scripts)
        members = dict.fromkeys(self.members)
        delivered = dict(self.delivered_items)
        if move.channel is not None:
            waiting = channels[move.channel]
            channels[move.channel] = waiting[: move.place] + waiting[move.place + 1 :]
        elif move.place >= 0:
            scripts[move.host] = scripts[move.host][1:]
        machine = pickle.loads(machines[move.host])

        def put(channel: Channel, message: Any) -> None:
            channels[channel] = (*channels.get(channel, ()), _freeze(message))

        for effect in machine.handle(pickle.loads(move.message), Micros(0)):
            match effect:
                case Send(to=to, message=message) if to in machines:
                    put((move.host, to, -1), message)
                case Broadcast(topic=topic, message=message, control=control):
                    for joined, host in members:
                        if joined == topic:
                            put((ENS, host, topic), Heard(topic, message, control))
                case Join(topic=topic):
                    members[topic, move.host] = None
                    put((ENS, move.host, topic), Joined(topic))
                case Leave(topic=topic):
                    members.pop((topic, move.host), None)
                    channels.pop((ENS, move.host, topic), None)
                case Deliver(item=item):
                    items = [_freeze(one) for one in one_by_one(item)]
                    delivered[move.host] = (*delivered.get(move.host, ()), *items)
                case _:
                    pass
        machines[move.host] = _freeze(machine)
        return Situation(
            tuple(machines.items()),
            self.fifo,
            tuple(sorted((channel, messages) for channel, messages in channels.items() if messages)),
            tuple(sorted(members)),
            tuple(scripts.items()),
            tuple(sorted(delivered.items())),
        )

    def digest(self) -> bytes:
        """Equal situations have equal digests; what lies in an unordered channel is compared as a bag."""
        channels = [
            (channel, messages if channel[0] != ENS and self.fifo(channel[0], channel[1]) else sorted(messages))
            for channel, messages in self.channels
        ]
        whole = (self.machines, channels, self.members, self.scripts, self.delivered_items)
        return blake2b(_freeze(whole), digest_size=16).digest()


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
    seen = {start.digest(): None}
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
                raise BrokenError(f"{error}; after: {_tell((way, move))}") from error
            digest = after.digest()
            if digest not in seen:
                if len(seen) >= states_max:
                    return Explored(len(seen), finals, is_complete=False)
                seen[digest] = None
                open_states.append((after, (way, move)))
        if is_final:
            finals += 1
            try:
                at_end(situation)
            except AssertionError as error:
                raise BrokenError(f"{error}; after: {_tell(way)}") from error
    return Explored(len(seen), finals, is_complete=True)


def _tell(way: Any) -> str:
    moves = []
    while way is not None:
        way, move = way
        moves.append(str(move))
    return "; ".join(reversed(moves))


def _freeze(value: Any) -> bytes:
    """Pickled without memo: equal values give equal bytes whether or not parts of them are shared."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.fast = True
    pickler.dump(value)
    return buffer.getvalue()
