"""Random conversations with a stamper and with a client, for the tests of the machines' contract."""

from random import Random
from typing import Any

from tests.papers.clock.parts import HOMES, ME, STAMPERS, A, B, P, Q, kept
from unisono.machine import Fired, Heard, Joined, Missed, Paused, Publish, Restarted, Subscribe, Unsubscribe
from unisono.model.event import Event, Payload
from unisono.model.ids import Address, Topic
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import (
    AskBase,
    AskBeat,
    AskLanes,
    Base,
    Beat,
    BrokerMessage,
    ClockBound,
    Closed,
    CloseLane,
    Create,
    Entry,
    FetchEntries,
    Gone,
    Granted,
    KeyRules,
    LaneClaim,
    LaneEnded,
    LaneName,
    Lanes,
    LaneStamps,
    Leased,
    Listen,
    NotKept,
    Opened,
    OpenLane,
    PeerMessage,
    Reading,
    RenewLease,
    SetLean,
    StampDenied,
    Stamped,
    StampTaken,
    Tick,
    Tide,
    Wake,
)
from unisono.protocols.clock.stamper import UNNUMBERED, StamperMachine, repeats
from unisono.structures.sessions import BroadcastsDone, Frame, Sessions

SMALL = ClockConfig(window=5, waiting_max=3, kept_max=4, held_max=10, listeners_max=2)


def stamper() -> Sessions:
    inside = StamperMachine(0, STAMPERS, HOMES.get, kept(0), SMALL)
    return Sessions(
        inside, STAMPERS[0], STAMPERS[1:], PeerMessage, BrokerMessage, repeats=repeats, unnumbered=UNNUMBERED
    )


STAMPER_INPUTS = (
    Create, Beat, Tick, Wake, AskBeat, Listen, FetchEntries, AskLanes, AskBase, Fired, SetLean, Restarted, Frame,
    BroadcastsDone,
)  # fmt: skip
STAMPER_ILLEGAL = (
    Fired("nobody"),
    StampTaken(1, 1),
    Beat(STAMPERS[0], 1, 1, 1, 1, ()),
    AskBeat(Address("nobody")),
    Wake(Address("nobody")),
    Tick(STAMPERS[0], 1, 1, 1),
    Create(P, STAMPERS[1], 1, ((A, 1),), 0, 0),
    AskLanes(P, B, 1),
    FetchEntries(P, LaneName(A, 1, 0), 1, 2),
)


def draw_stamper(dice: Random, n: int) -> Any:
    topic, clock = Topic(dice.randrange(2)), n * 100_000
    lane = LaneName(topic, 0, dice.choice([0, 0, 1, 2]))
    match dice.randrange(9):
        case 0 | 1:
            topics = tuple((Topic(dice.randrange(2)), dice.randint(1, 3)) for _ in range(dice.randint(1, 3)))
            first = dice.randint(1, max(1, n // 8))
            return Create(
                dice.choice([P, Q, ME]), STAMPERS[0], first, topics, dice.randrange(clock + 1), dice.randrange(first)
            )
        case 2:
            claims = (LaneClaim(topic, 0, n, clock, 0),) if dice.random() < 0.5 else ()
            other = dice.choice([1, 2])
            return Beat(
                STAMPERS[other],
                1,
                max(1, n // 9),
                clock + dice.choice([0, 0, 10**8]),
                clock,
                claims,
                dice.random() < 0.3,
            )
        case 3:
            return dice.choice(
                [
                    Listen(P, (A, B)),
                    Listen(Q, (B,), clock),
                    Listen(ME, ()),
                    AskBeat(STAMPERS[dice.choice([1, 2])]),
                    Wake(STAMPERS[dice.choice([1, 2])]),
                    Tick(STAMPERS[dice.choice([1, 2])], 1, max(1, n // 9), clock),
                ]
            )
        case 4:
            return dice.choice([FetchEntries(P, lane, 1, n + 1), AskLanes(P, A, n), AskBase(P, lane, n)])
        case 5:
            return Fired(dice.choice(["beat", "tick", "ceiling", "renew", "warm"]))
        case 6 if n % 50 == 7:
            return Restarted()
        case 6:
            rules = KeyRules(dice.random() < 0.5, dice.choice([0, 0, 20_000]))
            lean = SetLean(topic, dice.randrange(-50_000, 50_000))
            return dice.choice([lean, lean, BroadcastsDone(0), rules, ClockBound(dice.choice([-1, 0, 1_000]))])
        case _:
            peer = dice.choice([1, 2])
            said = [
                OpenLane(peer, A, clock),
                Granted(B, dice.randint(1, 3), clock, clock + 10**6),
                CloseLane(peer, A, dice.randint(1, 3), dice.randrange(3), clock),
                LaneEnded(B, dice.randint(1, 3)),
                NotKept(B),
                RenewLease(peer, clock),
                Leased(1, clock + 10**6),
            ]
            return Frame(STAMPERS[peer], dice.randint(1, 8), dice.choice(said))


def client() -> ClockClient:
    return ClockClient(ME, 0, STAMPERS, HOMES.get, SMALL)


CLIENT_INPUTS = (
    Publish, Subscribe, Unsubscribe, Heard, Joined, Missed, Paused, Fired, LaneStamps, Tide, StampTaken, StampDenied,
    Lanes, Base, Gone,
)  # fmt: skip
CLIENT_ILLEGAL = (Fired("nobody"), AskBeat(STAMPERS[1]), Heard(A, "neither payload nor stamps"))


def draw_client(dice: Random, n: int) -> Any:
    topic, stamp = Topic(dice.randrange(2)), n * 1_000
    lane = LaneName(topic, HOMES[topic], 0) if dice.random() < 0.6 else LaneName(topic, 2, dice.randint(1, 3))
    place = dice.randint(1, 1 + n // 20)
    match dice.randrange(10):
        case 0:
            return Publish(topic, Event("me", n + 1, "t"), request=n)
        case 1:
            return Subscribe((topic,)) if dice.random() < 0.8 else Unsubscribe((topic,))
        case 2:
            return dice.choice((Joined(topic), Joined(topic), Joined(topic), Missed(topic), Paused(n % 2 == 0)))
        case 3:
            return Fired("tick")
        case 4:
            return Tide((Reading(lane.stamper, stamp, (LaneClaim(topic, lane.epoch, place, stamp, 0),)),))
        case 5:
            return (
                StampTaken(dice.randrange(1 + n // 30), stamp)
                if dice.random() < 0.7
                else StampDenied(1 + n // 30, "full")
            )
        case 6:
            lanes = ((2, 1),) if dice.random() < 0.5 else ()
            return Lanes(topic, dice.randint(1, 4), dice.randrange(3), stamp, lanes)
        case 7:
            answer = Base(lane, dice.randint(1, 4), dice.randrange(3), stamp, dice.random() < 0.3)
            return answer if dice.random() < 0.7 else Gone(lane, place)
        case 8:
            return Heard(topic, Payload(dice.choice([P, Q]), place, Event("p", place, "t")))
        case _:
            entries: list[Entry] = [
                Stamped(stamp, dice.choice([P, Q]), place),
                Opened(stamp + 1, 2),
                Closed(stamp + 2, 2, dice.randint(1, 3), dice.choice([-1, 1]), stamp),
            ]
            stamps = LaneStamps(lane, place, tuple(entries[: dice.randint(1, 3)]))
            return stamps if dice.random() < 0.3 else Heard(topic, stamps, control=True)
