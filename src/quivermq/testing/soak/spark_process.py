"""Runs a Spark stream from topic to topic, and an archive of the first, through a soak.

    python -m quivermq.testing.soak.spark_process SERVERS FOLDER

Both go on where they were when the process is killed and started again. At SIGTERM the process
copies and archives what is left, and ends.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import quivermq
from quivermq.errors import QuiverError
from quivermq.spark import Archive, ArchiveLoop, CommitPolicy, session

FROM: Final = "spark-from"
TO: Final = "spark-to"
TABLE: Final = "table"
_TRIGGER: Final = "3 seconds"
_COMMIT_AGE_S: Final = 10.0
_TIMEOUT_S: Final = "120"
_PAUSE_S: Final = 1.0


def main(arguments: list[str] | None = None) -> int:
    servers, folder = arguments or sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = session(name="soak", config={"spark.sql.shuffle.partitions": 2})
    connection = {"servers": servers, "timeout": _TIMEOUT_S}
    with quivermq.connect(servers, timeout=120.0) as client:
        archive = Archive(FROM, str(Path(folder) / TABLE), connection)
        loop = ArchiveLoop(
            spark, client, archive, CommitPolicy(age=_COMMIT_AGE_S), on_trouble=_complain
        )
        archiving = threading.Thread(target=loop.run, args=(over,), daemon=True)
        archiving.start()
        _copy(spark, connection, folder, over)
        archiving.join()
        _finish(spark, connection, folder, loop)
    spark.stop()
    return 0


def _copy(spark: Any, connection: dict[str, str], folder: str, over: threading.Event) -> None:
    """Run the stream; one that fails is started again, as a supervisor does."""
    while not over.is_set():
        query = _start(spark, connection, folder, {"processingTime": _TRIGGER})
        while not over.wait(_PAUSE_S) and query.isActive:
            pass
        if query.isActive:
            query.stop()
        elif query.exception() is not None:
            _complain(f"the stream failed: {query.exception()}")


def _finish(spark: Any, connection: dict[str, str], folder: str, loop: ArchiveLoop) -> None:
    """Copy and archive all that is there."""
    query = _start(spark, connection, folder, {"availableNow": True})
    query.awaitTermination()
    while True:
        try:
            loop.run_once()
        except QuiverError as error:
            _complain(str(error))
            time.sleep(_PAUSE_S)
        else:
            return


def _start(spark: Any, connection: dict[str, str], folder: str, trigger: dict[str, Any]) -> Any:
    rows = spark.readStream.format("quiver").options(**connection).option("subscribe", FROM)
    rows = rows.option("startingOffsets", "earliest").load()
    written = rows.selectExpr("key", "value").writeStream.format("quiver").options(**connection)
    checkpoint = str(Path(folder) / "checkpoint")
    options = {"topic": TO, "checkpointLocation": checkpoint}
    return written.options(**options).trigger(**trigger).start()


def _complain(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
