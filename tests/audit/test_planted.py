"""A million deliveries with errors planted independently of each other: every engine counts them all, and no other."""

import sys
from pathlib import Path
from typing import Any

import pytest

from unisono.audit import examine, read

pq = pytest.importorskip("pyarrow.parquet")
columnar = pytest.importorskip("unisono.audit.columnar")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
planted: Any = pytest.importorskip("tracing.planted").planted


def test_what_was_planted_in_a_small_trace_is_counted(tmp_path: Path) -> None:
    found, expected = planted(10_000, seed=1)
    pq.write_table(found, tmp_path / "log")
    for report in (columnar.examine(columnar.load(tmp_path / "log")), examine(read(tmp_path / "log"))):
        assert {verdict.judge: verdict.violations for verdict in report.verdicts} == expected


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10))
def test_what_was_planted_in_a_million_deliveries_is_counted(tmp_path: Path, seed: int) -> None:
    found, expected = planted(1_000_000, seed)
    pq.write_table(found, tmp_path / "log")
    for report in (columnar.examine(columnar.load(tmp_path / "log")), examine(read(tmp_path / "log"))):
        assert {verdict.judge: verdict.violations for verdict in report.verdicts} == expected
