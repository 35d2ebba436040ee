"""docs/reference/scenarios.md is true: it names everything a scenario can say, and its examples work."""

import re
from pathlib import Path

import pytest

from unisono.audit import judge
from unisono.sim import disk, ens, faults, links, scenario, service, stages, workloads

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "scenarios.md").read_text(encoding="utf-8")
TABLES = [
    scenario.Scenario,
    workloads.WorkloadSpec,
    stages.Operation,
    links.LinkSpec,
    links.LinkRule,
    links.Loss,
    links.Fixed,
    links.Uniform,
    links.Gaussian,
    links.TwoClass,
    links.ByRegion,
    ens.EnsSpec,
    service.ServiceSpec,
    disk.DriverSpec,
    faults.Crash,
    faults.BadDisk,
    faults.SlowDisk,
    faults.Rollback,
    faults.Partition,
    faults.Clog,
    faults.SwizzleClog,
    faults.Pause,
    faults.Skew,
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_key_is_on_the_page(table: type) -> None:
    words = set(re.findall(r"`([a-z_-]+)", PAGE))
    assert [name for name in table.__struct_fields__ if name not in words] == []  # type: ignore[attr-defined]
    config = table.__struct_config__  # type: ignore[attr-defined]
    assert config.tag is None or config.tag in words


def test_the_example_file_plays_and_keeps_its_promise() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    journal = scenario.play(scenario.parse(text, "example", Path()), 1)
    assert all(verdict.holds for verdict in judge(journal, journal.header.promises))
    assert any(record.kind == "fault" for record in journal.records)


def test_the_example_program_runs() -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, object] = {}
    exec(program, names)
    assert names["verdicts"]
