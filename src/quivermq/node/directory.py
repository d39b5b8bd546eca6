"""A broker's data directory: whose it is, which logs it holds, and that only one process has it.

    identity.json   node, directory id, a word of each start, cluster, member number, feature level
    logs.json       the logs that were made here: a log that is listed and gone was lost
    lock            held by the running process

Both files are replaced whole, and durable when a method returns. A log belongs to the directory
once it is listed: what lies beside it is left over from a crash, and removed.
"""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import quivermq
from quivermq.cluster import METADATA_TOPIC, OWN_LEVELS, Broker, why_unfit
from quivermq.errors import Corrupt, InvalidRequest, StorageFailed, UnsupportedFormat
from quivermq.log import RealDisk

_IDENTITY: Final = "identity.json"
_LOGS: Final = "logs.json"
_LOCK: Final = "lock"
_FOLDER: Final = "log"
_LIVES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """Who lives in a data directory."""

    node_id: int
    directory_id: str
    boot: int
    """How often a process was started on it."""
    lives: tuple[str, ...] = ()
    """A random word of each of the last starts, the latest last: copies differ in them."""
    cluster_id: str = ""
    member: int = 0
    """Its number in the metadata group; 0 as long as it has none."""
    level: int = 0
    """The feature level of the cluster, as far as it is known here; 0 as long as it is not."""
    release: str = ""
    """The first release that knows the level, for one that does not."""

    def is_that_of(self, broker: Broker) -> bool:
        """Whether the record is of this very start of this very directory."""
        return (broker.directory_id, broker.life) == (self.directory_id, self.lives[-1])


_IDENTITY_KEYS: Final = frozenset(item.name for item in fields(Identity))


@dataclass(frozen=True, slots=True)
class ListedLog:
    """A log that this broker made, and as which member of its group."""

    folder: str
    member: int

    @property
    def is_metadata(self) -> bool:
        return self.folder.startswith(f"{_FOLDER}/{METADATA_TOPIC}/")


class Directory:
    """The files of a data directory that are not logs. Blocking: a start, or the disk thread."""

    def __init__(self, root: str, node_id: int) -> None:
        self.root = Path(root)
        self.disk = RealDisk(self.root)
        self.disk.make_folder("")
        self._lock = self._locked()
        try:
            self.identity = self._boot(node_id)
            self.logs = self._load_logs()
        except BaseException:
            self.close()
            raise

    def _locked(self) -> int:
        path = self.root / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StorageFailed(
                f"another process uses {self.root}: stop it, or name another --data-dir"
            ) from None
        return descriptor

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _boot(self, node_id: int) -> Identity:
        found = self._read(_IDENTITY)
        if found is None:
            if self.disk.names(_FOLDER):
                # A fresh identity would let the logs count as left over, and be removed.
                raise Corrupt(f"{self._lost(_IDENTITY)}, and {self.root} holds logs")
            identity = Identity(node_id, secrets.token_hex(16), boot=0)
        else:
            identity = self._known_identity(found)
            if identity.node_id != node_id:
                raise InvalidRequest(
                    f"{self.root} belongs to node {identity.node_id}, not to node {node_id}: "
                    f"start it with --node-id {identity.node_id}, or name another --data-dir"
                )
        lives = (*identity.lives, secrets.token_hex(8))[-_LIVES_MAX:]
        identity = replace(identity, boot=identity.boot + 1, lives=lives)
        self._write(_IDENTITY, asdict(identity))
        return identity

    def _known_identity(self, found: dict[str, Any]) -> Identity:
        known = {key: value for key, value in found.items() if key in _IDENTITY_KEYS}
        try:
            identity = Identity(**{**known, "lives": tuple(found.get("lives", ()))})
        except TypeError as error:
            raise Corrupt(f"{self.root / _IDENTITY} is no identity: {error}") from error
        for name in ("node_id", "boot", "member", "level"):
            if type(getattr(identity, name)) is not int:
                raise Corrupt(f"{self.root / _IDENTITY} is no identity: {name} is no number")
        self._check_level(identity, is_told="level" in found)
        return identity

    def _check_level(self, identity: Identity, *, is_told: bool) -> None:
        """Before anything is written: another release may need all of it as it is."""
        version = quivermq.__version__
        if not is_told and identity.member:
            raise UnsupportedFormat(
                f"{self.root} was written by a build before release 0.2.0, which release {version} "
                "does not read: use that build, or name an empty --data-dir"
            )
        if identity.level and (
            why := why_unfit(identity.level, identity.release, OWN_LEVELS, version)
        ):
            raise UnsupportedFormat(f"{self.root} cannot be used, and was left as it is: {why}")

    def settle(self, cluster_id: str, member: int) -> None:
        """Remember which cluster this broker is a member of."""
        identity = replace(self.identity, cluster_id=cluster_id, member=member)
        if not member:
            identity = replace(identity, level=0, release="")
        self._become(identity)

    def learn_level(self, level: int, release: str) -> None:
        """Remember the feature level of the cluster, before anything is written by it."""
        self._become(replace(self.identity, level=level, release=release))

    def _become(self, identity: Identity) -> None:
        if identity != self.identity:
            self._write(_IDENTITY, asdict(identity))
            self.identity = identity

    def _load_logs(self) -> dict[str, ListedLog]:
        found = self._read(_LOGS)
        if found is None:
            topics = {*self.disk.names(_FOLDER)} - {METADATA_TOPIC}
            if self.identity.member or topics:
                # Unlisted logs would be removed, and made anew by a member that forgot its votes.
                raise Corrupt(f"{self._lost(_LOGS)}, and this broker has had logs")
            found = {}
        try:
            return {group: ListedLog(log["folder"], log["member"]) for group, log in found.items()}
        except (TypeError, KeyError) as error:
            raise Corrupt(f"{self.root / _LOGS} is no list of logs: {error}") from error

    def list_logs(self, logs: dict[str, ListedLog]) -> None:
        """Replace the list of logs."""
        if logs != self.logs:
            self._write(_LOGS, {group: asdict(log) for group, log in logs.items()})
            self.logs = dict(logs)

    def unlisted_folders(self) -> list[str]:
        """Folders of logs that are not listed: left over from a crash."""
        listed = {log.folder for log in self.logs.values()}
        disk = self.disk
        return [
            f"{_FOLDER}/{topic}/{partition}"
            for topic in disk.names(_FOLDER)
            for partition in disk.names(f"{_FOLDER}/{topic}")
            if f"{_FOLDER}/{topic}/{partition}" not in listed
        ]

    def _lost(self, name: str) -> str:
        return f"{self.root / name} is missing: restore it from a copy"

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.root / name
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise Corrupt(f"{path} is damaged: {error}; restore it from a copy") from error
        if not isinstance(found, dict):
            raise Corrupt(f"{path} is damaged; restore it from a copy")
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        disk = self.disk
        temporary = f"{name}.tmp"
        file = disk.create(temporary)
        file.write(0, [json.dumps(value, indent=1).encode()])
        file.sync()
        disk.rename(temporary, name)
        disk.sync_folder("")
