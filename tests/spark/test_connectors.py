"""Tells when a connector of Delta Lake or Iceberg loads on the PySpark we have: then decision 51 can be made anew."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

JARS = "UNISONO_CONNECTOR_JARS"
"""Paths of the jars of both connectors and of what they need, with commas between: nothing is fetched here."""
CONNECTORS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
        "spark.sql.catalog.spark_catalog.type": "hadoop",
    },
}
PROGRAM = """
import sys
from pyspark.sql import SparkSession
name, folder, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
spark.sql(f"CREATE TABLE t (id BIGINT) USING {name}")
spark.range(3).writeTo("t").append()
assert spark.table("t").count() == 3
"""


@pytest.mark.campaign
@pytest.mark.xfail(strict=True, reason="none loads on PySpark 4.3; where one does, see decision 51")
@pytest.mark.parametrize("name", CONNECTORS)
def test_a_connector_loads(name: str, tmp_path: Path) -> None:
    jars = os.environ.get(JARS)
    if not jars:
        pytest.skip(f"set {JARS} to the jars of the connectors")
    assert pyspark.__version__.startswith("4.3")
    given = {**CONNECTORS[name], "spark.jars": jars, "spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    given["spark.sql.catalog.spark_catalog.warehouse"] = str(tmp_path / "warehouse")
    settings = [f"{key}={value}" for key, value in given.items()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(tmp_path), *settings],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
