"""Three engines, one verdict: on dirty files they say, count and refuse the same, in the same words."""

import os
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from unisono.audit import JUDGES, Report, examine, read
from unisono.audit.engines import choose
from unisono.cli.main import main
from unisono.errors import FormatError

columnar = pytest.importorskip("unisono.audit.columnar")
dirty = pytest.importorskip("tests.audit.dirty")

Said = tuple[object, ...]


def said(report: Report) -> Said:
    """What has to be equal: a witness may be another violation of the same kind."""
    verdicts = tuple((v.judge, v.holds, v.violations, bool(v.witness)) for v in report.verdicts)
    return report.deliveries, report.subscribers, verdicts, tuple(report.metrics.items())


def by_python(path: Path) -> Said:
    try:
        journal = read(path)
        return journal.header, *said(examine(journal))
    except FormatError as problem:
        return ("refused", str(problem))


def by_columns(path: Path) -> Said:
    try:
        log = columnar.load(path)
        return log.header, *said(columnar.examine(log))
    except FormatError as problem:
        return ("refused", str(problem))


def compare(seeds: range, folder: Path) -> Counter[object]:
    """What was said how often; the first seed on which the engines differ fails the test."""
    heard: Counter[object] = Counter()
    for seed in seeds:
        path = dirty.write_dirty(seed, folder)
        expected = by_python(path)
        assert by_columns(path) == expected, f"seed {seed}: write_dirty({seed}, Path(...)) makes the log again"
        if expected[0] == "refused":
            heard["refused"] += 1
            continue
        verdicts = expected[3]
        assert isinstance(verdicts, tuple)
        heard.update((judge, holds) for judge, holds, *_ in verdicts)
    return heard


def test_columns_say_of_dirty_files_what_python_says(tmp_path: Path) -> None:
    heard = compare(range(250), tmp_path)
    assert heard["refused"] > 40
    for judge in JUDGES:
        if judge != "free":
            assert min(heard[judge, True], heard[judge, False]) > 10, (judge, heard)


@pytest.mark.campaign
def test_columns_say_of_ten_thousand_dirty_files_what_python_says(tmp_path: Path) -> None:
    assert compare(range(10_000), tmp_path)["refused"] > 1000


ROW = b'{"subscriber":"s","event":"a","position":1,"topic":"T","number":1}'
RARE = {
    "two records on a line": ROW + b"\n" + ROW + ROW + b"\n",
    "a record over two lines": ROW + b"\n" + ROW.replace(b",", b",\n", 1) + b"\n",
    "no JSON in a column nobody reads": ROW[:-1] + b',"color":NaN}\n',
    "a column twice": ROW[:-1] + b',"position":2}\n',
    "a byte order mark": b"\xef\xbb\xbf" + ROW + b"\n",
    "a clock under an escaped name": ROW[:-1] + b',"cl\\u006fck":{"p":1},"publisher":"p","publisher_seq":1}\n',
    "a gap notice": b"\n".join(
        [
            *(ROW.replace(b"a", b"abc"[i : i + 1]).replace(b"1", str(i).encode()) for i in range(3)),
            *(
                ROW.replace(b'"s"', b'"t"').replace(b"a", b"abc"[i : i + 1]).replace(b"1", str(i).encode())
                for i in (0, 2)
            ),
            b'{"kind":"gap","subscriber":"t","topic":"T","number":1}',
        ]
    ),
}


@pytest.mark.parametrize("what", RARE)
def test_columns_say_the_same_of_what_is_rare(tmp_path: Path, what: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(RARE[what])
    assert by_columns(path) == by_python(path)


def test_what_is_small_goes_to_python_what_fits_to_columns_the_rest_to_spark(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"subscriber":"s","event":"e","position":1}\n')
    assert choose(log, spark=True) == "python"
    os.truncate(log, 100_000_000)  # only the size is looked at
    assert choose(log, spark=True) == "arrow"
    os.truncate(log, 10**13)
    assert choose(log, spark=False) == "arrow"
    pytest.importorskip("pyspark")
    assert choose(log, spark=True) == "spark"


@pytest.mark.parametrize("engine", ["auto", "local", "python", "arrow"])
def test_every_engine_answers_the_command_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    log = tmp_path / "log.jsonl"
    rows = [("s", "a", 1), ("s", "b", 2), ("t", "b", 1), ("t", "a", 1)]  # equal positions stand as in the file
    log.write_text("".join(f'{{"subscriber":"{s}","event":"{e}","position":{p}}}\n' for s, e, p in rows))
    monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(log), "--on", engine, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    found = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert ended.value.code == 1
    assert found == examine(read(log))


def test_an_engine_that_there_is_not_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(tmp_path), "--on", "duck"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("unisono: --on duck: give auto, local, python, arrow, spark,")
