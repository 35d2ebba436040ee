"""The contract of a protocol core: a message in, effects out, nothing else.

A machine reads no clock, rolls no dice of its own, writes no log and waits for nobody. `handle` is total over the
machine's message union; an illegal message from a peer is answered by `Refuse` and changes nothing; a broken local
invariant raises `InvariantError`. The simulator, the asyncio node and Spark drive the same machines.

**Effects are performed in list order.** `Persist` has no content: it says that *the input now being handled* must
be durable before any later effect of the list becomes visible outside. Because machines are deterministic, the log
of inputs is the state: a restarted driver restores the last snapshot, handles the logged inputs again with their
times, ignores the effects, and then gives `Restarted`. So every input that changes durable state emits `Persist`
(an input with nothing after it costs an append, not a sync), and one that does not must leave no trace that matters.
A driver may handle many inputs, make them durable in one commit and then perform the effects of all in order.

**Layers.** The service beneath a machine (a broker, or another machine) is asked by `Broadcast`, `Join`, `Leave` and
answers with `Heard` and `Joined`; it says what it has not taken (`NotTaken`), where it may have lost something
(`Missed`), and that it brings nothing for a while (`Paused`). What a machine `Deliver`s is an input of the machine
above. The same three requests reach a machine from above as `Publish`, `Subscribe`, `Unsubscribe`. So an ordering
module has the interface of the broker it stands on, and blocks stack in any order (`Stack`).
"""

from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from unisono.model.event import EventRow
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Filter
from unisono.model.time import Micros


class Send(Struct, frozen=True, tag="Send", gc=False):
    """Send a message to one peer."""

    to: Address
    message: Any


class Broadcast(Struct, frozen=True, tag="Broadcast", gc=False):
    """Publish on the service beneath; control messages travel beside the topic, where plain consumers do not look."""

    topic: Topic
    message: Any
    control: bool = False


class Join(Struct, frozen=True, tag="Join"):
    """Subscribe at the service beneath; `Joined` comes back when everything published from then on will be heard."""

    topic: Topic


class Leave(Struct, frozen=True, tag="Leave"):
    """Unsubscribe at the service beneath; effective at once."""

    topic: Topic


class Deliver(Struct, frozen=True, tag="Deliver", gc=False):
    """Hand something to the layer above: an event, a notice, an outcome."""

    item: Any


class SetTimer(Struct, frozen=True, tag="SetTimer"):
    """Ask for `Fired(key)` at the moment `at`; setting a key again moves its timer."""

    key: str
    at: Micros


class CancelTimer(Struct, frozen=True, tag="CancelTimer"):
    """Forget a timer; unknown keys are fine."""

    key: str


class Persist(Struct, frozen=True, tag="Persist"):
    """The input now being handled must be durable before any later effect leaves this machine."""


class Refuse(Struct, frozen=True, tag="Refuse"):
    """The message was illegal and changed nothing."""

    reason: str


Effect = Send | Broadcast | Join | Leave | Deliver | SetTimer | CancelTimer | Persist | Refuse

PERSIST = Persist()


class Publish(Struct, frozen=True, tag="Publish", gc=False):
    """From above: publish this on a topic. `request` names it in the outcome that is delivered back.

    Where a machine takes several events at once `message` is `Events`; their names are `request` and those after it.
    """

    topic: Topic
    message: Any
    request: int = 0
    control: bool = False
    deadline_us: int = 0
    """How long after its publication the event is of use, where events have deadlines; 0: as long as all."""


class Subscribe(Struct, frozen=True, tag="Subscribe"):
    """From above: subscribe to these topics, together."""

    topics: tuple[Topic, ...]


class Unsubscribe(Struct, frozen=True, tag="Unsubscribe"):
    """From above: leave these topics."""

    topics: tuple[Topic, ...]


class Select(Struct, frozen=True, tag="Select"):
    """From above: of all topics subscribed to only what matches, from now on; `Selected` says when it is in force."""

    where: Filter


class Advertise(Struct, frozen=True, tag="Advertise"):
    """From above: on this topic only what matches will be published; an event outside is announced first, and waits."""

    topic: Topic
    publisher: str
    where: Filter


class Heard(Struct, frozen=True, tag="Heard", gc=False):
    """From beneath: this was published on a topic we joined. `number` is its place in the topic, if it has one.

    A machine that delivers several events of a topic in a row may deliver them as one: `message` is then `Events`, and
    their numbers are `number` and those after it, `spacing` apart; 0: they have none (`one_by_one` takes it apart).
    """

    topic: Topic
    message: Any
    control: bool = False
    number: int = 0
    late: bool = False
    spacing: int = 1


class Joined(Struct, frozen=True, tag="Joined"):
    """From beneath: the subscription is in force; everything published from now on will be heard.

    Where topics have numbers, nothing up to `base` is owed, and nothing comes before the numbers of `gate` have.
    """

    topic: Topic
    base: int = 0
    gate: dict[Topic, int] = {}


class NotTaken(Struct, frozen=True, tag="NotTaken"):
    """From beneath: the service has definitely not taken what was broadcast as this request of ours.

    `outcome` is the name that the publication has above, if it is known here.
    """

    topic: Topic
    request: int
    reason: str
    outcome: int = 0


class Missed(Struct, frozen=True, tag="Missed"):
    """From beneath: what was published on this topic lately may have passed us by, and will not be brought again."""

    topic: Topic


class Paused(Struct, frozen=True, tag="Paused"):
    """From beneath: whoever is above has no room, so nothing is brought; all of it comes when there is room again."""

    is_paused: bool


class Selected(Struct, frozen=True, tag="Selected"):
    """From beneath: the filter of the last `Select` decides alone, and all that is published and matches comes."""


class Fired(Struct, frozen=True, tag="Fired"):
    """From the driver: a timer set earlier has come due."""

    key: str


class Restarted(Struct, frozen=True, tag="Restarted"):
    """From the driver: you have just been restored from disk; send again what may not have left, set your timers."""


class Gap(Struct, frozen=True, tag="Gap"):
    """A notice: numbers `first` to `last` of the topic will not come, and delivery goes on without them.

    Where events have no number in their topic, `publisher` is set and the numbers are his own. By clock events of
    others may lie between those that are missing, and come afterwards: `settled` is the number up to which nothing more
    comes then, and -1 where that is `last`.
    """

    topic: Topic
    first: int
    last: int
    reason: str
    publisher: str = ""
    settled: int = -1


class CutOff(Struct, frozen=True, tag="CutOff"):
    """A notice: these publishers cannot be heard any more, each with the number of its last event that could be.

    What they publish until they are heard again will not come.
    """

    publishers: tuple[tuple[str, int], ...]
    reason: str


class Stalled(Struct, frozen=True, tag="Stalled"):
    """A notice: the topic waits for somebody who cannot be reached; other topics go on.

    With `ends` it waits in vain: nothing more of it can be told under this address.
    """

    topic: Topic
    since: Micros
    reason: str
    ends: bool = False


class Accepted(Struct, frozen=True, tag="Accepted", gc=False):
    """An outcome: the event has a durable number (`ordered`), or its payload is kept as well (`stored`).

    Where there are no durable numbers it was handed to the service beneath, and nothing more (`sent`).

    `count` consecutive requests may have it together.
    """

    request: int
    strength: str = "ordered"
    count: int = 1


class Refused(Struct, frozen=True, tag="Refused"):
    """An outcome: the event was definitely not published."""

    request: int
    reason: str


class Unknown(Struct, frozen=True, tag="Unknown"):
    """An outcome: it may or may not have been published; nobody answered in time."""

    request: int
    reason: str


def one_by_one(item: Any) -> list[Any]:
    """What was delivered, with every event and every outcome on its own."""
    match item:
        case Heard(topic=topic, message=(tuple() | EventRow()) as events, control=control, number=number, late=late):
            step = item.spacing
            return [Heard(topic, event, control, number + i * step, late) for i, event in enumerate(events)]
        case Accepted(request=request, strength=strength, count=count) if count > 1:
            return [Accepted(request + i, strength) for i in range(count)]
        case _:
            return [item]


Notice = Heard | Joined | Selected | Gap | CutOff | Stalled | Accepted | Refused | Unknown
"""What a machine delivers to the layer above."""


@runtime_checkable
class Machine(Protocol):
    """What every driver drives."""

    def handle(self, message: Any, now: Micros) -> list[Effect]: ...


@runtime_checkable
class DurableMachine(Machine, Protocol):
    """A machine that emits `Persist`. A snapshot is plain data (no pickle) that the machine's factory takes back."""

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any) -> None: ...


class Layered(Struct, frozen=True, tag="Layered"):
    """A peer message of one layer of a stack, on its way between two stacks of the same shape."""

    layer: str
    message: Any


class Stack:
    """Machines on top of each other, lowest first; itself a machine.

    Peer messages and timers are namespaced by the layer's name. Requests from above enter at the top, what the broker
    says enters at the bottom, `Restarted` is for every layer, the lowest first. A stack is durable
    (has `snapshot` and `restore`) if all its layers are: the log of its inputs rebuilds a layer only together with
    those beneath it, so one that forgets makes the whole stack one that starts anew.
    """

    def __init__(self, **layers: Machine) -> None:
        self._names = list(layers)
        self._layers = list(layers.values())
        if all(isinstance(layer, DurableMachine) for layer in self._layers):
            # On the instance: drivers ask each machine whether it is durable.
            self.snapshot, self.restore = self._snapshot, self._restore

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case Layered(layer=name, message=inner):
                if name not in self._names:
                    return [Refuse(f"no layer {name!r} in this stack of {', '.join(self._names)}")]
                self._run(self._names.index(name), inner, now, effects)
            case Fired(key=key):
                name, _, inner_key = key.partition("/")
                if name not in self._names:
                    return [Refuse(f"no layer {name!r} in this stack of {', '.join(self._names)}")]
                self._run(self._names.index(name), Fired(inner_key), now, effects)
            case Heard() | Joined() | NotTaken() | Missed() | Paused():
                self._run(0, message, now, effects)
            case Restarted():
                for index in range(len(self._layers)):
                    self._run(index, message, now, effects)
            case _:
                self._run(len(self._layers) - 1, message, now, effects)
        return effects

    def _run(self, index: int, message: Any, now: Micros, effects: list[Effect]) -> None:
        name, top = self._names[index], index == len(self._layers) - 1
        for effect in self._layers[index].handle(message, now):
            match effect:
                case Send(to=to, message=inner):
                    effects.append(Send(to, Layered(name, inner)))
                case SetTimer(key=key, at=at):
                    effects.append(SetTimer(f"{name}/{key}", at))
                case CancelTimer(key=key):
                    effects.append(CancelTimer(f"{name}/{key}"))
                case Deliver(item=item) if not top:
                    for one in one_by_one(item):
                        self._run(index + 1, one, now, effects)
                case Broadcast(topic=topic, message=inner, control=control) if index > 0:
                    self._run(index - 1, Publish(topic, inner, control=control), now, effects)
                case Join(topic=topic) if index > 0:
                    self._run(index - 1, Subscribe((topic,)), now, effects)
                case Leave(topic=topic) if index > 0:
                    self._run(index - 1, Unsubscribe((topic,)), now, effects)
                case _:
                    effects.append(effect)

    def _snapshot(self) -> Any:
        return {name: layer.snapshot() for name, layer in self._durable()}

    def _restore(self, snapshot: Any) -> None:
        for name, layer in self._durable():
            layer.restore(snapshot[name])

    def _durable(self) -> list[tuple[str, DurableMachine]]:
        pairs = zip(self._names, self._layers, strict=True)
        return [(name, layer) for name, layer in pairs if isinstance(layer, DurableMachine)]
