"""Benchmarks: rows with their circumstances, appended, and compared with the last of their case."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.test_command_line import unisono
from unisono.cli.measuring.bench import identity, last_rows, load, ratios
from unisono.cli.measuring.pairs import against
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec

HOME = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "ens_raw": ["--scale", "0.01", "--rounds", "1"],
    "hostile": ["--seconds", "0.3", "--rounds", "1", "--cases", "patterns"],
    "node_memory": ["--marks", "2000", "4000"],
    "order": ["--scale", "0.02", "--rounds", "1", "--sites", "1", "--cases", "nats core"],
    "placing": [],
    "publish": ["--events", "64", "--rounds", "1"],
    "regions": ["--steady", "20", "--events", "200", "--cases", "entourages"],
    "causal": ["--events", "60", "--singles", "4", "--rounds", "1"],
    "wan": ["--small", "--regions", "5"],
}
"""Benchmarks with processes of ours in them, and how they are over in seconds."""
LONG = ("causal", "hostile", "order", "publish", "wan")
"""Those that take ten seconds all the same; five regions of `wan` are ten nodes and six NATS servers."""
BENCHMARK = '"""A toy."""\n\ndef run():\n    return [{"case": "a", "rate": 10}, {"case": "b", "rate": 20}]\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "benchmarks" / "toy.py").write_text(BENCHMARK)
    return tmp_path


def test_rows_are_kept_with_their_circumstances(checkout: Path) -> None:
    done = unisono("bench", "toy", cwd=checkout)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (checkout / "benchmarks/results/toy.jsonl").read_text().splitlines()]
    assert [(row["case"], row["rate"]) for row in rows] == [("a", 10), ("b", 20)]
    assert {"commit", "date", "machine", "cpu_seconds"} <= rows[0].keys()
    assert rows[0]["machine"].keys() == {"cores", "python", "cpu"}


def test_compare_shows_ratios_and_keeps_nothing(checkout: Path) -> None:
    unisono("bench", "toy", cwd=checkout)
    (checkout / "benchmarks" / "toy.py").write_text(BENCHMARK.replace("20", "30.0"))  # of another size: compiled anew
    before = (checkout / "benchmarks/results/toy.jsonl").read_bytes()
    report = json.loads(unisono("bench", "all", "--compare", "--json", cwd=checkout).stdout)
    assert [row["ratios"]["rate"] for row in report["toy"]] == [1.0, 1.5]
    assert (checkout / "benchmarks/results/toy.jsonl").read_bytes() == before


def test_medians_are_those_of_the_rows_of_one_commit(checkout: Path) -> None:
    kept = checkout / "benchmarks/results/toy.jsonl"
    for rate, commit in ((1, "unknown"), (40, "unknown"), (2, "another"), (3, "unknown")):
        with kept.open("a") as file:
            file.write(json.dumps({"case": "a", "rate": rate, "commit": commit}) + "\n")
    before = kept.read_bytes()
    (row,) = json.loads(unisono("bench", "toy", "--medians", "--json", cwd=checkout).stdout)["toy"]
    assert row["medians"] == {"rows": 3, "rate": 3}
    assert "median" in unisono("bench", "toy", "--medians", cwd=checkout).stdout
    assert kept.read_bytes() == before


RUNS_ALONE = """'A toy.'

import json
import sys
from toys import RATE

def run():
    return [{"case": "a", "rate": RATE, "idle": 0}]

if __name__ == "__main__":
    assert sys.argv[1:] == ["--small", "a case"]
    print(json.dumps(run()[0]))
"""


def git(checkout: Path, *words: str) -> str:
    known = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(["git", *known, *words], cwd=checkout, capture_output=True, text=True, check=True).stdout


def test_two_commits_are_measured_in_turns_each_with_its_own_sources(checkout: Path) -> None:
    (checkout / "benchmarks" / "toy.py").write_text(RUNS_ALONE)
    (checkout / "src").mkdir()
    (checkout / "src" / "toys.py").write_text("RATE = 10\n")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "slow")
    old = git(checkout, "rev-parse", "HEAD").strip()
    (checkout / "src" / "toys.py").write_text("RATE = 11\n")
    asked = ("bench", "toy", "--against", old, "--pairs", "3", "--passing", "--small 'a case'")
    done = unisono(*asked, "--json", cwd=checkout)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["toy"]
    assert (row["case"], row["of"], row["against"]) == ("a", "rate", old)
    assert (row["pairs"], row["then"], row["now"], row["ratio"], row["spread"]) == (3, 10, 11, 1.1, 0)
    assert (row["ratio_min"], row["ratio_q1"], row["ratio_q3"], row["ratio_max"]) == (1.1, 1.1, 1.1, 1.1)
    assert len((checkout / "benchmarks/results/toy.jsonl").read_text().splitlines()) == 1
    assert git(checkout, "worktree", "list").count("\n") == 1
    for commit, pairs, why in (("nowhere", 3, "nowhere"), (old, 1, "--pairs 1: a spread needs at least two")):
        with pytest.raises(MisuseError, match=why):
            against(checkout / "benchmarks", "toy", commit, pairs, "")


def test_an_unknown_benchmark_is_refused_with_the_list(checkout: Path) -> None:
    done = unisono("bench", "toys", cwd=checkout)
    assert (done.returncode, done.stderr) == (2, "unisono: no benchmark 'toys'; there are: toy\n")


def test_a_long_benchmark_is_measured_in_parts(checkout: Path) -> None:
    parts = '\n\ndef run(only=()):\n    return [{"case": name} for name in "ab" if not only or name in only]\n'
    (checkout / "benchmarks" / "long.py").write_text(f'"""A long one."""{parts}')
    for part in "ab":
        assert unisono("bench", "long", "--only", part, cwd=checkout).returncode == 0
    kept = (checkout / "benchmarks/results/long.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in kept] == ["a", "b"]
    none = unisono("bench", "long", "--only", "c", cwd=checkout)
    assert (none.returncode, "no case of long fits" in none.stderr) == (2, True)
    whole = unisono("bench", "toy", "--only", "a", cwd=checkout)
    assert (whole.returncode, whole.stderr.splitlines()[-1]) == (2, "unisono: --only: toy is measured as a whole")


def test_what_was_measured_before_a_benchmark_broke_is_kept(checkout: Path) -> None:
    broken = 'def run():\n    yield {"case": "a", "rate": 1}\n    raise SystemExit("stopped")\n'
    (checkout / "benchmarks" / "long.py").write_text(f'"""A long one."""\n\n\n{broken}')
    assert unisono("bench", "long", cwd=checkout).returncode
    assert [row["rate"] for row in last_rows(checkout / "benchmarks/results/long.jsonl").values()] == [1]


def test_the_last_row_of_a_case_is_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"case": "a", "n": 1}, {"case": "b", "n": 2}, {"case": "a", "n": 4, "date": "later"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_rows(path)[identity({"case": "a"})]["n"] == 4
    assert ratios({"case": "a", "n": 1, "new": 3}, rows[2]) == {"n": 0.25}


def test_a_broken_result_file_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"case": "a"}\n{"case"\n')
    with pytest.raises(FormatError, match="line 2"):
        last_rows(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.campaign] if name in LONG else []) for name in SMALL]
)
def test_benchmarks_with_processes_still_run(name: str, tmp_path: Path) -> None:
    """They speak the protocols themselves, and would be left behind by a change."""
    command = [sys.executable, HOME / f"{name}.py", *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) >= 2
    assert all(row["case"] for row in rows)


def test_a_node_that_ends_while_regions_are_set_up_is_told_of_by_what_it_said(tmp_path: Path) -> None:
    """Its topics would be homeless, and whoever asks for them wait a minute to be told that nobody answers."""
    log = tmp_path / "node.log"
    with socket.create_server(("127.0.0.1", 0)) as taken, log.open("wb") as said:
        spec = NodeSpec("n", listen=f"127.0.0.1:{taken.getsockname()[1]}", observe="off")
        file = tmp_path / "deployment.toml"
        file.write_text(
            dump_deployment(Deployment(1, "wan", nodes=(spec,), broker=BrokerSpec("nats", ("nats://127.0.0.1:9",))))
        )
        node = subprocess.Popen([sys.executable, "-m", "unisono", "node", file, "n"], cwd=tmp_path, stderr=said)
        with pytest.raises(SystemExit, match=r"node n ended: .*cannot listen on .*: Address already in use"):
            asyncio.run(load(HOME / "wan.py").listening("n", node, log))


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(path.stem for path in HOME.glob("*.py")))
def test_every_benchmark_runs(name: str) -> None:
    done = unisono("bench", name, "--compare", "--json", cwd=HOME.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[name]
