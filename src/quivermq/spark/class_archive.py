"""An archive of Spark's classes that the JVM maps into memory (AppCDS): sessions start sooner.

    python -m quivermq.spark.class_archive

makes the archive for the installed Spark and Java; local sessions use it from then on. It is made
on request only: that takes half a minute of a processor and 200 MB in the cache.
"""

import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

from quivermq.errors import InvalidRequest
from quivermq.spark.setup.java import Java, find_java
from quivermq.spark.setup.script_cache import cache_folder

_MAKING_S: Final = 300.0
_QUIET: Final = "-Xlog:disable"
"""Java ignores an archive that does not fit, and warns on standard output without this."""

# Java separates archives by colons, and Spark splits options at blanks and quotes.
_PLAIN: Final = re.compile(r"[\w./+@-]+", re.ASCII)

# Loads the classes of a pipeline's first minute: shuffle, Python, Parquet, SQL, JSON, a stream.
_EXERCISE: Final = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import functions as F
from quivermq.spark import session

spark = session("local[2]", config={"spark.driver.extraJavaOptions": sys.argv[1]})
spark.sparkContext.setLogLevel("OFF")
with tempfile.TemporaryDirectory() as folder:
    rows = spark.range(1000).withColumn("k", F.col("id") % 7).withColumn("t", F.current_timestamp())
    rows.repartition(2).groupBy("k").count().orderBy("k").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
    spark.read.parquet(f"{folder}/rows").createOrReplaceTempView("rows")
    spark.sql(
        "SELECT window(t, '1 minute') AS w, count(*) AS n, max(to_json(struct(id, k))) AS j"
        " FROM rows JOIN (SELECT 1 AS k) USING (k) GROUP BY 1"
    ).toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows")
    counts = stream.withWatermark("t", "1 minute").groupBy(F.window("t", "1 minute")).count()
    query = counts.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    query.outputMode("update").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def java_options(java: Java) -> str | None:
    """The JVM options that use the archive of this Spark and Java; None if there is none."""
    base, archive = _places(java)
    if not archive.exists() or not _PLAIN.fullmatch(str(archive)):
        return None
    return f"{_QUIET} -XX:SharedArchiveFile={base}:{archive}"


def make(java: Java) -> Path:
    """Make the archive if it is missing. Several processes may try at once."""
    base, archive = _places(java)
    if archive.exists():
        return archive
    if not _PLAIN.fullmatch(str(archive)):
        raise InvalidRequest(
            f"no class archive: {archive} cannot be named to Java; let XDG_CACHE_HOME be a folder "
            "with a plain name"
        )
    base.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base.parent) as folder:
        # An archive records the path of its base archive, so the base is put in place first.
        if not base.exists():
            made = Path(folder) / "base.jsa"
            _run([str(java.command), "-Xshare:dump", f"-XX:SharedArchiveFile={made}", _QUIET])
            made.rename(base)
        made = Path(folder) / "spark.jsa"
        options = f"{_QUIET} -XX:SharedArchiveFile={base} -XX:ArchiveClassesAtExit={made}"
        _run([sys.executable, "-c", _EXERCISE, options])
        made.rename(archive)
    return archive


def _places(java: Java) -> tuple[Path, Path]:
    """The archive of Java's own classes, and that of Spark's, which is based on it."""
    jars = Path(pyspark.__file__).resolve().parent / "jars"
    # The JVM refuses an archive of other jars or another Java; each pair has a folder of its own.
    identity = f"{java.command.resolve()} {java.release} {pyspark.__version__} {jars}"
    folder = cache_folder() / f"classes-{sha256(identity.encode()).hexdigest()[:16]}"
    return folder / "base.jsa", folder / "spark.jsa"


def _run(command: list[str]) -> None:
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    try:
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=_MAKING_S, env=environ
        )
    except subprocess.CalledProcessError as error:
        raise InvalidRequest(
            f"no class archive: {(error.stderr or error.stdout)[-2000:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InvalidRequest(
            f"no class archive: it was not made within {_MAKING_S:.0f} seconds; try again when "
            "the machine is less busy"
        ) from error


if __name__ == "__main__":
    print(make(find_java()))
