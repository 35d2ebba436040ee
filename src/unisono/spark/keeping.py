"""Frames that are used more than once: computed once, kept for as long as they are needed, and then freed."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

CHECKPOINT_DIR = "spark.checkpoint.dir"


@contextmanager
def held(frame: DataFrame) -> Iterator[DataFrame]:
    """`with held(frame) as rows: …`: in memory, on disk where that is full; computed again if an executor is lost.

    A session with `spark.checkpoint.dir`, a folder that all executors share, writes it there instead: what was computed
    survives executors, and Spark removes it with the session or, with its cleaner, before.
    """
    if frame.sparkSession.conf.get(CHECKPOINT_DIR, None):
        yield frame.checkpoint()
        return
    rows = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()
