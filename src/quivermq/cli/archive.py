"""`quiver pipeline archive`, `replay` and `compact`: between a topic and a table."""

import json
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.archive_troubles import one_line, spark_troubles
from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Once,
    Servers,
    Timeout,
    complete_topics,
    connect,
    duration_option,
    number_option,
    parse_position,
    size_option,
)
from quivermq.cli.output import count, format_number, print_error, print_json, print_line, remark
from quivermq.quantities import format_size

if TYPE_CHECKING:
    from quivermq.spark import CommitSummary

_FILE_BYTES: Final = 128 << 20
_SPARK_TIMEOUT_SECONDS: Final = 60.0
_STANDARD_ERROR: Final = 2
_FILES: Final[dict[str, Any]] = {"rich_help_panel": "Files and commits"}
_JSON: Final[dict[str, Any]] = {"rich_help_panel": "JSON payloads"}

TopicOption = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="The topic.", autocompletion=complete_topics)
]
Table = Annotated[str, typer.Argument(metavar="PATH", help="The table's folder.")]
ToTable = Annotated[
    str, typer.Option("--to", metavar="PATH", help="The table's folder; created if need be.")
]
FromTable = Annotated[str, typer.Option("--from", metavar="PATH", help="The table's folder.")]
CommitSize = Annotated[
    float,
    size_option("Commit as soon as about so much has come.", show_default="128MB", **_FILES),
]
CommitAge = Annotated[
    float,
    duration_option(
        "Commit what came so long ago, however little it is.", show_default="60s", **_FILES
    ),
]
FileSize = Annotated[
    float,
    size_option("How large files should be.", "--target-file-size", show_default="128MB", **_FILES),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Continue even if messages were dropped before they were archived.",
        **_FILES,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--json-columns",
        metavar="COLUMNS",
        help="Values are JSON: 'id BIGINT NOT NULL, amount DOUBLE', or @FILE with these columns.",
        **_JSON,
    ),
]
Quarantine = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The table for values that do not fit, with the reason; default: PATH.quarantine.",
        **_JSON,
    ),
]
Into = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Put all fields into one column.", **_JSON)
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs: local[2], spark://HOST:7077, sc://HOST."),
]
Keep = Annotated[
    float,
    duration_option("Remove files that no version of this time needs.", show_default="7d"),
]
Start = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="The first: an offset, a time (2025-01-31T12:00), an age (2h)."
    ),
]
End = Annotated[
    str | None, typer.Option(metavar="WHERE", help="Behind the last: an offset, a time, an age.")
]
SourcePartitions = Annotated[
    list[int] | None,
    number_option("Only from this partition; may be repeated.", "--partition", least=0),
]
ReplayId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Name this replay; messages replayed under the same name are skipped.",
    ),
]
KeepPartitions = Annotated[
    bool,
    typer.Option("--keep-partitions", help="To the partition each came from, not by its key."),
]
KeepTimestamps = Annotated[
    bool, typer.Option("--keep-timestamps", help="With its first time, not that of the replay.")
]


def archive(
    topic: TopicOption,
    to: ToTable,
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
    """Archive a topic to a Delta table, exactly once, by day; continue where the table ends."""
    if json_columns is None and (quarantine or into):
        raise UsageError("--quarantine and --into need --json-columns")
    _check_extra()
    from quivermq.lakehouse import local_folder  # noqa: PLC0415  (slow to load)
    from quivermq.spark import Archive, ArchiveLoop, CommitPolicy, Payload, session  # noqa: PLC0415

    payload = None
    if columns := _read_columns(json_columns):
        payload = Payload(columns, quarantine or f"{local_folder(to)}.quarantine", into)
    connection = {"servers": servers, "timeout": str(_SPARK_TIMEOUT_SECONDS)}
    table = Archive(topic, to, connection, int(target_file_size), payload, accept_loss)
    with connect(servers, timeout) as client, spark_troubles():
        # Fails here if it cannot work, before Spark takes its seconds to start.
        table.pending(client)
        with greeting_aside():
            spark = session(master, name=f"archive of {topic}")
        _silence(spark)
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
                stop = _catch_stop_signals()
                if not as_json:
                    remark(f"archiving {topic} to {to}; Ctrl-C ends it after the commit under way")
                loop.run(stop)
        finally:
            spark.stop()


def replay(
    table: FromTable,
    topic: TopicOption,
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
    """Send the messages of a table to a topic again, in order."""
    _check_extra()
    from quivermq import lakehouse  # noqa: PLC0415  (slow to load)
    from quivermq.spark import Replay, session  # noqa: PLC0415

    wanted = Replay(
        table,
        topic,
        {"servers": servers, "timeout": str(_SPARK_TIMEOUT_SECONDS)},
        tuple(partition or ()),
        parse_position(start, "--start", names=()),
        parse_position(end, "--end", names=()),
        name,
        keep_partitions,
        keep_timestamps,
    )
    lakehouse.Table.open(table)
    with connect(servers, timeout) as client, spark_troubles():
        client.topic(topic)  # must exist: its owner chooses its settings
        with greeting_aside():
            spark = session(master, name=f"replay to {topic}")
        _silence(spark)
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
    table: Table,
    target_file_size: FileSize = _FILE_BYTES,
    keep: Keep = 7 * 86_400.0,
    as_json: AsJson = False,
) -> None:
    """Merge a table's small files, and remove files that no version needs."""
    _check_extra()
    from quivermq.lakehouse import compact as compact_table  # noqa: PLC0415  (slow to load)

    if target_file_size < 1:
        raise UsageError("--target-file-size must be at least a byte")
    done = compact_table(table, int(target_file_size), math.ceil(keep / 3_600))
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


@contextmanager
def greeting_aside() -> Iterator[None]:
    """Keep what a JVM says at its start from standard error, unless it fails to start.

    It inherits the descriptor: there is no other way to its first lines.
    """
    if os.environ.get("QUIVER_DEBUG"):
        yield
        return
    if sys.stderr.isatty():
        remark("starting Spark, which takes some seconds")
    with tempfile.TemporaryFile() as aside:
        sys.stderr.flush()
        kept = os.dup(_STANDARD_ERROR)
        os.dup2(aside.fileno(), _STANDARD_ERROR)
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            os.dup2(kept, _STANDARD_ERROR)
            os.close(kept)


def _silence(spark: Any) -> None:
    """Turn Spark's own log off: we report errors once. `QUIVER_DEBUG=1` leaves it on."""
    is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
    if not is_remote and not os.environ.get("QUIVER_DEBUG"):
        spark.sparkContext.setLogLevel("OFF")


def _catch_stop_signals() -> threading.Event:
    """An event that the first Ctrl-C or SIGTERM sets; the second one ends the process."""
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
        f"{count(done.files, 'file')}, {format_number(done.left)} behind"
    )
    for number, (start, end) in sorted(done.pending.lost.items()):
        print_error(f"partition {number}: [{start}, {end}) was dropped unarchived", "warning")


def _check_extra() -> None:
    missing = [name for name in ("pyspark", "deltalake") if find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}: pip install 'quivermq[spark]'")


def _read_columns(given: str | None) -> str | None:
    """The columns; read from the file behind an @."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except OSError as error:
        raise UsageError(f"--json-columns {given}: {error.strerror}") from None
