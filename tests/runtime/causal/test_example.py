"""The example of the closed airport runs as printed, and keeps its word."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_closed_airport_is_heard_before_the_diverted_flight() -> None:
    done = subprocess.run(
        [sys.executable, "examples/airport.py", "--rounds", "4"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "causal mesh" in done.stdout
    assert "LHR is closed" in done.stdout
