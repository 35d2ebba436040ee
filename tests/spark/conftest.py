"""One Spark session for the whole room."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql import SparkSession

from unisono.errors import MisuseError
from unisono.spark.session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Workers are given classes of these tests by name.
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        session = local_session("unisono tests")
    except MisuseError as error:
        pytest.skip(str(error))
    session.sparkContext.setLogLevel("ERROR")
    # Jobs of a few rows: to compile a plan costs more than to interpret it, and there is nothing to adapt to.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    yield session
    session.stop()
