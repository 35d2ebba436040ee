"""What Spark finds by itself: a package named `pyspark_*` with a `DefaultSource`. Everything is in `unisono.spark`."""

from unisono.spark.source import UnisonoDataSource as DefaultSource

__all__ = ["DefaultSource"]
