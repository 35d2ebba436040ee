"""A seed decides a run to the last byte. Long runs are compared over their first virtual seconds."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.sim.records import digest
from unisono.sim import scenario

PLAY_ALL = """
import json
from tests.sim.records import digest
from unisono.sim import scenario
print(json.dumps({name: digest(name, 3) for name in scenario.names()}))
"""


@cache
def digests_elsewhere(hash_seed: str) -> dict[str, str]:
    """Of all built-in scenarios, played in another process with another order of sets."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", PLAY_ALL], env=environment, capture_output=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", scenario.names())
def test_same_seed_same_journal_whatever_the_hash_seed(name: str) -> None:
    assert digest(name, 3) == digests_elsewhere("1")[name] == digests_elsewhere("4242")[name]


@pytest.mark.parametrize("name", scenario.names())
def test_another_seed_is_another_run(name: str) -> None:
    assert digest(name, 3) != digest(name, 4)
