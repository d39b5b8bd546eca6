"""Tables in a file system: Delta tables that hold what topics held, and say up to where.

Knows the errors only; knows nothing of Spark, and needs none. Needs `quivermq[spark]` for
`deltalake`.
"""

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
