"""Journal files: one schema in three forms, files made elsewhere, and errors that name the place."""

import gzip
import json
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unisono.audit import judge, read, scan, write_jsonl
from unisono.errors import FormatError
from unisono.model.journal import KINDS, Header, Journal, Record, encode_line

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
pq = pytest.importorskip("pyarrow.parquet")
columns = pytest.importorskip("unisono.audit.columns")


def write_stream(path: Path, header: Header, rows: list[Record]) -> None:
    columns.write_arrow(path, header, rows)
    with ipc.open_file(path) as file, ipc.new_stream(path.with_suffix(".stream"), file.schema) as stream:
        for i in range(file.num_record_batches):
            stream.write_batch(file.get_batch(i))
    path.with_suffix(".stream").rename(path)


WRITERS = {
    "jsonl": write_jsonl,
    "arrow": columns.write_arrow,
    "stream": write_stream,
    "parquet": columns.write_parquet,
}
text = st.text(st.characters(codec="utf-8"), max_size=5)
number = st.integers(-(2**63), 2**63 - 1)
records = st.builds(
    Record,
    kind=st.sampled_from([kind for kind in KINDS if kind not in ("deliver", "tag", "gap", "publish")]),
    at_us=number,
    subscriber=text,
    event=text,
    topic=text,
    number=number,
    position=st.none() | number,
    clock=st.none() | st.dictionaries(text, number, max_size=3),
    depends_on=st.none() | st.lists(text, max_size=3).map(tuple),
    note=st.none() | text,
) | st.builds(Record, subscriber=text, event=text, position=number, deadline_us=number)
headers = st.builds(Header, scenario=st.none() | text, seed=st.none() | number, note=st.none() | text)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers, st.lists(records, max_size=6))
def test_every_form_gives_back_what_was_written(tmp_path: Path, header: Header, rows: list[Record]) -> None:
    for form, write in WRITERS.items():
        write(tmp_path / form, header, rows)
        assert read(tmp_path / form) == Journal(header, rows), form


def test_the_form_is_told_by_the_content_not_by_the_name(tmp_path: Path) -> None:
    row = Record(subscriber="s", event="a", position=1)
    columns.write_parquet(tmp_path / "x.jsonl", Header(), [row])
    assert read(tmp_path / "x.jsonl").records == [row]


def test_the_columns_stand_in_the_order_of_the_record_and_the_header_in_the_metadata(tmp_path: Path) -> None:
    columns.write_parquet(tmp_path / "run", Header(scenario="two"), [])
    schema = pq.read_schema(tmp_path / "run")
    assert tuple(schema.names) == Record.__struct_fields__
    assert json.loads(schema.metadata[b"unisono.journal"])["scenario"] == "two"


def test_a_file_with_the_three_columns_alone_is_enough(tmp_path: Path) -> None:
    plain = {"subscriber": ["s", "t"], "event": ["a", "a"], "position": [1, 1]}
    expected = [Record(subscriber="s", event="a", position=1), Record(subscriber="t", event="a", position=1)]
    (tmp_path / "jsonl").write_text(
        '{"subscriber":"s","event":"a","position":1}\n{"subscriber":"t","event":"a","position":1}'
    )
    pq.write_table(pa.table(plain), tmp_path / "parquet")
    with pa.ipc.new_file(tmp_path / "arrow", pa.table(plain).schema) as writer:
        writer.write(pa.table(plain))
    with pa.ipc.new_stream(tmp_path / "stream", pa.table(plain).schema) as writer:
        writer.write(pa.table(plain))
    for form in ("jsonl", "parquet", "arrow", "stream"):
        assert read(tmp_path / form).records == expected, form


def test_other_integer_types_numbered_names_and_unknown_columns_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "subscriber": pa.array([7], pa.int32()),
            "event": pa.array(["a"]).dictionary_encode(),
            "position": pa.array([1], pa.uint8()),
            "clock": pa.array([{"p": 2, "q": None}]),
            "color": ["red"],
        }
    )
    pq.write_table(table, tmp_path / "parquet")
    (tmp_path / "jsonl").write_text('{"subscriber":7,"event":"a","position":1,"clock":{"p":2},"color":"red"}\n\n')
    for form in ("parquet", "jsonl"):
        assert read(tmp_path / form).records == [Record(subscriber="7", event="a", position=1, clock={"p": 2})]


def test_scanning_gives_the_header_before_any_record_is_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "run", Header(seed=3), [Record(subscriber="s", event="a", position=1)])
    with (tmp_path / "run").open("a") as file:
        file.write("broken")
    header, rows = scan(tmp_path / "run")
    assert header.seed == 3
    with pytest.raises(FormatError, match="line 3: the file ends inside a record"):
        list(rows)


GOOD = b'{"subscriber":"s","event":"a","position":1}\n'
BROKEN = {
    "empty": (b"", "line 1: the file is empty"),
    "not JSON": (b"root:x:0:0\n", "line 1: not JSON"),
    "cut off": (GOOD + GOOD[:20], "line 2: the file ends inside a record"),
    "garbled in the middle": (GOOD + b"{]\n" + GOOD, "line 2: "),
    "not text": (GOOD + b'{"subscriber":"\xff","event":"a","position":1}\n', "line 2"),
    "no object": (GOOD + b"[1]\n", "line 2: Expected `object`"),
    "a column missing": (b'{"subscriber":"s","event":"a"}\n', "line 1, column position: missing"),
    "a wrong type": (
        GOOD + b'{"subscriber":"s","event":"a","position":"x"}\n',
        "line 2, column position: Expected `int",
    ),
    "an unknown kind": (GOOD + b'{"kind":"dance"}\n', "line 2, column kind: 'dance' is no kind of record"),
    "a later version": (b'{"journal":99}\n', "line 1: a journal of version 99"),
    "a broken header": (b'{"journal":"x"}\n', "line 1: the header is broken"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_names_the_place(tmp_path: Path, how: str) -> None:
    content, message = BROKEN[how]
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        read(tmp_path / "f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_columnar_file_cut_anywhere_is_refused(tmp_path: Path, form: str) -> None:
    WRITERS[form](tmp_path / "whole", Header(), [Record(subscriber="s", event="a", position=1)])
    whole = (tmp_path / "whole").read_bytes()
    for size in range(8, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read(tmp_path / "cut")


@pytest.mark.parametrize("form", WRITERS)
def test_a_garbled_file_is_read_or_refused_and_nothing_else(tmp_path: Path, form: str) -> None:
    row = Record("timestamp", subscriber="s", event="a", topic="T", number=1, clock={"T": 1}, depends_on=("b",))
    WRITERS[form](tmp_path / "whole", Header(), [row, Record(subscriber="s", event="a", position=1)])
    whole = (tmp_path / "whole").read_bytes()
    dice = Random(form)
    refused: list[str] = []
    for _ in range(150):
        garbled = bytearray(whole)
        for _ in range(dice.choice([1, 1, 3, 10])):
            garbled[dice.randrange(4, len(garbled))] = dice.randrange(256)
        (tmp_path / "garbled").write_bytes(garbled)
        try:
            read(tmp_path / "garbled")
        except FormatError as problem:
            refused.append(str(problem))
    assert refused
    assert not [problem for problem in refused if "\n" in problem]


def test_columns_of_the_wrong_shape_are_named(tmp_path: Path) -> None:
    row = {"subscriber": ["s"], "event": ["a"], "position": [1]}
    wrong = {
        "column position: missing; the file has subscriber, event": {"subscriber": ["s"], "event": ["a"]},
        "column position: is of type string": {**row, "position": ["x"]},
        "row 1, column position: 1.5 is no whole number": {**row, "position": [1.5]},
        "row 2, column position: 9223372036854775808 is no whole number of 64 bits": {
            **{column: values * 2 for column, values in row.items()},
            "position": pa.array([1, 2**63], pa.uint64()),
        },
        "column event: is of type bool": {**row, "event": [True]},
        "column delivered_us: is of type timestamp[us]": {**row, "delivered_us": pa.array([1], pa.timestamp("us"))},
        "row 1, column event: missing, but a 'deliver' record needs it": {
            **row,
            "event": pa.array([None], pa.string()),
        },
        "row 1, column kind: 'dance' is no kind of record": {**row, "kind": ["dance"]},
        "row 1, column clock: 1.5 of p is no whole number": {**row, "clock": [{"p": 1.5}]},
    }
    for message, table in wrong.items():
        pq.write_table(pa.table(table), tmp_path / "f")
        with pytest.raises(FormatError) as caught:
            read(tmp_path / "f")
        assert message in str(caught.value)


def test_a_foreign_log_is_judged_like_a_journal(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"subscriber": [1, 1, 2, 2], "event": [10, 20, 20, 10], "position": [1, 2, 1, 2]}), tmp_path / "f"
    )
    found = judge(read(tmp_path / "f"))[0]
    assert found.witness == "10 before 20 at 1 because position 1 < 2; 20 before 10 at 2 because position 1 < 2"


def test_every_line_says_its_kind_and_its_moment() -> None:
    for record in (Record(), Record("end"), Record(at_us=5), Record("end", at_us=5, note="x"), Record(event="a")):
        fields = json.loads(encode_line(record))
        assert (fields["kind"], fields["at_us"]) == (record.kind, record.at_us)
        assert msgspec.convert(fields, Record) == record
    assert json.loads(encode_line(Header())) == {"journal": 1, "promises": ["pairwise-order"]}


def test_a_folder_of_parts_is_one_journal(tmp_path: Path) -> None:
    rows = [Record(subscriber="s", event=event, position=i) for i, event in enumerate("abc")]
    columns.write_parquet(tmp_path / "part-1", Header(seed=9), rows[:1])
    write_jsonl(tmp_path / "part-2", Header(seed=9), rows[1:])
    (tmp_path / "part-0").touch()
    (tmp_path / "_SUCCESS").write_text("not a part")
    (tmp_path / ".part-1.crc").write_text("not a part")
    assert read(tmp_path) == Journal(Header(seed=9), rows)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="no journal"):
        read(tmp_path / "empty")


ROWS = [Record(subscriber=s, event=e, position=i) for s, seen in (("s", "ab"), ("t", "ba")) for i, e in enumerate(seen)]


@pytest.mark.parametrize("form", WRITERS)
def test_a_file_packed_with_gzip_is_read_as_it_is(tmp_path: Path, form: str) -> None:
    WRITERS[form](tmp_path / "run", Header(seed=4), ROWS)
    packed = gzip.compress((tmp_path / "run").read_bytes())
    (tmp_path / "run.gz").write_bytes(packed)
    assert read(tmp_path / "run.gz") == Journal(Header(seed=4), ROWS)
    (tmp_path / "run.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FormatError, match=r"run\.gz"):
        read(tmp_path / "run.gz")


def test_a_partitioned_folder_is_one_journal_and_its_names_are_columns(tmp_path: Path) -> None:
    """As Hive and Spark write it: the column is in the name of the folder and not in the file."""
    for topic, seq in (("T%2F1", "1"), ("__HIVE_DEFAULT_PARTITION__", "2")):
        folder = tmp_path / "run" / f"topic={topic}" / f"publisher_seq={seq}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"event": ["e"], "subscriber": ["s"], "position": [1]}), folder / "part-0.parquet")
        (folder / "part-1.jsonl").write_text('{"event":"f","subscriber":"s","position":2,"publisher_seq":null}\n')
        (folder / "_SUCCESS").write_text("none")
    assert [(r.topic, r.publisher_seq, r.event) for r in read(tmp_path / "run").records] == [
        ("T/1", 1, "e"),
        ("T/1", 1, "f"),
        (None, 2, "e"),
        (None, 2, "f"),
    ]
    (tmp_path / "run" / "topic=T%2F1" / "publisher_seq=1").rename(tmp_path / "run" / "topic=T%2F1" / "publisher_seq=x")
    with pytest.raises(FormatError, match=r"column publisher_seq: its folder says 'x', no integer"):
        read(tmp_path / "run")


def test_nulls_whole_floats_and_numbered_names_mean_the_same_in_every_form(tmp_path: Path) -> None:
    rows = [
        {"kind": None, "subscriber": 1, "event": "a", "position": 1.0, "clock": {"p": 2.0, "q": None}, "at_us": None},
        {"kind": "deliver", "subscriber": 1, "event": "b", "position": 2.0, "depends_on": [7, None]},
    ]
    (tmp_path / "jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = dict.fromkeys(name for row in rows for name in row)
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), tmp_path / "parquet")
    expected = [
        Record(subscriber="1", event="a", position=1, clock={"p": 2}),
        Record(subscriber="1", event="b", position=2, depends_on=("7",)),
    ]
    for form in ("jsonl", "parquet"):
        assert read(tmp_path / form).records == expected, form


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, 1e300])
def test_a_number_that_no_column_holds_is_refused(tmp_path: Path, number: float) -> None:
    (tmp_path / "f").write_text(f'{{"subscriber":"s","event":"a","position":{number}}}\n')
    with pytest.raises(FormatError, match="line 1, column position"):
        read(tmp_path / "f")
