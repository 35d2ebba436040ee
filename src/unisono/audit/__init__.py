"""Judges: they read journals only, never a machine's state, and their verdicts explain themselves.

from unisono.audit import judge, read

for verdict in judge(read("run.jsonl")):
    print(verdict.judge, verdict.holds, verdict.witness)
"""

from unisono.audit.files import read, scan, write_jsonl
from unisono.audit.judges.table import JUDGES, judge, judge_trace
from unisono.audit.metrics import measure
from unisono.audit.report import Report, examine
from unisono.audit.story import Story, tell
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict

__all__ = [
    "JUDGES",
    "Report",
    "Story",
    "Trace",
    "Verdict",
    "examine",
    "judge",
    "judge_trace",
    "measure",
    "read",
    "scan",
    "tell",
    "write_jsonl",
]
