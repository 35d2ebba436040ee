"""The contract of `unisono.machine`, tested once for all machines."""

import os
import pickle
import subprocess
import sys
from typing import get_args

import msgspec
import pytest

from tests.machine.registry import INPUTS, MACHINES, Entry, conversation
from unisono.machine import DurableMachine, Effect, Machine, Persist, Refuse, Restarted

EFFECTS = get_args(Effect)
every_machine = pytest.mark.parametrize("entry", MACHINES, ids=lambda entry: entry.name)
durable_machines = pytest.mark.parametrize(
    "entry", [entry for entry in MACHINES if isinstance(entry.build(), DurableMachine)], ids=lambda entry: entry.name
)


def state(machine: Machine) -> bytes:
    return pickle.dumps(machine)


@every_machine
def test_every_message_of_the_union_is_answered_by_effects(entry: Entry) -> None:
    drawn: dict[type, None] = {}
    for seed in range(5):
        machine = entry.build()
        for message, now in conversation(entry, seed):
            drawn[type(message)] = None
            assert all(isinstance(effect, EFFECTS) for effect in machine.handle(message, now))
    assert [kind.__name__ for kind in entry.inputs if kind not in drawn] == []


@every_machine
def test_a_pickled_copy_goes_on_like_the_original(entry: Entry) -> None:
    machine = entry.build()
    for i, (message, now) in enumerate(conversation(entry, 1)):
        if i % 10 == 0:
            copy = pickle.loads(state(machine))
        assert machine.handle(message, now) == copy.handle(message, now)


@every_machine
def test_illegal_messages_are_refused_and_change_nothing(entry: Entry) -> None:
    machine = entry.build()
    for message, now in conversation(entry, 2):
        machine.handle(message, now)
        for wrong in entry.illegal:
            # Compared with a copy of a copy: pickling once may forget that two equal texts were one object.
            before = state(pickle.loads(state(machine)))
            assert [type(effect) for effect in machine.handle(wrong, now)] == [Refuse]
            assert state(pickle.loads(state(machine))) == before


@every_machine
def test_messages_never_change_hands(entry: Entry) -> None:
    """What a machine was given it may keep but not alter: other hosts hold the same object."""
    machine = entry.build()
    for message, now in conversation(entry, 3):
        before = state(message)
        machine.handle(message, now)
        assert state(message) == before


@durable_machines
def test_the_log_of_persisted_inputs_is_the_state(entry: Entry) -> None:
    living, log = entry.build(), []
    for message, now in conversation(entry, 4):
        if any(isinstance(effect, Persist) for effect in living.handle(message, now)):
            log.append((message, now))
    replayed = entry.build()
    for message, now in log:
        replayed.handle(message, now)
    assert isinstance(living, DurableMachine)
    assert isinstance(replayed, DurableMachine)
    assert replayed.snapshot() == living.snapshot()
    assert len(log) < INPUTS


@durable_machines
def test_a_snapshot_is_plain_data_and_restores_the_machine(entry: Entry) -> None:
    living = entry.build()
    for message, now in conversation(entry, 5):
        living.handle(message, now)
    assert isinstance(living, DurableMachine)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(living.snapshot()))
    restored = entry.build()
    assert isinstance(restored, DurableMachine)
    restored.restore(plain)
    assert restored.snapshot() == living.snapshot()
    assert restored.handle(Restarted(), now) == living.handle(Restarted(), now)
    for message, later in conversation(entry, 6):
        assert restored.handle(message, later) == living.handle(message, later)


TALK = """
from tests.machine.registry import MACHINES, conversation
for entry in MACHINES:
    machine = entry.build()
    for message, now in conversation(entry, 7):
        print(entry.name, machine.handle(message, now))
"""


def test_hash_seeds_do_not_matter() -> None:
    said = []
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", TALK], env=environment, capture_output=True, check=True, text=True)
        said.append(done.stdout)
    assert len(said[0].splitlines()) >= INPUTS * len(MACHINES)
    assert said[0] == said[1] == said[2]
