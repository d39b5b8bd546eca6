"""A Spark session with good defaults, and the registration of our formats with any session."""

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from quivermq.spark.format import QuiverFormat

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def session(master: str = "local[*,4]", *, name: str = "quiver", **config: Any) -> SparkSession:
    """A session in which the format `quiver` is known."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (_DEFAULTS | config).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the format `quiver` known to a session."""
    spark.dataSource.register(QuiverFormat)
