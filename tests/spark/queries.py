"""Running streaming queries to their end."""

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter

ATTEMPTS = 40


def finish(writer: DataStreamWriter) -> None:
    """Runs over everything that is there. Raises what the query died of.

    Spark gives a new Python process 10 s to call back, which a loaded machine cannot always keep: tried again.
    """
    for attempt in range(ATTEMPTS):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
                raise
