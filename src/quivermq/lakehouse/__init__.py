"""Delta tables in a file system that hold what topics held, and record up to which offset.

Knows the errors only; must never know Spark. Needs `deltalake`, which comes with `quivermq[spark]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from quivermq.lakehouse.data_files import TARGET_FILE_BYTES, DataFile, FileWriter
    from quivermq.lakehouse.progress import (
        ARCHIVE_PROPERTY,
        TOPIC_ID_PROPERTY,
        TOPIC_PROPERTY,
        ArchiveRange,
        archive_group,
        recreated_error,
    )
    from quivermq.lakehouse.table import Table, check_apart, local_folder
    from quivermq.lakehouse.upkeep import SMALL_FILES_MAX, Upkeep, compact, small_files

__all__ = [
    "ARCHIVE_PROPERTY",
    "SMALL_FILES_MAX",
    "TARGET_FILE_BYTES",
    "TOPIC_ID_PROPERTY",
    "TOPIC_PROPERTY",
    "ArchiveRange",
    "DataFile",
    "FileWriter",
    "Table",
    "Upkeep",
    "archive_group",
    "check_apart",
    "compact",
    "local_folder",
    "recreated_error",
    "small_files",
]
_MODULES: Final = {
    "ARCHIVE_PROPERTY": "progress",
    "SMALL_FILES_MAX": "upkeep",
    "TARGET_FILE_BYTES": "data_files",
    "TOPIC_ID_PROPERTY": "progress",
    "TOPIC_PROPERTY": "progress",
    "ArchiveRange": "progress",
    "DataFile": "data_files",
    "FileWriter": "data_files",
    "Table": "table",
    "Upkeep": "upkeep",
    "archive_group": "progress",
    "check_apart": "table",
    "compact": "upkeep",
    "local_folder": "table",
    "recreated_error": "progress",
    "small_files": "upkeep",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is used: a task that writes files may run where `deltalake` is not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
