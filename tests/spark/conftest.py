"""One Spark session for the whole room."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql import SparkSession

from unisono.errors import MisuseError
from unisono.spark.session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        session = local_session("unisono tests")
    except MisuseError as error:
        pytest.skip(str(error))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
