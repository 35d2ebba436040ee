"""Every machine of the house, with what the contract tests need to know of it. A new protocol adds its entry here."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, get_args

from tests.machine.toys import Counting, Ledger
from tests.papers.clock import conversations
from unisono.machine import (
    Accepted,
    CutOff,
    Fired,
    Gap,
    Heard,
    Joined,
    Layered,
    Machine,
    Missed,
    NotTaken,
    Paused,
    Publish,
    Refused,
    Restarted,
    Select,
    Selected,
    Stack,
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event
from unisono.model.grid import Axis, Grid
from unisono.model.ids import Address, Topic
from unisono.model.predicate import parse
from unisono.model.time import Micros
from unisono.protocols.content.selector import Cells, Selector
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine, FifoMessage, Numbered
from unisono.protocols.groups.coordinator import GroupCoordinator
from unisono.protocols.groups.member import BeginsAfter, Processed, Quit, ShareHolder
from unisono.protocols.groups.messages import SHARES, Commit, Enlist, Enlisted, Portion, Release, Resign
from unisono.structures.sessions import BroadcastsDone, Frame, Handled, Sessions

ME, PEER = Address("me"), Address("peer")


class Entry(NamedTuple):
    """A machine, a way to make it talk, and what an honest peer never says."""

    name: str
    build: Callable[[], Machine]
    draw: Callable[[Random, int], Any]
    """Draws the n-th input of a conversation: mostly sensible, from the whole message union."""
    inputs: tuple[type, ...]
    """The message union; each must come up in a few conversations."""
    illegal: tuple[Any, ...]
    """Answered by Refuse alone, in any state, and changing nothing."""


INPUTS = 300


def conversation(entry: Entry, seed: int) -> list[tuple[Any, Micros]]:
    """What a machine gets to hear, and when."""
    dice, now = Random(seed), 0
    inputs = []
    for n in range(INPUTS):
        now += dice.randrange(200_000)
        inputs.append((entry.draw(dice, n), Micros(now)))
    return inputs


def draw_fifo(dice: Random, n: int) -> Any:
    topic = Topic(dice.randrange(3))
    match dice.randrange(10):
        case 0:
            return Publish(topic, n, request=n)
        case 1:
            return Subscribe((topic,))
        case 2:
            return Joined(topic)
        case 3 if dice.random() < 0.2:
            return Unsubscribe((topic, topic))
        case 4:
            return Fired(dice.choice(["peer", "other"]))
        case 5:
            notices = (
                Gap(topic, n, n, "lost"),
                Stalled(topic, Micros(n), "down"),
                CutOff((("p", n),), "a link was lost"),
                Selected(),
                Accepted(n),
                Refused(n, ""),
                Unknown(n, ""),
                NotTaken(topic, n, "full"),
                Missed(topic),
                Paused(n % 2 == 0),
            )
            return dice.choice(notices)
        case _:
            number = max(1, n - 250 + dice.randrange(260))
            before = {Topic(t): dice.randrange(1, number) for t in range(3) if number > 1}
            return Heard(topic, Numbered(Address(dice.choice(["peer", "other"])), number, before, n))


def draw_sessions(dice: Random, n: int) -> Any:
    match dice.randrange(6):
        case 0:
            return Publish(Topic(0), n)
        case 1:
            return Handled(PEER, 0, resend=dice.random() < 0.5)
        case 2:
            return Fired(f"session {PEER}")
        case 3:
            return Restarted()
        case 4:
            return BroadcastsDone(0)
        case _:
            return Frame(PEER, dice.randrange(1, n + 2), dice.randrange(100))


def draw_ledgers(dice: Random, n: int) -> Any:
    """For a stack of two, whichever is beneath."""
    topic, lower, upper = Topic(dice.randrange(3)), *dice.sample(["red", "blue"], 2)
    match dice.randrange(8):
        case 0:
            return Publish(topic, n)
        case 1:
            return Subscribe((topic,))
        case 2 if dice.random() < 0.3:
            return Unsubscribe((topic,))
        case 3:
            return Joined(topic)
        case 4:
            return dice.choice([Fired(f"{lower}/wake"), Restarted()])
        case 5:
            return Layered(upper, n)
        case _:
            return Heard(topic, [lower, dice.randrange(1, n + 2), [upper, dice.randrange(1, n + 2), n]])


def ledgers(lower: str, upper: str) -> Entry:
    return Entry(
        f"stack of two durable ones, {lower} beneath {upper}",
        lambda: Stack(**{lower: Ledger(lower), upper: Ledger(upper)}),
        draw_ledgers,
        (Publish, Subscribe, Unsubscribe, Heard, Joined, Fired, Restarted, Layered),
        (Fired("basement/wake"), Layered("basement", 1), Heard(Topic(0), "marked by nobody")),
    )


def draw_content(dice: Random, n: int) -> Any:
    """For a selector over FIFO; topic 9 is cut, its cells are 0, 1 and 2."""
    match dice.randrange(5):
        case 0:
            event = Event("me", n + 1, "t", attributes={"x": dice.choice([n % 20, float("nan")])})
            return Publish(Topic(9), event, request=n)
        case 1:
            return dice.choice([Subscribe((Topic(9),)), Unsubscribe((Topic(9),))])
        case 2:
            return Select(parse(f"x < {n % 20} or x > {n % 30}"))
        case _:
            return draw_fifo(dice, n)


def selector() -> Machine:
    made = Selector(FifoMachine(ME, FifoConfig(held_max=20)), parse("x > 5"))
    made.know(Topic(9), Cells(Grid([Axis("x", cuts=(10,))]), {(cell,): Topic(cell) for cell in range(3)}))
    return made


def draw_groups(dice: Random, n: int) -> Any:
    """For a coordinator: three members of two groups, as members speak and as strangers might."""
    group, member = dice.choice(["billing", "turns"]), dice.choice(["a", "b", "c"])
    shares, some = SHARES if group == "billing" else 1, {dice.randrange(SHARES): dice.randrange(1 + n // 8)}
    portions = (Portion(some, dice.choice([None, {"t": n}])),)
    match dice.randrange(9):
        case 0:
            return Commit(PEER, n, group, member, portions)
        case 1:
            return Release(PEER, n, group, member, portions)
        case 2 if dice.random() < 0.3:
            return Resign(PEER, n, group, member)
        case 3:
            return Fired(f"{group}/{member}")
        case 4 if dice.random() < 0.3:
            return Restarted()
        case _:
            return Enlist(PEER, n, group, member, shares, dice.randrange(3))


def draw_member(dice: Random, n: int) -> Any:
    """For a member: it begins, holds some shares, and hears of others."""
    match n if n < 2 else dice.randrange(6):
        case 0:
            return Subscribe(())
        case 1:
            return Enlisted(1, "me", 1, (Portion({0: 1, 1: 1}, None),))
        case 2:
            return Fired("beat")
        case 3:
            return BeginsAfter({"t": 3}) if n < 20 else Processed({"t": n}, n)
        case 4 if n > 250 and dice.random() < 0.1:
            return Quit()
        case _:
            held = {0: 1, 1: 1} if dice.random() < 0.95 else {2: 2}
            wanted = (1,) if dice.random() < 0.1 else ()
            return Enlisted(dice.randrange(n + 1), "me", 1, dice.choice([None, (Portion(held, {"t": 1}),)]), wanted)


MACHINES = [
    Entry(
        "coordinator of groups",
        GroupCoordinator,
        draw_groups,
        (Enlist, Commit, Release, Resign, Fired, Restarted),
        (Commit(PEER, 1, "billing", "a", (Portion({SHARES: 1}, {}),)), Heard(Topic(0), "an event")),
    ),
    Entry(
        "member of a group",
        lambda: ShareHolder(ME, "me", PEER, "billing", SHARES),
        draw_member,
        (Subscribe, Enlisted, Fired, BeginsAfter, Processed, Quit),
        (Heard(Topic(0), "an event"), Fired("nobody")),
    ),
    Entry(
        "fifo",
        lambda: FifoMachine(ME, FifoConfig(held_max=20)),
        draw_fifo,
        get_args(FifoMessage),
        (
            Heard(Topic(77), Numbered(PEER, 1, {}, "on a topic nobody asked for")),
            Heard(Topic(0), "not numbered"),
            Heard(Topic(0), Numbered(PEER, 0, {Topic(0): 0}, "numbers count from 1")),
            Heard(Topic(0), Numbered(PEER, 3, {Topic(1): 3}, "before itself")),
            Joined(Topic(77)),
            Fired("nobody"),
        ),
    ),
    Entry(
        "selector by content over fifo",
        selector,
        draw_content,
        (*get_args(FifoMessage), Select),
        (Heard(Topic(0), "not numbered"), Joined(Topic(77)), Fired("nobody")),
    ),
    Entry(
        "sessions",
        lambda: Sessions(Counting(PEER), ME, (PEER,), int, int),
        draw_sessions,
        (Publish, Handled, Fired, Restarted, BroadcastsDone, Frame),
        (
            Frame(Address("stranger"), 1, 5),
            Handled(Address("stranger"), 1),
        ),
    ),
    Entry(
        "stack of two",
        lambda: Stack(lower=FifoMachine(ME), upper=FifoMachine(ME)),
        lambda dice, n: Fired("upper/peer") if dice.random() < 0.1 else draw_fifo(dice, n),
        (Publish, Subscribe, Unsubscribe, Heard, Joined, Fired),
        (Fired("basement/peer"), Heard(Topic(77), "on a topic nobody asked for")),
    ),
    ledgers("red", "blue"),
    ledgers("blue", "red"),
    Entry(
        "stamper of the clock order",
        conversations.stamper,
        conversations.draw_stamper,
        conversations.STAMPER_INPUTS,
        conversations.STAMPER_ILLEGAL,
    ),
    Entry(
        "client of the clock order",
        conversations.client,
        conversations.draw_client,
        conversations.CLIENT_INPUTS,
        conversations.CLIENT_ILLEGAL,
    ),
]
