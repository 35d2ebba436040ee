"""How much one task of an audit holds, and how finely a log is cut."""

from typing import NamedTuple


class RangeLimits(NamedTuple):
    """Every bound of an audit on Spark."""

    anchors: int = 200_000
    """Rows of the sample that is ordered on the driver. It holds some hundred bytes of each."""
    bucket_rows: int = 200_000
    """What one task judges at a time, about; ranges that are smaller share a bucket, and so does a log that is."""
    rows_max: int = 20_000_000
    """Of one range. A task takes about 150 bytes a row."""
    rounds_max: int = 4
    """Of lifting."""
    task_rows: int = 500_000
    """Of streams that are judged together, about. A task takes about 300 bytes a row."""
    stream_rows: int = 2_000_000
    """A stream longer than this is judged and sorted in pieces."""
