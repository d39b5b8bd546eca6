"""Keeping a table tidy: small files become large ones, and what no version needs is removed."""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from quivermq.lakehouse.data_files import TARGET_FILE_BYTES, sync_file, sync_folders
from quivermq.lakehouse.table import Table, local_folder

SMALL_FILES_MAX: Final = 16
"""So many small files a folder may have before an archive puts them together."""
KEPT_HOURS: Final = 168
"""What a table no longer needs stays so long, for readers of an older version."""
UNNAMED_HOURS_MIN: Final = 24
"""Files that no version names stay at least so long: a task that runs may have written them."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done."""

    files_before: int
    files_after: int
    removed: int
    """Files that left the disk."""


def compact(
    path: str | Path,
    target_bytes: int = TARGET_FILE_BYTES,
    kept_hours: int = KEPT_HOURS,
    *,
    remove: bool = True,
) -> Upkeep:
    """Put small files together, then remove what no version of the last `kept_hours` needs.

    Rows and offsets stay what they are. Archives may go on meanwhile: they only add.
    """
    root = local_folder(path)
    before = Table.open(root)
    delta = DeltaTable(root)
    # If another one does the same just then, what is left is for the next time.
    with suppress(CommitFailedError):
        delta.optimize.compact(target_size=target_bytes)
    after = Table.open(root)
    for made in set(after.file_paths()) - set(before.file_paths()):
        sync_file(Path(made))
        sync_folders(root, Path(made))
    after.make_durable(before.version + 1)
    removed = _remove(after, kept_hours) if remove else 0
    return Upkeep(len(before.file_paths()), len(after.file_paths()), removed)


def _remove(table: Table, kept_hours: int) -> int:
    """Remove what no version needs; how many files that were.

    Nothing but data files of this table goes: other things may lie within its folder.
    """
    delta = DeltaTable(table.root)
    # Below the usual limit only if somebody says so: then no reader of old versions is left.
    replaced = delta.vacuum(kept_hours, enforce_retention_duration=False)
    unnamed = delta.vacuum(
        max(kept_hours, UNNAMED_HOURS_MIN), enforce_retention_duration=False, full=True
    )
    folders = "".join(f"{re.escape(name)}=[^/]+/" for name in table.partition_by)
    own = re.compile(rf"{folders}part-[^/]+\.parquet")
    removed = 0
    for path in {*replaced, *unnamed}:
        # As the table's log or the disk has it: what is in the log is written as in an address.
        for place in {path, unquote(path)}:
            if own.fullmatch(place) and (table.root / place).is_file():
                (table.root / place).unlink(missing_ok=True)
                removed += 1
    return removed


def small_files(table: Table, target_bytes: int = TARGET_FILE_BYTES) -> int:
    """How many files of one folder are so small that they are better put together, at most.

    Files of different folders never become one: a table with a small file for each day is tidy.
    """
    sizes = table.files().column("size_bytes").to_pylist()
    folders = Counter(
        str(Path(path).parent)
        for path, size in zip(table.file_paths(), sizes, strict=True)
        if size < target_bytes // 2
    )
    return max(folders.values(), default=0)
