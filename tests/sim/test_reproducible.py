"""A seed decides a run to the last byte."""

import hashlib
import os
import subprocess
import sys

import pytest

from unisono.model.journal import encode_line
from unisono.sim import scenario

PLAY = """
import sys
from unisono.model.journal import encode_line
from unisono.sim import scenario
for name in scenario.names():
    journal = scenario.play(scenario.load(name), seed=3)
    sys.stdout.buffer.write(b"".join(map(encode_line, [journal.header, *journal.records])))
"""


def written(name: str, seed: int) -> bytes:
    journal = scenario.play(scenario.load(name), seed)
    return b"".join(map(encode_line, [journal.header, *journal.records]))


@pytest.mark.parametrize("name", scenario.names())
def test_same_seed_same_journal(name: str) -> None:
    assert written(name, 3) == written(name, 3)


@pytest.mark.parametrize("name", scenario.names())
def test_another_seed_is_another_run(name: str) -> None:
    assert written(name, 3) != written(name, 4)


def test_hash_seeds_do_not_matter() -> None:
    digests = []
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", PLAY], env=environment, capture_output=True, check=True)
        digests.append(hashlib.sha256(done.stdout).hexdigest())
    assert done.stdout.count(b"\n") > 100
    assert len(set(digests)) == 1
