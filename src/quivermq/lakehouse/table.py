"""A Delta table at one version: what it holds, how far writers are, and one more commit.

All commits go through `Table.commit`. It is refused if any of the writers that it speaks for has
committed since this version was read: so two that do the same work at once cannot both succeed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from quivermq.errors import Fenced, InvalidRequest, UnsupportedFormat
from quivermq.lakehouse.data_files import DataFile, check_partition_columns, sync_file, sync_folder
from quivermq.lakehouse.progress import (
    TOPIC_ID_PROPERTY,
    TOPIC_PROPERTY,
    end_key,
    offsets_by_key,
    start_key,
)

_UNREADABLE: Final = {"deletionVectors", "columnMapping"}


class Table:
    """A table as it is at one version; later commits of others are not seen."""

    def __init__(self, root: Path, delta: DeltaTable) -> None:
        features = set(delta.protocol().reader_features or ())
        if unreadable := features & _UNREADABLE:
            raise UnsupportedFormat(
                f"the table {root} uses {', '.join(sorted(unreadable))}, which is not understood "
                "here: rewrite it without"
            )
        self.root = root
        self._delta = delta

    @classmethod
    def find(cls, path: str | Path, version: int | None = None) -> "Table | None":
        """The table in a folder; None if there is none."""
        root = local_folder(path)
        try:
            return cls(root, DeltaTable(root, version=version))
        except TableNotFoundError:
            return None
        except Exception as error:
            if version is None:
                raise
            raise InvalidRequest(f"{root} has no version {version} to read: {error}") from None

    @classmethod
    def open(cls, path: str | Path, version: int | None = None) -> "Table":
        """The table in a folder."""
        found = cls.find(path, version)
        if found is None:
            raise InvalidRequest(
                f"there is no table in {local_folder(path)}: name the folder of one"
            )
        return found

    @classmethod
    def found(
        cls,
        path: str | Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> "Table":
        """The table in a folder, made if need be; of several that make it at once, one does."""
        table = cls.find(path)
        if table is None:
            check_partition_columns(schema, partition_by)
            root = local_folder(path)
            if root.exists() and any(root.iterdir()) and not (root / "_delta_log").exists():
                raise InvalidRequest(f"{root} holds other things: name an empty folder or none")
            root.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                root,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(properties or {}),
                raise_if_key_not_exists=False,
            )
            table = cls.open(path)
        table.check_columns(schema, partition_by)
        return table

    @property
    def id(self) -> str:
        """Drawn when the table was made."""
        return str(self._delta.metadata().id)

    @property
    def version(self) -> int:
        return self._delta.version()

    @property
    def partition_by(self) -> list[str]:
        return list(self._delta.metadata().partition_columns)

    @property
    def topic(self) -> str | None:
        """The topic that this table archives, if it does."""
        return self._delta.metadata().configuration.get(TOPIC_PROPERTY)

    @property
    def topic_id(self) -> str | None:
        """Which life of that topic: another one after it was deleted and created again."""
        return self._delta.metadata().configuration.get(TOPIC_ID_PROPERTY)

    @property
    def schema_json(self) -> str:
        """The columns as Delta and Spark write them."""
        return self._delta.schema().to_json()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._delta.schema().to_arrow())

    def progress(self, key: str) -> int | None:
        """How far the writer of this name is."""
        return self._delta.transaction_version(key)

    def ends(self, topic: str) -> dict[int, int]:
        """By partition, the offset behind the last one that the table holds."""
        return offsets_by_key(self.progress, lambda number: end_key(topic, number))

    def firsts(self, topic: str) -> dict[int, int]:
        """By partition, the offset from which on the table has no gap."""
        return offsets_by_key(self.progress, lambda number: start_key(topic, number))

    def file_paths(self) -> list[str]:
        """The Parquet files of this version, as absolute paths."""
        return list(self._delta.file_uris())

    def files(self) -> pa.Table:
        """Path (as in an address), size, rows and bounds of each file."""
        return pa.table(self._delta.get_add_actions(flatten=True))

    def absolute_paths(self) -> list[str]:
        """Where the files are, in the order of `files`."""
        return [str(self.root / unquote(path)) for path in self.files().column("path").to_pylist()]

    def count(self) -> int:
        """Rows of this version."""
        return int(self._delta.count())

    def history(self) -> list[dict[str, object]]:
        """The commits, the last one first."""
        return list(self._delta.history())

    def check_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Raise `InvalidRequest` unless rows with these columns fit."""
        own = {field.name: field.type for field in self.schema}
        given = {field.name: field.type for field in schema}
        if own != given:
            wrong = [
                f"{name} is {own.get(name, 'missing')} in the table and "
                f"{given.get(name, 'missing')} in the rows"
                for name in dict.fromkeys([*own, *given])
                if own.get(name) != given.get(name)
            ]
            raise InvalidRequest(
                f"the rows do not fit the table {self.root}: {'; '.join(wrong)}. Write to another "
                "table, or make the columns the same"
            )
        if list(partition_by) != self.partition_by:
            raise InvalidRequest(
                f"the table {self.root} is partitioned by {self.partition_by}, not by "
                f"{list(partition_by)}"
            )

    def commit(
        self,
        files: Sequence[DataFile],
        progress: Mapping[str, int],
        notes: Mapping[str, str] | None = None,
        *,
        replace: bool = False,
    ) -> "Table":
        """Add files (or put them in place of all there are), and say how far writers are by that.

        Returns the table as it is then, durable. Raises `Fenced` if one of these writers has
        committed since this version was read; then nothing has changed.
        """
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition_values,
                modification_time=file.modified_ms,
                data_change=True,
                stats=file.stats,
            )
            for file in files
        ]
        properties = CommitProperties(
            custom_metadata=dict(notes or {}),
            app_transactions=[Transaction(key, value) for key, value in progress.items()],
        )
        try:
            self._delta.create_write_transaction(
                actions,
                mode="overwrite" if replace else "append",
                schema=self._delta.schema(),
                partition_by=self.partition_by,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise Fenced(
                f"another writer committed to {self.root} at the same time: {error}"
            ) from None
        after = Table.open(self.root)
        after.make_durable(self.version + 1)
        return after

    def make_durable(self, first_version: int) -> None:
        """Let commits from a version on survive a loss of power."""
        log = self.root / "_delta_log"
        for version in range(first_version, self.version + 1):
            entry = log / f"{version:020}.json"
            if entry.exists():
                sync_file(entry)
        sync_folder(log)


def local_folder(path: str | Path) -> Path:
    """A table's folder, which must be in a file system that all who use it share."""
    text = str(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif "://" in text:
        raise InvalidRequest(
            f"{text!r}: tables are folders in a file system that all workers share; mount the store"
        )
    if not text:
        raise InvalidRequest("a table needs the path of its folder")
    return Path(text).absolute()
