"""Where Spark's log goes while a pipeline runs: to a file beside its checkpoint.

On a terminal it would drown what people want to see.
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOG_NAME: Final = "spark.log"
_VARIABLE: Final = "SPARK_CONF_DIR"
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
    """Let a Spark that starts meanwhile write its log there, unless its owner set it up."""
    # It repeats as a log line, with a stack, each refusal that is also raised.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    if _VARIABLE in os.environ or "SPARK_HOME" in os.environ or "://" in checkpoint:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="quiver-spark-") as folder:
        path = Path(checkpoint) / LOG_NAME
        (Path(folder) / "log4j2.properties").write_text(_PROPERTIES.format(path=path))
        os.environ[_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[_VARIABLE]
