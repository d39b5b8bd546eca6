"""Tables in a file system: Delta tables that hold what topics held, and say up to where.

Knows the errors only; knows nothing of Spark, and needs none. Needs `deltalake`, which comes with
`quivermq[spark]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from quivermq.lakehouse.data_files import DataFile, FileWriter
    from quivermq.lakehouse.progress import ArchiveRange, archive_group
    from quivermq.lakehouse.table import Table
    from quivermq.lakehouse.upkeep import Upkeep, compact

__all__ = [
    "ArchiveRange",
    "DataFile",
    "FileWriter",
    "Table",
    "Upkeep",
    "archive_group",
    "compact",
]
_ROOMS: Final = {
    "ArchiveRange": "progress",
    "DataFile": "data_files",
    "FileWriter": "data_files",
    "Table": "table",
    "Upkeep": "upkeep",
    "archive_group": "progress",
    "compact": "upkeep",
}


def __getattr__(name: str) -> Any:
    """A task that writes files loads nothing of what commits them: its machine may lack that."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"quivermq.lakehouse.{_ROOMS[name]}"), name)
