"""Compaction of a table: joins small files, and removes files that no version needs."""

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
"""An archive compacts its table when a folder has more small files."""
KEPT_HOURS: Final = 168
"""Files that the newest version does not need stay so long, for readers of an older one."""
UNNAMED_HOURS_MIN: Final = 24
"""Files that no version names stay at least so long: a running task may have written them."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The result of a compaction."""

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
    """Join small files, then remove files that no version of the last `kept_hours` needs.

    Rows and offsets do not change. Archives may commit at the same time.
    """
    root = local_folder(path)
    before = Table.open(root)
    delta = DeltaTable(root)
    # If another process compacts at the same time, the next compaction does the rest.
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
    """Remove files that no version needs; returns how many.

    Only data files of this table are removed: its folder may hold other things.
    """
    delta = DeltaTable(table.root)
    # Below Delta's limit only if the caller says so: no reader of old versions is left then.
    replaced = delta.vacuum(kept_hours, enforce_retention_duration=False)
    unnamed = delta.vacuum(
        max(kept_hours, UNNAMED_HOURS_MIN), enforce_retention_duration=False, full=True
    )
    folders = "".join(f"{re.escape(name)}=[^/]+/" for name in table.partition_by)
    own = re.compile(rf"{folders}part-[^/]+\.parquet")
    removed = 0
    for path in {*replaced, *unnamed}:
        # Paths of the table's log are quoted as in a URL, those of the disk are not.
        for place in {path, unquote(path)}:
            if own.fullmatch(place) and (table.root / place).is_file():
                (table.root / place).unlink(missing_ok=True)
                removed += 1
    return removed


def small_files(table: Table, target_bytes: int = TARGET_FILE_BYTES) -> int:
    """The number of small files in the folder that has most of them.

    Files of different folders are never joined.
    """
    sizes = table.files().column("size_bytes").to_pylist()
    folders = Counter(
        str(Path(path).parent)
        for path, size in zip(table.file_paths(), sizes, strict=True)
        if size < target_bytes // 2
    )
    return max(folders.values(), default=0)
