"""Dirty logs, made from a seed: what people's exports look like, and worse. A few rows each, every trouble often.

Nulls, ties, repeats, contradicting rows, missing columns, extreme numbers, names by number, whole floats, full
journals; several files in one folder, of several forms, packed or not, partitioned or not; and, in a third of them, one
thing that has to be refused.
"""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

Row = dict[str, Any]
EXTREMES = (2**63 - 1, -(2**63), 2**63 - 2, 2**62, -(2**62), 2**53, 0)
NOTICES = ("tag", "gap", "publish", "timestamp", "outcome", "restart", "subscribe", "unsubscribe", "void", "stalled")
POISONS: tuple[Row, ...] = (
    {"event": None},
    {"subscriber": None},
    {"position": None},
    {"position": 2**63},
    {"position": 1.5},
    {"position": "7"},
    {"position": True},
    {"event": False},
    {"kind": "delivered"},
    {"clock": {"p0": 0.5}},
    {"clock": {"p0": "one"}},
    {"depends_on": "e1"},
    {"publisher_seq": 10**30},
    {"deadline_us": -(2**63) - 1},
)
FOLDERS = (
    *("topic=T%2F0", "publisher=p0", "date=2026-01-01", "number=3", "kind=tag", "publisher_seq=4"),
    *("topic=__HIVE_DEFAULT_PARTITION__", "publisher_seq=many"),
)
HEADERS = (
    b'{"journal": 1, "promises": ["fifo"]}\n',
    b'{"journal": 1, "promises": ["realtime"], "tolerance_us": 0}\n',
    b'{"journal": 1, "promises": ["realtime", "timely"], "tolerance_us": 30, "skew_us": 5}\n',
)
BROKEN_LINES = (b"{]\n", b"[1]\n", b'{"subscriber":"s0"}{"event":"e"}\n', b"\xff\xfe\n", b'{"event":\n', b'"text"\n')


def write_dirty(seed: int, folder: Path) -> Path:
    """A dirty log below `folder`: a file, or a folder of files."""
    dice = Random(seed)
    rows = _rows(dice)
    if rows and dice.random() < 0.12:
        rows[dice.randrange(len(rows))].update(dice.choice(POISONS))
    path = folder / f"log-{seed}"
    if dice.random() < 0.5:
        return _write(dice, path, rows)
    parts = dice.randint(1, 3)
    for i in range(parts):
        where = path
        if dice.random() < 0.2:
            where = path / dice.choice(FOLDERS)
        where.mkdir(parents=True, exist_ok=True)
        _write(dice, where / f"part-{i}", rows[i::parts])
    if dice.random() < 0.3:
        (path / "part-00").touch()
        (path / "_SUCCESS").write_text("no journal")
    return path


def write_many(seeds: range, folder: Path, notices: bool) -> Path:
    """Many dirty logs as one, with names of their own and nothing to refuse, in a folder of files of several forms."""
    dice = Random(seeds.start)
    rows: list[Row] = []
    for seed in seeds:
        rows += [
            {name: _renamed(seed, name, value) for name, value in row.items()}
            for row in _rows(Random(seed))
            if notices or (row.get("kind") or "deliver") == "deliver"
        ]
    path = folder / f"logs-{seeds.start}-{seeds.stop}"
    path.mkdir()
    step = max(1, len(rows) // 5)
    for i in range(0, len(rows), step):
        part = path / f"part-{i:05}"
        table = _table(rows[i : i + step], as_map=True) if i % 2 else None
        if table is not None:
            pq.write_table(table, part)
        else:
            content = b"".join(json.dumps(row).encode() + b"\n" for row in rows[i : i + step])
            part.write_bytes(gzip.compress(content) if dice.random() < 0.5 else content)
    return path


def _renamed(seed: int, name: str, value: Any) -> Any:
    if value is None or name not in ("subscriber", "event", "publisher", "topic", "who", "clock", "depends_on"):
        return value
    if name == "clock":
        return {f"{seed}{publisher}": number for publisher, number in value.items()}
    return [f"{seed}{event}" for event in value] if name == "depends_on" else f"{seed}{value}"


def _rows(dice: Random) -> list[Row]:
    """Mostly deliveries. Which columns somebody tells is drawn once per subscriber."""
    events = [f"e{i}" for i in range(dice.randint(1, 9))]
    known = {event: _event(dice, i) for i, event in enumerate(events)}
    number_names = dice.random() < 0.1
    rows: list[Row] = []
    for s in range(dice.randint(1, 4)):
        share = dice.choice([0.2, 0.9])
        tells = [column for column in known[events[0]] if dice.random() < share]
        seen = [event for event in events if dice.random() < 0.8]
        for _ in range(dice.choice([0, 0, 1, 3])):
            if len(seen) > 1:
                i = dice.randrange(len(seen) - 1)
                seen[i], seen[i + 1] = seen[i + 1], seen[i]
        if seen and dice.random() < 0.3:
            seen.insert(dice.randrange(len(seen)), dice.choice(seen))
        step, ties = dice.choice([1, 1, 5, 2**59]), dice.random() < 0.3
        for i, event in enumerate(seen):
            row: Row = {"subscriber": s if number_names else f"s{s}", "event": event, "position": i * step}
            if ties and dice.random() < 0.4:
                row["position"] = max(0, i - 1) * step
            if dice.random() < 0.02:
                row["position"] = dice.choice(EXTREMES)
            row |= {column: known[event][column] for column in tells}
            if dice.random() < 0.05:
                row |= {column: value for column, value in _event(dice, 3).items() if dice.random() < 0.5}
            if "delivered_us" in row:
                row["delivered_us"] = dice.randint(0, 60) if dice.random() < 0.95 else dice.choice(EXTREMES)
            rows.append(row)
    if dice.random() < 0.4:
        for _ in range(dice.randint(1, 6)):
            rows.insert(dice.randint(0, len(rows)), _notice(dice, events, known))
    if dice.random() < 0.2:
        told = ("topic", "publisher", "publisher_seq", "deadline_us", "published_us")
        published = [{"event": event, **{column: known[event][column] for column in told}} for event in events]
        rows[:0] = [{"kind": "publish", "subscriber": None, "at_us": 0, **row} for row in published]
    if dice.random() < 0.3:
        dice.shuffle(rows)
    if dice.random() < 0.1:
        rows = [{**row, "kind": row.get("kind"), "at_us": row.get("at_us"), "color": "red"} for row in rows]
    if dice.random() < 0.03:
        return []
    seed = len(json.dumps(rows))
    return [*rows, *_moments(Random(seed), events), *_calls(Random(seed))]


def _calls(dice: Random) -> list[Row]:
    """Sometimes somebody has also asked for values and was told them; some of it is no JSON."""
    rows: list[Row] = []
    clean = ['["read"]', '["write", 1]', '["cas", null, 1]', '["add", 2]']
    asks = clean if dice.random() < 0.7 else [*clean, "{", None]
    for i in range(dice.choice([0] * 6 + [1, 1, 2, 6])):
        at, name, asked = dice.randint(0, 9), f"o{i}", dice.choice(asks)
        rows.append({"kind": "call", "at_us": at, "who": "c", "event": name, "topic": "k", "note": asked})
        if dice.random() < 0.7:
            told = dice.choice(["null", "1", "true", '"unknown"', '"failed"', None])
            rows.append({"kind": "answer", "at_us": at + dice.randint(0, 5), "event": name, "note": told})
    return rows


def _moments(dice: Random, events: list[str]) -> list[Row]:
    """Mostly publishers have said when they published, and when they were told that an event was accepted."""
    rows: list[Row] = []
    for event in events if dice.random() < 0.8 else ():
        at = dice.randint(0, 40)
        if dice.random() < 0.9:
            rows.append({"kind": "publish", "at_us": at, "event": event})
        note = dice.choice(["accepted", "accepted stored", "accepted ordered", "refused", None])
        rows.append({"kind": "outcome", "at_us": at + dice.choice([0, 5, 20]), "event": event, "note": note})
    return rows


def _event(dice: Random, i: int) -> Row:
    """What somebody may tell of an event."""
    number = dice.choice(EXTREMES) if dice.random() < 0.03 else i + 1
    told: Row = {
        "topic": f"T/{i % 2}",
        "number": number if dice.random() < 0.7 else None,
        "publisher": dice.choice(["p0", "p1", ""]) if dice.random() < 0.3 else f"p{i % 2}",
        "publisher_seq": float(i) if dice.random() < 0.05 else i,
        "published_us": i * 10,
        "delivered_us": 0,
        "deadline_us": i * 10 + dice.randint(0, 40),
        "clock": {f"p{k}": dice.randint(0, i) if dice.random() < 0.9 else None for k in range(dice.randint(0, 2))},
        "depends_on": [f"e{dice.randrange(i + 1)}" for _ in range(dice.randint(0, 2))],
    }
    return {column: None if dice.random() < 0.05 else value for column, value in told.items()}


def _notice(dice: Random, events: list[str], known: dict[str, Row]) -> Row:
    event = dice.choice(events)
    row: Row = {"kind": dice.choice(NOTICES), "subscriber": f"s{dice.randrange(4)}", "event": event, "topic": "T/0"}
    row |= {"number": dice.randint(0, 5), "at_us": dice.choice([0, 0, 5, 10**9])}
    row["note"] = dice.choice(["accepted", "refused", "px > 3", None])
    if dice.random() < 0.5:
        row |= {
            column: known[event][column] for column in ("publisher", "publisher_seq", "deadline_us", "published_us")
        }
    if row["kind"] in ("gap", "subscribe", "stalled", "void", "restart"):
        row["who"] = row["subscriber"]
        if dice.random() < 0.7:
            del row["event"]
        if dice.random() < 0.5:
            row["last_number"] = row["number"] + dice.randint(0, 3)
    return row


def _write(dice: Random, path: Path, rows: list[Row]) -> Path:
    """One file, in a form that can hold the rows."""
    form = dice.choice(["jsonl", "jsonl", "parquet", "arrow", "stream"])
    table = _table(rows, dice.random() < 0.5) if form != "jsonl" else None
    if table is None:
        path.write_bytes(_lines(dice, rows))
    elif form == "parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with (ipc.new_file if form == "arrow" else ipc.new_stream)(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    if dice.random() < 0.2:
        packed = gzip.compress(path.read_bytes())
        path.write_bytes(packed[:-9] if dice.random() < 0.1 else packed)
    return path


def _lines(dice: Random, rows: list[Row]) -> bytes:
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    if dice.random() < 0.1:
        lines.insert(dice.randint(0, len(lines)), b" \n")
    if dice.random() < 0.06:
        lines.insert(dice.randint(0, len(lines)), dice.choice(BROKEN_LINES))
    if dice.random() < 0.5:
        lines.insert(0, dice.choice(HEADERS))
    content = b"".join(lines)
    return content[:-1] if dice.random() < 0.2 else content[:-5] if dice.random() < 0.03 else content


def _table(rows: list[Row], as_map: bool) -> pa.Table | None:
    """The rows as columns, None if their values are of several types."""
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.table({name: _column(name, [row.get(name) for row in rows], as_map) for name in names})
    except (pa.ArrowException, OverflowError):
        return None


def _column(name: str, values: list[Any], as_map: bool) -> pa.Array:
    """Of dicts pyarrow makes structs, if they have a key at all; other writers make maps."""
    if name == "clock" and (as_map or not any(values)):
        pairs = [value.items() if isinstance(value, dict) else value for value in values]
        return pa.array([value if value is None else list(value) for value in pairs], pa.map_(pa.string(), pa.int64()))
    return pa.array(values)
