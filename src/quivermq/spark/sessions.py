"""A Spark session with good defaults, and the registration of our formats with any session."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from quivermq.spark.format import QuiverFormat

LOCAL_MASTER: Final = "local[*,4]"
"""All cores, and each task is tried up to four times, as on a cluster: `local[*]` gives up at once
when a broker restarts for longer than a client waits."""

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def session(
    master: str | None = None,
    *,
    name: str = "quiver",
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """A session in which our formats are known; the one that is active, if there is one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or LOCAL_MASTER
    settings = _ALWAYS | (_LOCAL if master.startswith("local") else {}) | dict(config or {})
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the format `quiver` known to a session."""
    spark.dataSource.register(QuiverFormat)
