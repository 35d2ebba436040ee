"""Three engines, one verdict: on dirty files they say, count and refuse the same, in the same words."""

import gc
import gzip
import os
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from unisono.audit import JUDGES, Report, examine, memory, read
from unisono.audit.engines import choose, examine_file
from unisono.cli.main import main
from unisono.errors import FormatError

columnar = pytest.importorskip("unisono.audit.columnar")
dirty = pytest.importorskip("tests.audit.dirty")
untidy = pytest.importorskip("tests.audit.untidy")

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
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_columns_say_of_ten_thousand_dirty_files_what_python_says(tmp_path: Path, first: int) -> None:
    assert compare(range(first, first + 1000), tmp_path)["refused"] > 100


ROW = b'{"subscriber":"s","event":"a","position":1,"topic":"T","number":1}'
RARE = {
    "two records on a line": ROW + b"\n" + ROW + ROW + b"\n",
    "a record over two lines": ROW + b"\n" + ROW.replace(b",", b",\n", 1) + b"\n",
    "no JSON in a column nobody reads": ROW[:-1] + b',"color":NaN}\n',
    "a column twice": ROW[:-1] + b',"position":2}\n',
    "a byte order mark": b"\xef\xbb\xbf" + ROW + b"\n",
    "files put together": b'{"journal":1}\n' + ROW + b'\n{"journal":1,"promises":["fifo"]}\n' + ROW + b"\n",
    "a header that tells a kind": ROW + b'\n{"journal":1,"subscriber":"s","event":"c","position":3}\n',
    "objects in objects": ROW[:-1] + b',"color":' + b"[" * 300 + b"]" * 300 + b"}\n" + ROW + b"\n",
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


HEARD = {"subscriber": "s", "event": "a", "position": 1}
UNHEARD = {"kind": "publish", "event": "b", "at_us": 5}
WITHOUT_A_CASE = {
    "fifo": [HEARD, {**UNHEARD, "publisher": "p", "publisher_seq": 1}],
    "publisher-order": [
        {**HEARD, "publisher": "p", "publisher_seq": 1},
        {"subscriber": "t", "event": "b", "position": 1, "topic": "T"},
    ],
    "causal": [{**HEARD, "publisher": "p", "publisher_seq": 1}, {**UNHEARD, "clock": {"p": 1}}],
    "causal by lists": [HEARD, {**UNHEARD, "depends_on": ["a"]}],
    "causal of nobody's": [{**HEARD, "clock": {"p": 1}}, {**UNHEARD, "publisher": "p", "publisher_seq": 1}],
}


@pytest.mark.parametrize("what", WITHOUT_A_CASE)
def test_a_promise_of_events_that_nobody_was_notified_of_is_not_said_to_hold(tmp_path: Path, what: str) -> None:
    """There are the columns, and of no notified event is all known that the judge compares."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in WITHOUT_A_CASE[what]))
    (found,) = (v for v in examine(read(path)).verdicts if v.judge == what.split()[0])
    assert (found.holds, found.judged, found.violations) == (False, False, 0)
    assert "nobody was notified of an event whose" in found.witness
    for verdict in columnar.examine(columnar.load(path)).verdicts:
        if verdict.judge == found.judge:
            assert verdict == found
    assert by_columns(path) == by_python(path)


@pytest.mark.parametrize("what", untidy.UNTIDY)
def test_untidy_logs_are_judged_alike(tmp_path: Path, what: str) -> None:
    path = untidy.UNTIDY[what](tmp_path)
    found = {verdict.judge: verdict.violations for verdict in examine(read(path)).verdicts}
    assert found == {"pairwise-order": 1, "local-order": 1, "acyclic": 1, "exactly-once": 0}
    assert by_columns(path) == by_python(path)


def test_names_of_several_parts_are_the_same_names(tmp_path: Path) -> None:
    """Parquet numbers names anew in each file and row group; lines of JSON have none."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    streams = {"one": ("s", "abcd"), "two": ("t", "dxcb"), "three": ("u", "bxa")}
    for part, (subscriber, events) in streams.items():
        told = [{"subscriber": subscriber, "event": e, "position": i} for i, e in enumerate(events)]
        pq.write_table(pa.Table.from_pylist(told), tmp_path / part, row_group_size=2)
    assert by_columns(tmp_path) == by_python(tmp_path)
    (tmp_path / "zero.jsonl").write_text('{"subscriber":"v","event":"d","position":0}\n')
    assert by_columns(tmp_path) == by_python(tmp_path)


def test_files_of_a_few_lines_keep_their_place_among_others(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for i, event in enumerate("abcdefg"):
        told = {"subscriber": "s", "event": event, "position": 1}
        if i in (3, 5):
            pq.write_table(pa.Table.from_pylist([told]), tmp_path / str(i))
        else:
            (tmp_path / str(i)).write_bytes(msgspec.json.encode(told) + b"\n")
    log = columnar.load(tmp_path)
    assert [record.event for record in log.records(range(log.size))] == list("abcdefg")


def test_a_further_header_is_none_of_the_rows_that_a_folder_tells_all_of(tmp_path: Path) -> None:
    part = tmp_path / "kind=tag" / "subscriber=s" / "event=a" / "log"
    part.parent.mkdir(parents=True)
    part.write_text('{"position":1}\n{"journal":1}\n{"position":2}\n')
    assert by_columns(tmp_path) == by_python(tmp_path)
    assert len(read(tmp_path).records) == 2


def test_a_folder_whose_name_is_no_text_tells_nothing(tmp_path: Path) -> None:
    part = tmp_path / os.fsdecode(b"subscriber=\xff") / "log"
    part.parent.mkdir()
    part.write_bytes(b'{"event":"a","position":1}\n')
    expected = by_python(tmp_path)
    assert expected == ("refused", f"{part}, column subscriber: its folder's name is not UTF-8: rename it")
    assert by_columns(tmp_path) == expected


def test_a_folder_that_cannot_be_read_is_named() -> None:
    """It could hold the violation. Not below what pytest keeps, where nobody else may read anything."""
    with TemporaryDirectory() as place:
        folder, was = Path(place), os.geteuid()
        folder.chmod(0o755)
        (folder / "log").write_bytes(ROW)
        (folder / "closed").mkdir(mode=0)
        os.seteuid(was or 65534)  # who may do everything would read it
        try:
            with pytest.raises(FormatError, match="closed: Permission denied"):
                read(folder)
        finally:
            os.seteuid(was)
            (folder / "closed").chmod(0o755)


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


def test_what_is_packed_counts_as_what_it_holds(tmp_path: Path) -> None:
    """Lines pack to a tenth or less: by the size of the file the Python judges would get ten times what they like."""
    line = b'{"subscriber":"s","event":"e","position":1}\n'
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(line * 100))
    assert choose(log, spark=True) == "python"
    log.write_bytes(gzip.compress(line * 400_000))
    assert log.stat().st_size < 1_000_000
    assert choose(log, spark=True) == "arrow"


def test_every_file_of_a_folder_counts_by_its_own_form(tmp_path: Path) -> None:
    pa, ipc, pq = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".ipc", ".parquet"))
    (tmp_path / "a.jsonl").write_text('{"subscriber":"s","event":"e","position":1}\n')
    found = pa.table(
        {"subscriber": ["s"] * 40_000, "event": [f"{i}" for i in range(40_000)], "position": range(40_000)}
    )
    with ipc.new_file(str(tmp_path / "b.arrow"), found.schema) as writer:
        writer.write_table(found)
    assert (tmp_path / "b.arrow").stat().st_size > 800_000, "more than Python likes of Parquet"
    assert choose(tmp_path, spark=True) == "python"
    pq.write_table(found, tmp_path / "c.parquet", compression="none", use_dictionary=False)
    assert choose(tmp_path, spark=True) == "arrow"


def test_memory_is_what_the_container_has_left_and_the_disk_cache_is_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  5000 kB\n")
    assert memory.available(meminfo) == 5000 * 1024
    assert memory.available(tmp_path / "none") is None
    assert memory.left_in_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert memory.left_in_group(tmp_path) is None, "a group without a limit"
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 300\n")
    assert memory.left_in_group(tmp_path) == 400
    (tmp_path / "memory").mkdir()
    for name, value in (("limit_in_bytes", 50), ("usage_in_bytes", 70)):
        (tmp_path / "memory" / f"memory.{name}").write_text(f"{value}\n")
        (tmp_path / "memory.max").unlink(missing_ok=True)
    assert memory.left_in_group(tmp_path) == 0, "the older form; it has more than it may"
    assert memory.memory_bytes() > 0


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


def test_whoever_audits_in_a_longer_program_has_its_garbage_collected_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(ROW + b"\n")
    assert examine_file(log, "python")[1].deliveries == 1
    assert gc.isenabled()
    log.write_bytes(b"{]\n")
    with pytest.raises(FormatError):
        examine_file(log, "python")
    assert gc.isenabled()


def test_an_engine_that_there_is_not_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(tmp_path), "--on", "duck"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("unisono: --on duck: give auto, local, python, arrow, spark,")
