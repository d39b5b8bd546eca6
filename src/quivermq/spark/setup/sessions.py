"""Starts Spark sessions with good defaults, and registers our formats with any session.

    session()                            here, on all cores
    session("spark://master:7077")       a cluster; executors need not have quivermq
    session("sc://server:15002")         Spark Connect; the server need not have it either

Under `spark-submit`, in a notebook or on a platform that has a session already, `session()` takes
that session and adds the formats.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from quivermq.errors import InvalidRequest
from quivermq.spark import class_archive
from quivermq.spark.formats import QuiverFormat, TableFormat
from quivermq.spark.setup import package_shipping, worker_python
from quivermq.spark.setup.java import find_java

logger: Final = logging.getLogger("quivermq.spark")

LOCAL_MASTER: Final = "local[*,4]"
"""All cores, and four attempts for each task, as on a cluster: `local[*]` gives up at once when a
broker restarts for longer than a client waits."""

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_OF_A_DRIVER: Final = {
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # On a local disk it took a third of the time of the default one. The cause is not known.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def session(
    master: str | None = None,
    *,
    servers: str | None = None,
    name: str = "quiver",
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """The active session, or a new one, with our formats registered.

    `servers` is the default of reads and writes that name none; without it QUIVER_SERVERS is.
    `config` are settings of Spark, which override ours.
    """
    settings = {key: _text(value) for key, value in (config or {}).items()}
    spark = SparkSession.getActiveSession()
    if spark is not None:
        _check_master(spark, master)
        _adjust(spark, settings)
    elif (remote := _remote(master)) is not None:
        spark = _connect(remote, name, settings)
    else:
        spark = _start(master, name, settings)
    register(spark, servers=servers)
    return spark


def register(spark: SparkSession, *, servers: str | None = None) -> None:
    """Register the formats `quiver` and `quiver_table` with a session.

    A format that is shipped, or that has defaults, is pickled as code; a plain one by its name.
    """
    servers = servers or os.environ.get("QUIVER_SERVERS") or None
    is_local = not _is_connect(spark) and str(spark.sparkContext.master).startswith("local")
    if is_local:
        worker_python.warn_of_another(str(spark.sparkContext.pythonExec))
    packed = None if is_local else package_shipping.pack_modules()
    if packed or servers:
        defaults = {"servers": servers} if servers else {}
        spark.dataSource.register(
            package_shipping.make_shipped_format(QuiverFormat, defaults, packed)
        )
    else:
        spark.dataSource.register(QuiverFormat)
    spark.dataSource.register(
        package_shipping.make_shipped_format(TableFormat, {}, packed) if packed else TableFormat
    )


def has_ended(spark: SparkSession) -> bool:
    """Whether the JVM of a session or its context has ended; always False for Spark Connect."""
    if _is_connect(spark):
        return False
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001  (no public way)
    except (Py4JError, OSError, AttributeError):  # the context was stopped in this process
        return True


def _start(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    chosen = _ALWAYS | _OF_A_DRIVER
    # `spark-submit` has chosen the master and started Java.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        worker_python.choose(is_local=False)
    else:
        master = master or settings.get("spark.master") or LOCAL_MASTER
        worker_python.choose(is_local=master.startswith("local"))
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _LOCAL
        chosen |= _java_settings(settings)
    if master is not None:
        builder = builder.master(master)
    for key, value in (chosen | dict(settings) | _join_java_options(chosen, settings)).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _silence_registration(spark)
    return spark


def _adjust(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Change the settings of a running session; warn of those that it cannot change."""
    for key, value in settings.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        elif spark.conf.get(key, None) != value:
            logger.warning("%s stays as it is: the session that is active has begun with it", key)


def _silence_registration(spark: SparkSession) -> None:
    """Silence the warning that Spark has found the format already, as in `pyspark_quiver`."""
    java: Any = spark.sparkContext._jvm  # noqa: SLF001
    log4j = java.org.apache.logging.log4j
    name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)


def _java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    asked = settings.get(_JAVA_OPTIONS, "")
    options = None if "SharedArchiveFile" in asked else class_archive.java_options(java)
    return {_JAVA_OPTIONS: options} if options else {}


def _join_java_options(chosen: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    both = [options[_JAVA_OPTIONS] for options in (chosen, settings) if _JAVA_OPTIONS in options]
    return {_JAVA_OPTIONS: " ".join(both)} if both else {}


def _remote(master: str | None) -> str | None:
    if master is None:
        return os.environ.get("SPARK_REMOTE") or None
    return master if master.startswith("sc://") else None


def _connect(remote: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(remote).appName(name)
    for key, value in (_ALWAYS | dict(settings)).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except ImportError as error:
        raise InvalidRequest(
            f"Spark Connect needs more of PySpark: pip install 'pyspark[connect]' ({error})"
        ) from error


def _check_master(spark: SparkSession, master: str | None) -> None:
    running = "Spark Connect" if _is_connect(spark) else spark.sparkContext.master
    is_same = master is None or master == running
    if is_same or (_is_connect(spark) and _remote(master) is not None):
        return
    raise InvalidRequest(
        f"a session with the master {running} is active, and {master} was asked for: leave the "
        f"master out to take that session, or end it first with spark.stop()"
    )


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _text(value: Any) -> str:
    """A value as Spark reads it: True is `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
