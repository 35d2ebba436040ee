"""A node remembers who is away exactly as long as its lease, and then for ever that it has forgotten it."""

from typing import Any

import pytest

import unisono.structures.leases
from unisono.audit import judge
from unisono.machine import CancelTimer, Deliver, Fired, SetTimer
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.sim.scenario import load, play
from unisono.structures.hosting import Forget, Lapse
from unisono.structures.leases import Away, ClientGone, ClientLeases, Here, Lapsed, LeaseEnded, Registered, Remembered

CLIENT, KEY = Address("c"), "lease c"
ONE, TWO = Address("c/1"), Address("c/2")


def leases(*messages: Any) -> ClientLeases:
    """After these, at the moment 5."""
    machine = ClientLeases(
        Micros(100), lambda sid: Address(sid.partition("/")[0]), lambda client: client.startswith("@")
    )
    for message in messages:
        machine.handle(message, Micros(5))
    return machine


def test_a_client_that_stays_away_is_forgotten_with_all_that_it_has_registered() -> None:
    machine = leases(Here(CLIENT), Registered(ONE), Registered(TWO))
    assert machine.handle(Away(CLIENT), Micros(5)) == [SetTimer(KEY, Micros(105))]
    assert list(machine.away) == [CLIENT]
    assert machine.handle(Fired(KEY), Micros(105)) == [
        Deliver(LeaseEnded(CLIENT, missed=True)),
        Deliver(Lapse(ONE)),
        Deliver(Lapse(TWO)),
    ]
    assert machine.is_forgotten(CLIENT)
    assert not machine.sids


def test_a_client_that_comes_back_in_time_has_lost_nothing() -> None:
    machine = leases(Here(CLIENT), Registered(ONE), Away(CLIENT))
    assert machine.handle(Here(CLIENT), Micros(104)) == [CancelTimer(KEY)]
    assert not machine.is_forgotten(CLIENT)
    assert machine.handle(Away(CLIENT), Micros(200)) == [SetTimer(KEY, Micros(300))], "a new lease"


def test_an_address_that_was_dead_before_a_restart_stays_dead() -> None:
    machine = leases(Lapsed((ONE, TWO)), Here(Address("d")))
    assert machine.is_forgotten(CLIENT)
    assert not machine.is_forgotten(Address("d"))


@pytest.mark.parametrize("seed", [5, 49])
def test_who_was_forgotten_before_a_restart_is_turned_away_after_it(seed: int) -> None:
    """Let in again, it had an event numbered twice (seed 5) and heard two events in another order than others (49)."""
    scenario = load("sequencer/leases")
    assert [verdict for verdict in judge(play(scenario, seed), scenario.promised) if not verdict.holds] == []


def test_whom_the_machine_remembers_and_nobody_has_seen_has_a_lease_from_then_on() -> None:
    machine = leases(Here(CLIENT))
    assert machine.handle(Remembered((ONE, Address("d/1"))), Micros(5)) == [SetTimer("lease d", Micros(105))]
    assert machine.handle(Remembered((Address("d/2"),)), Micros(50)) == [], "it has one"
    assert machine.handle(Fired("lease d"), Micros(105))[1:] == [
        Deliver(Lapse(Address("d/1"))),
        Deliver(Lapse(Address("d/2"))),
    ]


def test_what_has_said_goodbye_does_not_lapse() -> None:
    machine = leases(Here(CLIENT), Registered(ONE), Forget(ONE), Away(CLIENT))
    assert machine.handle(Fired(KEY), Micros(105)) == [Deliver(LeaseEnded(CLIENT))], "nobody misses it"


def test_a_party_with_a_name_of_its_own_may_come_back_whenever_it_likes() -> None:
    machine = leases(Here(Address("@sink")), Registered(Address("@sink")))
    assert machine.handle(Away(Address("@sink")), Micros(5)) == []
    assert machine.handle(ClientGone(CLIENT), Micros(5)) == []


def test_of_clients_that_have_registered_nothing_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unisono.structures.leases, "IDLE_MAX", 2)
    machine = leases(Here(CLIENT), Registered(ONE), Away(CLIENT))
    names = [Address(f"m{number}") for number in range(4)]
    told = [effect for name in names for one in (Here(name), Away(name)) for effect in machine.handle(one, Micros(5))]
    assert list(machine.away) == [CLIENT, *names[2:]]
    assert [effect for effect in told if not isinstance(effect, SetTimer)] == [
        effect for name in names[:2] for effect in (CancelTimer(f"lease {name}"), Deliver(LeaseEnded(name)))
    ]
    assert not machine.is_forgotten(names[0]), "it has lost nothing, and may come back"
    back = machine.handle(Here(names[2]), Micros(6)), machine.handle(Here(names[0]), Micros(6))
    assert back == ([CancelTimer(f"lease {names[2]}")], [])


def test_who_has_come_back_is_not_counted_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unisono.structures.leases, "IDLE_MAX", 1)
    machine = leases(Here(CLIENT), Away(CLIENT), Here(CLIENT))
    assert machine.handle(Away(Address("d")), Micros(5)) == [SetTimer("lease d", Micros(105))]
    assert list(machine.here) == [CLIENT]


def test_who_has_registered_nothing_and_stays_away_is_forgotten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unisono.structures.leases, "IDLE_MAX", 1)
    machine = leases(Here(CLIENT), Away(CLIENT))
    assert machine.handle(Fired(KEY), Micros(105)) == [Deliver(LeaseEnded(CLIENT))]
    other = Address("d")
    assert machine.handle(Away(other), Micros(200)) == [SetTimer("lease d", Micros(300))]


@pytest.mark.parametrize("seed", [0, 2, 10])
def test_nobody_disagrees_while_clients_are_away_for_longer_than_their_lease(seed: int) -> None:
    scenario = load("sequencer/leases")
    journal = play(scenario, seed)
    assert [verdict for verdict in judge(journal, scenario.promised) if verdict.is_violated] == []
