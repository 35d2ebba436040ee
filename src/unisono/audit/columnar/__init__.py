"""The columnar engine: the same verdicts from whole columns, for what fits one machine.

from unisono.audit.columnar import examine, load

examine(load("run.parquet")).verdicts
"""

from unisono.audit.columnar.judges import examine
from unisono.audit.columnar.reading import load

__all__ = ["examine", "load"]
