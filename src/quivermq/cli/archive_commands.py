"""`quiver pipeline archive`, `replay` and `compact`: a topic and its table."""

import json
import math
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import typer

from quivermq.cli.archive_options import (
    AcceptLoss,
    Columns,
    CommitAge,
    CommitSize,
    End,
    FileSize,
    From,
    Into,
    KeepPartitions,
    KeepTimestamps,
    Kept,
    Master,
    Once,
    Quarantine,
    ReplayId,
    SourcePartitions,
    Start,
    TablePath,
    To,
    Topic,
    columns_text,
    place,
)
from quivermq.cli.archive_troubles import one_line, spark_troubles
from quivermq.cli.misuse import Misuse
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import count, known, print_error, print_json, print_line, remark
from quivermq.cli.quantities import format_size

if TYPE_CHECKING:
    from quivermq.spark import CommitSummary

_FILE_BYTES = 128 << 20
_SPARK_TIMEOUT = 60.0


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(archive)
    app.command()(replay)
    app.command()(compact)


def archive(
    topic: Topic,
    to: To,
    once: Once = False,
    commit_size: CommitSize = _FILE_BYTES,
    commit_age: CommitAge = 60.0,
    target_file_size: FileSize = _FILE_BYTES,
    accept_loss: AcceptLoss = False,
    json_columns: Columns = None,
    quarantine: Quarantine = None,
    into: Into = None,
    master: Master = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Put a topic into a Delta table, exactly once, by day; go on where the table is."""
    if json_columns is None and (quarantine or into):
        raise Misuse("--quarantine and --into belong to --json-columns")
    _check_extra()
    from quivermq.lakehouse import local_folder  # noqa: PLC0415  (slow to load)
    from quivermq.spark import Archive, ArchiveLoop, CommitPolicy, Payload, session  # noqa: PLC0415

    payload = None
    if columns := columns_text(json_columns):
        payload = Payload(columns, quarantine or f"{local_folder(to)}.quarantine", into)
    connection = {"servers": servers, "timeout": str(_SPARK_TIMEOUT)}
    table = Archive(topic, to, connection, int(target_file_size), payload, accept_loss)
    with connect(servers, timeout) as client, spark_troubles():
        # What cannot work is said before Spark takes its seconds to start.
        table.pending(client)
        spark = session(master, name=f"archive of {topic}")
        quieten(spark)
        loop = ArchiveLoop(
            spark,
            client,
            table,
            CommitPolicy(int(commit_size), commit_age),
            lambda done: _report(done, as_json=as_json),
            lambda trouble: print_error(one_line(trouble), "warning"),
        )
        try:
            if once:
                commits = loop.run_once()
                if not commits and not as_json:
                    remark(f"{to} holds all of {topic}")
            else:
                stop = stop_signals()
                if not as_json:
                    remark(f"archiving {topic} to {to}; Ctrl-C ends it after the commit under way")
                loop.run(stop)
        finally:
            spark.stop()


def replay(
    table: From,
    topic: Topic,
    partition: SourcePartitions = None,
    start: Start = None,
    end: End = None,
    name: ReplayId = None,
    keep_partitions: KeepPartitions = False,
    keep_timestamps: KeepTimestamps = False,
    master: Master = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Put messages of a table back onto a topic, in order."""
    _check_extra()
    from quivermq.lakehouse import Table  # noqa: PLC0415  (slow to load)
    from quivermq.spark import Replay, session  # noqa: PLC0415

    wanted = Replay(
        table,
        topic,
        {"servers": servers, "timeout": str(_SPARK_TIMEOUT)},
        tuple(partition or ()),
        place(start),
        place(end),
        name,
        keep_partitions,
        keep_timestamps,
    )
    Table.open(table)
    with connect(servers, timeout) as client, spark_troubles():
        client.topic(topic)  # must be there: what it is like is for its owner to say
        spark = session(master, name=f"replay to {topic}")
        quieten(spark)
        try:
            found = wanted.rows(spark).count()
            wanted.run(spark)
        finally:
            spark.stop()
    if as_json:
        print_json({"topic": topic, "messages": found})
        return
    print_line(f"{count(found, 'message')} of {table} put back onto {topic}")


def compact(
    table: TablePath,
    target_file_size: FileSize = _FILE_BYTES,
    keep: Kept = 7 * 86_400.0,
    as_json: AsJson = False,
) -> None:
    """Put a table's small files together, and remove files that nobody needs."""
    _check_extra()
    from quivermq.lakehouse import compact as tidy  # noqa: PLC0415  (slow to load)

    if target_file_size < 1:
        raise Misuse("--target-file-size must be at least a byte")
    done = tidy(table, int(target_file_size), math.ceil(keep / 3_600))
    if as_json:
        print_json(
            {
                "files_before": done.files_before,
                "files_after": done.files_after,
                "removed": done.removed,
            }
        )
        return
    print_line(
        f"{count(done.files_before, 'file')} became {count(done.files_after, 'file')}; "
        f"{count(done.removed, 'file')} removed from disk"
    )


def quieten(spark: Any) -> None:
    """What goes wrong is said once, by us; `QUIVER_DEBUG=1` shows what Spark has to say."""
    is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
    if not is_remote and not os.environ.get("QUIVER_DEBUG"):
        spark.sparkContext.setLogLevel("OFF")


def stop_signals() -> threading.Event:
    """Set by the first Ctrl-C or SIGTERM; the second one ends the process."""
    stop = threading.Event()

    def receive(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, receive)
    return stop


def _report(done: "CommitSummary", *, as_json: bool) -> None:
    table, wanted = done.table, done.pending.range
    rate = wanted.count / done.seconds if done.seconds else 0.0
    if as_json:
        line: dict[str, Any] = {
            "topic": wanted.topic,
            "version": table.version,
            "messages": wanted.count,
            "seconds": round(done.seconds, 3),
            "files": done.files,
            "lag": done.left,
            "offsets": {str(number): end for number, end in sorted(wanted.ends.items())},
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        return
    print_line(
        f"version {table.version}: {count(wanted.count, 'message')}, about "
        f"{format_size(done.pending.bytes)}, in {done.seconds:.1f} s ({rate:,.0f}/s); "
        f"{count(done.files, 'file')}, {known(done.left)} behind"
    )
    for number, (start, end) in sorted(done.pending.lost.items()):
        print_error(f"partition {number}: [{start}, {end}) was dropped unarchived", "warning")


def _check_extra() -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    missing = [name for name in ("pyspark", "deltalake") if find_spec(name) is None]
    if missing:
        raise Misuse(f"this needs {' and '.join(missing)}: pip install 'quivermq[spark]'")
