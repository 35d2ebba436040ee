"""The system time of a process can be set wrong while it runs, and its spans stay right."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.crash import wrong_clock

HOUR_S = 3600
ASKS = """
import sys, time
for line in sys.stdin:
    print(int(time.time()), int(time.time_ns() // 10**9), int(time.monotonic()), flush=True)
"""


@pytest.mark.skipif(wrong_clock.compiler() is None, reason="there is no C compiler")
def test_the_time_of_a_running_process_is_set_and_its_spans_are_not(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    environment = wrong_clock.environment(tmp_path, offset)
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ahead_s() -> list[int]:
            process.stdin.write("?\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            said = [int(word) for word in process.stdout.readline().split()]  # type: ignore[union-attr]
            right = (time.time(), time.time(), time.monotonic())
            return [round((mine - his) / HOUR_S) for mine, his in zip(said, right)]

        assert ahead_s() == [0, 0, 0]
        for wrong_h in (1, -24):
            offset.write_text(f"{wrong_h * HOUR_S:+d}\n")
            while ahead_s()[:2] != [wrong_h, wrong_h]:  # it looks ten times a second
                pass
            assert ahead_s() == [wrong_h, wrong_h, 0]
        process.stdin.close()
