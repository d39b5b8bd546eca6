"""Keeping a table tidy: small files become large ones, and what no version needs is removed."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from quivermq.lakehouse.data_files import TARGET_FILE_BYTES, sync_file
from quivermq.lakehouse.table import Table, local_folder

SMALL_FILES_MAX: Final = 16
"""So many small files a table may have before an archive puts them together."""
KEPT_HOURS: Final = 168
"""What a table no longer needs stays so long: for readers of an older version, and for tasks that
write files which no commit names yet."""


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
    after.make_durable(before.version + 1)
    removed: list[str] = []
    if remove:
        # Below the usual limit only if somebody says so: then no reader of old versions is left.
        removed = DeltaTable(root).vacuum(
            retention_hours=kept_hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
    return Upkeep(len(before.file_paths()), len(after.file_paths()), len(removed))


def small_files(table: Table, target_bytes: int = TARGET_FILE_BYTES) -> int:
    """How many files are so small that they are better put together."""
    sizes = table.files().column("size_bytes")
    return int(pc.sum(pc.less(sizes, target_bytes // 2)).as_py() or 0)
