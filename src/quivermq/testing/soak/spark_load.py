"""Feeds a Spark stream and an archive through a soak, and checks that each row is there once."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

import quivermq
from quivermq.errors import QuiverError
from quivermq.lakehouse import Table
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster, Undo
from quivermq.testing.soak.spark_process import FROM, TABLE, TO

_BATCH: Final = 20
_PAUSE_S: Final = 0.3
_TIMEOUT_S: Final = 20.0
_FINISH_S: Final = 420.0
_PARTITIONS: Final = 2


class SparkLoad:
    """A producer in a thread, and Spark in a process that can be killed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        folder.mkdir()
        self._acked: list[bytes] = []
        self._over = threading.Event()
        self._failure: BaseException | None = None
        with cluster.connect(timeout=30.0) as client:
            for topic in (FROM, TO):
                client.create_topic(topic, partitions=_PARTITIONS)
        self._feeding = threading.Thread(target=self._feed, daemon=True)
        self._feeding.start()
        self._log = (folder / "spark.log").open("ab")
        self._process = self._start()

    def _feed(self) -> None:
        number = 0
        try:
            with quivermq.connect(self._cluster.servers, timeout=_TIMEOUT_S) as client:
                while not self._over.wait(_PAUSE_S):
                    values = [b"event %d" % n for n in range(number, number + _BATCH)]
                    number += _BATCH
                    try:
                        client.produce_many(FROM, values)
                    except QuiverError:
                        continue  # they may be stored, or not
                    self._acked += values
        except BaseException as error:
            self._failure = error

    def _start(self) -> subprocess.Popen[bytes]:
        module = "quivermq.testing.soak.spark_process"
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, self._cluster.servers, str(self._folder)],
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )

    def kill_spark(self) -> Undo:
        """Kill the driver with its JVM and its Python workers."""
        self._kill()

        def undo() -> None:
            self._process = self._start()

        return undo

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._over.set()
        if self._process.poll() is None:
            self._kill()
        self._log.close()

    def finish(self) -> dict[str, int]:
        """Let Spark do all that is left, and compare; returns counts."""
        self._over.set()
        self._feeding.join(_FINISH_S)
        if self._failure is not None:
            raise self._failure
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            raise Violation(f"Spark does not finish within {_FINISH_S:.0f} s") from None
        if code:
            raise Violation(f"Spark ended with {code}: {self._folder / 'spark.log'}")
        with self._cluster.connect(timeout=60.0) as client:
            stored, copied = _values(client, FROM), _values(client, TO)
        archived = Counter(_archived(self._folder / TABLE))
        self._compare(stored, copied, archived)
        return {
            "Spark: rows read and written": copied.total(),
            "Spark: rows archived": archived.total(),
        }

    def _compare(
        self, stored: Counter[bytes], copied: Counter[bytes], archived: Counter[bytes]
    ) -> None:
        if missing := set(self._acked) - set(stored):
            raise Violation(f"I1: {FROM} lacks {len(missing)} values: {sorted(missing)[:10]}")
        for name, found in ((TO, copied), ("the table", archived)):
            if found != stored:
                raise Violation(
                    f"Spark rows once: {name} lacks {list((stored - found).items())[:10]}, and has "
                    f"too often {list((found - stored).items())[:10]}"
                )


def _values(client: Any, topic: str) -> Counter[bytes]:
    return Counter(
        message.value
        for each in client.topic(topic).partitions
        for message in client.read(topic, each.partition)
    )


def _archived(path: Path) -> list[bytes]:
    values: list[bytes] = []
    for file in Table.open(str(path)).file_paths():
        values += pq.read_table(file, columns=["value"]).column("value").to_pylist()
    return values
