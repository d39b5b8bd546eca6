"""Topics as Spark batches and streams, read and written exactly once: the format `quiver`.

    from quivermq.spark import session

    spark = session()
    orders = spark.read.format("quiver").option("subscribe", "orders").load()

`source/` reads topics, `sink/` writes them, `archive/` copies them to Delta tables and back,
`table_*` reads and writes such tables, `setup/` starts sessions. Knows the client and the
lakehouse; must never know what brokers are made of. Needs `quivermq[spark]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from quivermq.spark.archive.archive import Archive, Payload
    from quivermq.spark.archive.json_payloads import parse_columns, with_payload
    from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy, CommitSummary
    from quivermq.spark.archive.replay import Replay
    from quivermq.spark.archive.writer import REASON
    from quivermq.spark.failures import failure, may_pass
    from quivermq.spark.setup.sessions import has_ended, register, session
    from quivermq.spark.table_reader import read_table

__all__ = [
    "REASON",
    "Archive",
    "ArchiveLoop",
    "CommitPolicy",
    "CommitSummary",
    "Payload",
    "Replay",
    "failure",
    "has_ended",
    "may_pass",
    "parse_columns",
    "read_table",
    "register",
    "session",
    "with_payload",
]
_MODULES: Final = {
    "REASON": "archive.writer",
    "Archive": "archive.archive",
    "ArchiveLoop": "archive.loop",
    "CommitPolicy": "archive.loop",
    "CommitSummary": "archive.loop",
    "Payload": "archive.archive",
    "Replay": "archive.replay",
    "failure": "failures",
    "has_ended": "setup.sessions",
    "may_pass": "failures",
    "parse_columns": "archive.json_payloads",
    "read_table": "table_reader",
    "register": "setup.sessions",
    "session": "setup.sessions",
    "with_payload": "archive.json_payloads",
}


def __getattr__(name: str) -> Any:
    """Import a name, and PySpark, when it is used: programs without Spark need neither."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("pyspark.sql")
    except ImportError as error:
        raise ImportError(
            f"quivermq.spark needs PySpark: pip install 'quivermq[spark]' ({error})"
        ) from error
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
