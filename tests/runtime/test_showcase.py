"""The main job, small: real nats-servers and node processes; the journals it leaves are judged again here."""

import json
import os
import subprocess
import sys
from pathlib import Path

from unisono.archive.headers import GAP
from unisono.archive.reader import Archive
from unisono.archive.schema import to_events
from unisono.audit import examine, read

AGREE = Path(__file__).parents[2] / "examples" / "agree.py"


def test_raw_subscribers_disagree_and_those_of_unisono_agree(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, AGREE, "--events", "60", "--per-second", "200", "--out", out],
        env={**os.environ, "UNISONO_SPARK": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    raw, ours = examine(read(out / "raw.jsonl")), examine(read(out / "unisono.jsonl"))
    assert raw.deliveries == ours.deliveries == 2 * 2 * 60
    assert not {verdict.judge: verdict.holds for verdict in raw.verdicts}["pairwise-order"]
    assert [verdict.judge for verdict in ours.verdicts if not verdict.holds] == []
    assert "unisono audit" in done.stdout
    archive = Archive(out / "west-log" / "west" / "archive")
    kept = [event for batch in archive.read(0, archive.bounds()[1]) for event in to_events(batch)]
    trades = [json.loads(event.payload) for event in kept if GAP not in event.headers]
    told = [f"{trade['publisher']}.{trade['topic']}.{trade['number']}" for trade in trades]
    heard = [r.event for r in read(out / "unisono.jsonl").records if r.kind == "deliver" and r.subscriber == "west"]
    assert told == [event for event in heard if event in set(told)], "the archive keeps the order that was told"
    assert told
