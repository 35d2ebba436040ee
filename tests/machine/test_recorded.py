"""The contract again, for every machine that has a stage, on conversations recorded from simulated runs."""

import pickle
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest

from unisono.machine import DurableMachine, Effect, Persist, Restarted
from unisono.model.time import Micros
from unisono.sim import scenario, stages
from unisono.structures.sessions import Sessions

INPUTS_MAX = 200


class Recorder:
    """Stands before a machine and keeps what it is given."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.inputs: list[tuple[Any, Micros]] = []

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self.inputs.append((message, now))
        return self.machine.handle(message, now)  # type: ignore[no-any-return]

    def snapshot(self) -> Any:
        return self.machine.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.machine.restore(snapshot)


class Recording(NamedTuple):
    """A machine as it was at first, and the inputs of its first life."""

    fresh: bytes
    inputs: list[tuple[Any, Micros]]

    def build(self) -> Any:
        return pickle.loads(self.fresh)


@cache
def recordings(protocol: str) -> dict[str, Recording]:
    """The longest conversation of each kind of machine of a protocol, in the first of its built-in scenarios."""
    name = next(name for name in scenario.names() if name.startswith(f"{protocol}/"))
    world = scenario.stage(scenario.with_options(scenario.load(name), {"faults": []}), seed=1)
    fresh = {address: pickle.dumps(host.machine) for address, host in world.hosts.items()}
    recorders = {}
    for address, host in world.hosts.items():
        host.turns.machine = recorders[address] = Recorder(host.machine)
    world.run(until=20_000_000)
    found: dict[str, Recording] = {}
    for address, recorder in sorted(recorders.items(), key=lambda item: -len(item[1].inputs)):
        machine = recorder.machine.inside if isinstance(recorder.machine, Sessions) else recorder.machine
        found.setdefault(type(machine).__name__, Recording(fresh[address], recorder.inputs[:INPUTS_MAX]))
    return found


every_protocol = pytest.mark.parametrize("protocol", stages.NAMES)


@every_protocol
def test_there_is_something_to_replay(protocol: str) -> None:
    assert max(len(recording.inputs) for recording in recordings(protocol).values()) >= 50


@every_protocol
def test_a_pickled_copy_goes_on_like_the_original_and_alters_no_message(protocol: str) -> None:
    for name, recording in recordings(protocol).items():
        machine = copy = recording.build()
        for i, (message, now) in enumerate(recording.inputs):
            if i % 10 == 0:
                copy = pickle.loads(pickle.dumps(machine))
            before = pickle.dumps(message)
            assert machine.handle(message, now) == copy.handle(message, now), name
            assert pickle.dumps(message) == before, name


@every_protocol
def test_a_snapshot_is_plain_data_and_restores_the_machine(protocol: str) -> None:
    for name, recording in recordings(protocol).items():
        living, restored = recording.build(), recording.build()
        if isinstance(living, DurableMachine):
            for message, now in recording.inputs:
                living.handle(message, now)
            restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(living.snapshot())))
            assert restored.snapshot() == living.snapshot(), name


@every_protocol
def test_behind_sessions_the_log_of_persisted_inputs_is_the_state(protocol: str) -> None:
    """Exactly once rests on it. A machine without sessions may snapshot hints that it can afford to forget."""
    for name, recording in recordings(protocol).items():
        living, replayed = recording.build(), recording.build()
        if isinstance(living, Sessions):
            for message, now in recording.inputs:
                if any(isinstance(effect, Persist) for effect in living.handle(message, now)):
                    replayed.handle(message, now)
            assert replayed.snapshot() == living.snapshot(), name
            assert replayed.handle(Restarted(), now) == living.handle(Restarted(), now), name
