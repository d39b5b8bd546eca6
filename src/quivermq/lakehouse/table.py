"""A Delta table at one version: its columns and files, the progress of its writers, and commits.

All commits go through `Table.commit`. It fails if one of the writers that it names has committed
since this version was read: of two processes that do the same work, only one succeeds.
"""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from quivermq.errors import Corrupt, Fenced, InvalidRequest, UnsupportedFormat
from quivermq.lakehouse.data_files import (
    DataFile,
    check_partition_columns,
    remove_files,
    sync_file,
    sync_folder,
    sync_folders,
)
from quivermq.lakehouse.progress import (
    ARCHIVE_PROPERTY,
    TOPIC_ID_PROPERTY,
    TOPIC_PROPERTY,
    end_key,
    offsets_by_key,
    recreated_error,
    start_key,
)

_UNREADABLE: Final = {"deletionVectors", "columnMapping"}
_LOG: Final = "_delta_log"
_FIRST: Final = f"{0:020}.json"
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Table:
    """A table at one version; later commits do not change it."""

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
        if root.exists() and not root.is_dir():
            raise InvalidRequest(f"{root} is no folder: name the folder of a table")
        try:
            return cls(root, _open_delta(root, version))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            reason = _first_line(error)
            if version is not None:
                raise InvalidRequest(f"{root} has no version {version} to read: {reason}") from None
            raise Corrupt(f"the table {root} cannot be read: {reason}") from None

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
    def open_or_create(
        cls,
        path: str | Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> "Table":
        """The table in a folder, created if it is missing; concurrent callers get the same one."""
        table = cls.find(path)
        if table is None:
            check_partition_columns(schema, partition_by)
            _create(local_folder(path), schema, partition_by, properties or {})
            table = cls.open(path)
        table.check_columns(schema, partition_by)
        return table

    @property
    def id(self) -> str:
        """Drawn when the table was created."""
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
        """The id of that topic: a topic that is deleted and created again has another one."""
        return self._delta.metadata().configuration.get(TOPIC_ID_PROPERTY)

    @property
    def archive_id(self) -> str | None:
        """Of a quarantine: the id of the table whose bad rows it takes."""
        return self._delta.metadata().configuration.get(ARCHIVE_PROPERTY)

    @property
    def schema_json(self) -> str:
        """The columns as Delta and Spark write them."""
        return self._delta.schema().to_json()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._delta.schema().to_arrow())

    def progress(self, key: str) -> int | None:
        """The last number that the writer of this name committed."""
        return self._delta.transaction_version(key)

    def ends(self, topic: str) -> dict[int, int]:
        """By partition, the offset behind the last one that the table holds."""
        return offsets_by_key(self.progress, lambda number: end_key(topic, number))

    def firsts(self, topic: str) -> dict[int, int]:
        """By partition, the offset from which on the table has no gap."""
        return offsets_by_key(self.progress, lambda number: start_key(topic, number))

    def files(self) -> pa.Table:
        """Path (as in an address), size, rows and bounds of each file."""
        return pa.table(self._delta.get_add_actions(flatten=True))

    def file_facts(self, *names: str) -> list[dict[str, Any]]:
        """These columns of `files`, file by file; None where a column is missing.

        Other columns may have times as bounds that Python cannot represent.
        """
        files = self.files()
        columns = {
            name: files.column(name).to_pylist() if name in files.column_names else None
            for name in names
        }
        return [
            {name: values[number] if values else None for name, values in columns.items()}
            for number in range(files.num_rows)
        ]

    def file_paths(self) -> list[str]:
        """The Parquet files of this version as absolute paths, in the order of `files`."""
        return [str(self.root / unquote(path)) for path in self.files().column("path").to_pylist()]

    def names(self, files: Sequence[DataFile]) -> bool:
        """Whether all of these files are part of the table."""
        return {str(self.root / file.path) for file in files} <= set(self.file_paths())

    def offsets_in(self, partition: int, start: int, stop: int) -> pa.Array:
        """The offsets of a range for which there are rows."""
        import pyarrow.dataset as ds  # noqa: PLC0415  (takes a while to load)

        mine = ds.field("partition") == partition
        mine &= (ds.field("offset") >= start) & (ds.field("offset") < stop)
        found = [pa.array([], pa.int64())]
        for path in self.file_paths():
            rows = ds.dataset(path, format="parquet").to_table(columns=["offset"], filter=mine)
            found += rows.column("offset").chunks
        return pa.concat_arrays(found)

    def remove_loose(self, files: Sequence[DataFile]) -> None:
        """Remove the files that the table does not name.

        A commit may succeed and still raise an error, so files are compared with the table.
        """
        named = set(self.file_paths())
        remove_files(self.root, [file for file in files if str(self.root / file.path) not in named])

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

    def check_topic(self, topic: str, topic_id: str) -> None:
        """Raise `InvalidRequest` unless the table is the archive of this very topic."""
        if self.topic is None:
            raise InvalidRequest(f"the table {self.root} is no archive: name another folder")
        if self.topic != topic:
            raise InvalidRequest(
                f"the table {self.root} is the archive of topic {self.topic!r}, not {topic!r}"
            )
        if self.topic_id and topic_id and self.topic_id != topic_id:
            raise recreated_error(topic, self.root)

    def commit(
        self,
        files: Sequence[DataFile],
        progress: Mapping[str, int],
        notes: Mapping[str, str] | None = None,
        *,
        replace: bool = False,
    ) -> "Table":
        """Add files, or replace all files by them, and record the progress of writers.

        Returns the table at its new version, durable. Raises `Fenced` if one of these writers has
        committed since this version was read; then nothing has changed.
        """
        self._check_presence(files)
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

    def _check_presence(self, files: Sequence[DataFile]) -> None:
        """Check that all files are there: brokers drop messages that a commit claims to hold."""
        for file in files:
            try:
                size = (self.root / file.path).stat().st_size
            except FileNotFoundError:
                size = -1
            if size != file.size_bytes:
                found = "is not there" if size < 0 else f"has {size} bytes"
                raise InvalidRequest(
                    f"a task wrote {file.size_bytes} bytes to {file.path}, which {found} in "
                    f"{self.root}: nothing is committed. The folder must be in a file system that "
                    "the driver and all workers share, under the same path"
                )

    def make_durable(self, first_version: int) -> None:
        """Make the commits from a version on survive a loss of power."""
        log = self.root / _LOG
        for version in range(first_version, self.version + 1):
            entry = log / f"{version:020}.json"
            if entry.exists():
                sync_file(entry)
        sync_folder(log)


def local_folder(path: str | Path) -> Path:
    """The folder of a table, in a file system that driver and workers share."""
    text = str(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif _ADDRESS.match(text):
        raise InvalidRequest(
            f"{text!r}: tables are folders in a file system that all workers share; mount the store"
        )
    if not text:
        raise InvalidRequest("a table needs the path of its folder")
    if unquote(text) != text:
        raise InvalidRequest(f"{text!r}: a table's path cannot have % and two digits in it")
    return Path(text).absolute()


def check_apart(one: str | Path, other: str | Path) -> None:
    """Raise `InvalidRequest` if two tables share a folder or one lies in the other."""
    first, second = local_folder(one).resolve(), local_folder(other).resolve()
    if first == second or first in second.parents or second in first.parents:
        raise InvalidRequest(
            f"two tables need folders of their own, none within the other: {first} and {second}"
        )


def _open_delta(root: Path, version: int | None) -> DeltaTable:
    try:
        return DeltaTable(root, version=version)
    except TableNotFoundError:
        raise
    except DeltaError:
        # Another process may have cleaned up the log while it was read.
        return DeltaTable(root, version=version)


def _create(
    root: Path, schema: pa.Schema, partition_by: Sequence[str], properties: Mapping[str, str]
) -> None:
    check_partition_columns(schema, partition_by)
    if around := next((each for each in root.resolve().parents if (each / _LOG).is_dir()), None):
        raise InvalidRequest(f"{root} is within the table {around}: name a folder outside of it")
    if root.exists() and any(root.iterdir()) and not (root / _LOG).is_dir():
        raise InvalidRequest(f"{root} is no table and not empty: name an empty folder or a new one")
    missing = [each for each in (root, *root.parents) if not each.exists()]
    (root / _LOG).mkdir(parents=True, exist_ok=True)
    # Two processes that let Delta create the same table may both succeed, with different ids. So
    # the first commit is made in another folder, and only one process can link it to its name.
    with tempfile.TemporaryDirectory() as elsewhere:
        DeltaTable.create(
            elsewhere,
            schema,
            partition_by=list(partition_by),
            configuration=dict(properties),
            raise_if_key_not_exists=False,
        )
        text = (Path(elsewhere) / _LOG / _FIRST).read_bytes()
    _write_once(root / _LOG / _FIRST, text)
    sync_folders(missing[-1].parent if missing else root, root / _LOG / _FIRST)


def _write_once(place: Path, text: bytes) -> None:
    """Create a file with this content in one step, unless it exists."""
    handle, name = tempfile.mkstemp(prefix="_begin.", dir=place.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o644)
        with suppress(FileExistsError):
            place.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
