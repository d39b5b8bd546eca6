"""Sends Spark's log to a file beside the checkpoint while a pipeline runs, not to the terminal."""

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_NAME: Final = "spark.log"
ERRORS_NAME: Final = "spark.err"
_STANDARD_ERROR: Final = 2
_VARIABLE: Final = "SPARK_CONF_DIR"
_PLAIN: Final = re.compile(r"[\w./ +@,=-]+", re.ASCII)
_PROPERTIES: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


@contextmanager
def log_to(checkpoint: str) -> Iterator[None]:
    """Make a Spark that starts within this context log to the folder `checkpoint`.

    Its standard error goes there too: whenever a query ends, its planning process prints an error.
    A configuration of the user's own stays.
    """
    # It logs, with a stack, every error that is also raised.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    # It logs every call to a Spark that has ended.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_the_gateway)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    if "://" in checkpoint or _is_running():
        yield
        return
    with ExitStack() as stack:
        if _VARIABLE not in os.environ and "SPARK_HOME" not in os.environ:
            prefix = "quiver-spark-"
            settings = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            path = _plain_name(Path(checkpoint), settings) / LOG_NAME
            (settings / "log4j2.properties").write_text(_PROPERTIES.format(path=path))
            os.environ[_VARIABLE] = str(settings)
            stack.callback(os.environ.pop, _VARIABLE, None)
        stack.enter_context(_children_write_to(Path(checkpoint) / ERRORS_NAME))
        yield


def _plain_name(folder: Path, settings: Path) -> Path:
    """The folder by a name that a properties file can hold: only plain letters are safe there."""
    if _PLAIN.fullmatch(str(folder)):
        return folder
    link = settings / "checkpoint"
    link.symlink_to(folder.resolve(), target_is_directory=True)
    return link


def silence_accumulator(spark: "SparkSession") -> None:
    """Silence the thread that receives Spark's counters: when Spark ends, it prints a stack that
    says nothing new."""
    context = (
        None if type(spark).__module__.startswith("pyspark.sql.connect") else spark.sparkContext
    )
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _is_not_of_the_gateway(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _is_running() -> bool:
    from pyspark import SparkContext  # noqa: PLC0415  (takes a while to import)

    return SparkContext._active_spark_context is not None  # noqa: SLF001  (no public way)


@contextmanager
def _children_write_to(path: Path) -> Iterator[None]:
    """Processes that start within this context write standard error to this file; ours stays."""
    own = sys.stderr
    try:
        is_own = own.fileno() == _STANDARD_ERROR
    except (OSError, AttributeError):
        is_own = False
    if not is_own:
        yield
        return
    own.flush()
    kept = os.dup(_STANDARD_ERROR)
    with path.open("wb") as file:
        os.dup2(file.fileno(), _STANDARD_ERROR)
    sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1, encoding=own.encoding)
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = own
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)
