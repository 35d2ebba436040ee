"""Who judges a file: the Python judges, the columnar engine, or Spark; all say the same, they differ in what they cost.

`auto` takes the Python judges for what is small (they start at once), the columnar engine for what fits this machine
(extra `arrow`), and Spark beyond.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from unisono.audit.files import read
from unisono.audit.memory import memory_bytes
from unisono.audit.parts import open_part, parts_of, unpacked_bytes
from unisono.audit.report import Report, examine
from unisono.errors import MisuseError
from unisono.model.journal import Header

ENGINES = ("auto", "local", "python", "arrow", "spark")
"""What `--on` takes beside addresses of Spark; `local` is `auto` without Spark."""


class Form(NamedTuple):
    """What a byte of a log costs, unpacked; measured by `benchmarks/audit_engines.py`."""

    small_bytes: int
    """Up to here the Python judges cost less than to load numpy and scipy."""
    memory: int
    """What the columnar engine takes for a byte, at most."""


LINES = Form(14_000_000, 3)
"""Both engines cost the same at 11 MB of three columns (220 000 deliveries) and at 20 MB of ten (120 000). Memory:
1.2 to 2.9."""
PARQUET = Form(250_000, 32)
"""The same at 0.13 MB of three columns and 0.5 MB of ten (50 000 deliveries each). Memory: 16 (ten columns) to 30."""
ARROW = Form(2_000_000, 5)
"""The same at 1.4 MB of three columns (60 000 deliveries) and beyond 2.3 MB of ten (30 000). Memory: 3.8 (ten columns)
to 4.9."""


def choose(path: Path, spark: bool) -> str:
    """`python`, `arrow` or, if allowed, `spark`: by the size of the log and by what is installed."""
    weighed = [(form_of(part.path), unpacked_bytes(part.path)) for part in parts_of(path)]
    if sum(size / form.small_bytes for form, size in weighed) <= 1:
        return "python"
    needed = sum(size * form.memory for form, size in weighed)
    if spark and find_spec("pyspark") is not None and needed > memory_bytes():
        return "spark"
    return "arrow" if has_arrow() else "python"


def form_of(path: Path) -> Form:
    """By its first bytes; raises FormatError if they cannot be read."""
    file, is_columnar = open_part(path, to_read=False)
    with file:
        return LINES if not is_columnar else PARQUET if file.read(4) == b"PAR1" else ARROW


def has_arrow() -> bool:
    """Whether the extra `arrow` is installed."""
    return all(find_spec(name) is not None for name in ("pyarrow", "numpy", "scipy"))


def examine_file(path: Path, engine: str, told: Callable[[str], None] = lambda step: None) -> tuple[Header, Report]:
    """`examine_file(Path("run.jsonl"), "arrow")`: the header and the report, by `python` or `arrow`."""
    if engine == "python":
        with _no_search_for_circles():
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


@contextmanager
def _no_search_for_circles() -> Iterator[None]:
    """Nothing of an audit is garbage in circles, and to look for such costs the more, the more there is."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
