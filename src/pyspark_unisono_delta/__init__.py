"""What Spark finds by itself: a package named `pyspark_*` with a `DefaultSource`. See `unisono.spark.lakehouse`."""

from unisono.spark.lakehouse.source import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
