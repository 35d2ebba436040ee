"""Who judges a file: the Python judges, the columnar engine, or Spark; all say the same, they differ in what they cost.

`auto` takes the Python judges for what is small (they start at once), the columnar engine for what fits this machine
(extra `arrow`), and Spark beyond.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from unisono.audit.files import read
from unisono.audit.parts import open_part, parts_of
from unisono.audit.report import Report, examine
from unisono.errors import MisuseError
from unisono.model.journal import Header

ENGINES = ("auto", "local", "python", "arrow", "spark")
"""What `--on` takes beside addresses of Spark; `local` is `auto` without Spark."""
SMALL_BYTES = 5_000_000
"""JSON lines of which the Python judges cost less than to load numpy and scipy: some 50 000 deliveries."""
SMALL_COLUMNAR_BYTES = 800_000
"""The same of Arrow and Parquet, which are packed."""
MEMORY_PER_BYTE = 3
"""Memory the columnar engine takes for a byte of JSON lines, at most; measured 1.2 to 2.5."""
MEMORY_PER_COLUMNAR_BYTE = 24
"""The same for a byte of Parquet; measured 11 to 24 (three columns)."""


def choose(path: Path, spark: bool) -> str:
    """`python`, `arrow` or, if allowed, `spark`: by the size of the file and by what is installed."""
    parts = parts_of(path)
    size = sum(part.path.stat().st_size for part in parts if part.path.exists())
    file, is_columnar = open_part(parts[0].path)
    file.close()
    if size <= (SMALL_COLUMNAR_BYTES if is_columnar else SMALL_BYTES):
        return "python"
    needed = size * (MEMORY_PER_COLUMNAR_BYTE if is_columnar else MEMORY_PER_BYTE)
    if spark and find_spec("pyspark") is not None and needed > memory_bytes():
        return "spark"
    return "arrow" if has_arrow() else "python"


def has_arrow() -> bool:
    """Whether the extra `arrow` is installed."""
    return all(find_spec(name) is not None for name in ("pyarrow", "numpy", "scipy"))


def memory_bytes() -> int:
    """The memory of this machine that is not in use."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def examine_file(path: Path, engine: str, told: Callable[[str], None] = lambda step: None) -> tuple[Header, Report]:
    """`examine_file(Path("run.jsonl"), "arrow")`: the header and the report, by `python` or `arrow`."""
    if engine == "python":
        journal = read(path)
        told("judging")
        return journal.header, examine(journal)
    if not has_arrow():
        raise MisuseError("--on arrow needs pyarrow, numpy and scipy: pip install 'unisono[arrow]', or --on python")
    from unisono.audit.columnar import examine as examine_columns  # an extra, and slow to import
    from unisono.audit.columnar import load

    log = load(path)
    told("judging")
    return log.header, examine_columns(log)
