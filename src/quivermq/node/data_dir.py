"""A broker's data directory: whose it is, which logs it holds, and that only one process has it.

    identity.json   node, directory id, a word of each start, cluster, member number, feature level
    logs.json       the logs that were made here: a log that is listed and gone was lost
    *.copy.json     a second copy of each
    lock            held by the running process
    log/            the logs, each of which says itself whose it is
    removed/        logs that are being deleted: it was proven that they are not needed
    quarantine/     logs that are not wanted, and that could not say whose they are

Nothing is made or deleted by the word of one file. A folder that lies beside the list is looked
into; a folder that stands where a log is to be made is never replaced.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import quivermq
from quivermq.cluster import METADATA_TOPIC, OWN_LEVELS, BrokerRecord, node_of, why_unfit
from quivermq.errors import Corrupt, InvalidRequest, QuiverError, UnsupportedFormat
from quivermq.log import TEMPORARY, Disk, Owner, Severity, read_owner
from quivermq.node.machine import Machine
from quivermq.node.mirrored_file import MirroredFile

logger = logging.getLogger("quivermq.directory")

_FOLDER: Final = "log"
_REMOVED: Final = "removed"
QUARANTINE: Final = "quarantine"
QUARANTINE_MAX: Final = 100
FINDINGS_MAX: Final = 100
"""That the event feed has not asked for."""
SET_ASIDE: Final = (f"{_REMOVED}/", f"{QUARANTINE}/")
_LIVES_MAX: Final = 256
# Of a start that was cut short, and of file systems.
_EXPECTED: Final = ("lock", _FOLDER, _REMOVED, QUARANTINE, "lost+found")


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The identity of a data directory: its broker, its starts, its cluster."""

    node_id: int
    directory_id: str
    boot: int
    """How often a process was started on it."""
    lives: tuple[str, ...] = ()
    """A random word of each of the last starts, the latest last: copies differ in them."""
    cluster_id: str = ""
    member: int = 0
    """Its number in the metadata partition; 0 as long as it has none."""
    level: int = 0
    """The feature level of the cluster, as far as it is known here; 0 as long as it is not."""
    release: str = ""
    """The first release that knows the level, for one that does not."""

    def is_that_of(self, broker: BrokerRecord) -> bool:
        """Whether the record is of this very start of this very directory."""
        return (broker.directory_id, broker.life) == (self.directory_id, self.lives[-1])


_IDENTITY_KEYS: Final = frozenset(item.name for item in fields(DirectoryIdentity))


@dataclass(frozen=True, slots=True)
class PartitionName:
    """Which partition it is, for people and for the disk."""

    topic: str
    partition: int

    @property
    def folder(self) -> str:
        return f"{_FOLDER}/{self.topic}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class ListedLog:
    """A log that this broker made, and as which member of its partition."""

    folder: str
    member: int

    @property
    def is_metadata(self) -> bool:
        return self.folder.startswith(f"{_FOLDER}/{METADATA_TOPIC}/")


def _listed(partition: str, log: dict[str, Any]) -> ListedLog:
    """One line of the list; raises `TypeError`, `KeyError` or `ValueError` if it is none."""
    folder, member = log["folder"], log["member"]
    bytes.fromhex(partition)
    if not isinstance(folder, str) or type(member) is not int:
        raise TypeError(f"{partition} is in folder {folder!r}, of member {member!r}")
    return ListedLog(folder, member)


class DataDirectory:
    """The files of a data directory that are not logs. Blocking: a start, or the disk thread."""

    def __init__(self, root: str, node_id: int, machine: Machine | None = None) -> None:
        self.root = Path(root)
        machine = machine or Machine()
        self.disk = machine.open_disk(root)
        self.disk.make_folder("")
        self._findings: list[str] = []
        self._identity_file = MirroredFile("identity")
        self._logs_file = MirroredFile("logs")
        self.unlisted: dict[str, ListedLog] = {}
        """Logs that say that they are this broker's, and are in no list: a crash kept them out."""
        self._unlock: Callable[[], None] | None = machine.lock(root)
        try:
            self.identity = self._boot(node_id)
            self.logs = self._load_logs()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    # Identity.

    def _boot(self, node_id: int) -> DirectoryIdentity:
        if self._identity_file.exists(self.disk):
            identity = self._known_identity(self._read(self._identity_file, node_id))
            if identity.node_id != node_id:
                raise InvalidRequest(
                    f"{self.root} belongs to node {identity.node_id}, not to node {node_id}: "
                    f"start it with --node-id {identity.node_id}, or name another --data-dir"
                )
        elif self._logs_file.exists(self.disk) or self.disk.names(_FOLDER):
            # With a fresh identity the logs would speak for an unknown broker.
            raise self._lost(self._identity_file, node_id, "it is missing")
        else:
            self._check_ours()
            identity = DirectoryIdentity(node_id, secrets.token_hex(16), boot=0)
        lives = (*identity.lives, secrets.token_hex(8))[-_LIVES_MAX:]
        identity = replace(identity, boot=identity.boot + 1, lives=lives)
        self._identity_file.write(self.disk, asdict(identity))
        return identity

    def _check_ours(self) -> None:
        """A directory that somebody uses for other things is not taken."""
        found = self.disk.names("")
        others = [
            each
            for each in found
            if not (each in _EXPECTED or each.startswith(".") or each.endswith(TEMPORARY))
        ]
        if others:
            raise InvalidRequest(
                f"{self.root} holds {others[0]!r}, which is no broker's: name an empty --data-dir"
            )

    def _known_identity(self, found: dict[str, Any]) -> DirectoryIdentity:
        known = {key: value for key, value in found.items() if key in _IDENTITY_KEYS}
        try:
            identity = DirectoryIdentity(**{**known, "lives": tuple(found.get("lives", ()))})
        except TypeError as error:
            raise Corrupt(f"{self.root}: identity.json is no identity: {error}") from error
        for name in ("node_id", "boot", "member", "level"):
            if type(getattr(identity, name)) is not int:
                raise Corrupt(f"{self.root}: identity.json is no identity: {name} is no number")
        self._check_level(identity, is_told="level" in found)
        return identity

    def _check_level(self, identity: DirectoryIdentity, *, is_told: bool) -> None:
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

    def _become(self, identity: DirectoryIdentity) -> None:
        if identity != self.identity:
            self._identity_file.write(self.disk, asdict(identity))
            self.identity = identity

    # The list of logs.

    def _load_logs(self) -> dict[str, ListedLog]:
        if not self._logs_file.exists(self.disk):
            topics = {*self.disk.names(_FOLDER)} - {METADATA_TOPIC}
            if self.identity.member or topics:
                # A log that is gone as well would be made anew, by a member that forgot its votes.
                raise self._lost(self._logs_file, self.identity.node_id, "it is missing")
            return {}
        found = self._read(self._logs_file, self.identity.node_id)
        try:
            logs = {partition: _listed(partition, log) for partition, log in found.items()}
        except (TypeError, KeyError, ValueError) as error:
            raise Corrupt(f"{self.root}: logs.json is no list of logs: {error}") from error
        if not self._logs_file.is_even:
            self._logs_file.write(self.disk, found)
        return logs

    def list_logs(self, logs: dict[str, ListedLog]) -> None:
        """Replace the list of logs."""
        if logs != self.logs:
            self._logs_file.write(self.disk, logs)
            self.logs = dict(logs)

    def add_logs(self, logs: dict[str, ListedLog]) -> None:
        """List more logs."""
        if logs:
            self.list_logs({**self.logs, **logs})

    def knows(self, partition: str) -> bool:
        """Whether a log of the partition is listed here, or was found beside the list."""
        return partition in self.logs or partition in self.unlisted

    def _read(self, file: MirroredFile, node_id: int) -> dict[str, Any]:
        try:
            content, faults = file.read(self.disk)
        except Corrupt as error:
            raise self._lost(file, node_id, str(error)) from error
        for fault in faults:
            self._note(f"{self.root}: {fault}; it is made again from its other copy")
        return content

    def _note(self, finding: str, level: int = logging.WARNING) -> None:
        """For the log, and for the event feed, which does not exist yet."""
        logger.log(level, "%s", finding)
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(finding)

    def take_findings(self) -> list[str]:
        """The faults found, and the files put aside, since this was last asked."""
        found, self._findings = self._findings, []
        return found

    def _lost(self, file: MirroredFile, node_id: int, reason: str) -> Corrupt:
        return Corrupt(
            f"{self.root / file.names[0]} and its copy {file.names[1]} are lost: {reason}. Restore "
            "either of them. If that is impossible, start the broker with an empty data directory, "
            f"and run `quiver cluster replace {node_id}`"
        )

    # Folders of logs.

    def owner_of(self, folder: str) -> Owner | None:
        """Whose log a folder holds, by its own word; None if it does not say."""
        try:
            return read_owner(self.disk, folder)
        except QuiverError:
            return None

    def folders(self) -> Iterator[str]:
        """Where logs are, or something that has the place of one."""
        for topic in self.disk.names(_FOLDER):
            for partition in self.disk.names(f"{_FOLDER}/{topic}"):
                yield f"{_FOLDER}/{topic}/{partition}"

    def folder_of(self, partition: str, member: int) -> str:
        """Where the log of a member is, whatever its folder is called; "" if nowhere."""
        owner = Owner(bytes.fromhex(partition), member)
        return next((folder for folder in self.folders() if self.owner_of(folder) == owner), "")

    def tidy_up(self) -> None:
        """At a start: finish what a crash interrupted, and see what is in no list."""
        self._finish_removals()
        listed = {log.folder for log in self.logs.values()}
        for folder in list(self.folders()):
            if folder.endswith(TEMPORARY):
                logger.info("%s: its creation was interrupted, it is removed", folder)
                self.disk.remove(folder)
            elif folder not in listed:
                self.look_into(folder)

    def look_into(self, folder: str) -> None:
        """See whose a folder is that no list names."""
        owner = self.owner_of(folder)
        partition = owner.log_id.hex() if owner else ""
        if owner is None:
            text = f"{folder} is in no list, and does not say whose it is: it is left alone"
            self._note(text, logging.ERROR)
        elif node_of(owner.member) != self.identity.node_id or partition in self.logs:
            self._note(
                f"{folder} is not where it belongs: it holds the log of member {owner.member} of "
                f"partition {partition}, and is left alone",
                logging.ERROR,
            )
        else:
            self._note(f"{folder} is in no list: its creation or a list was interrupted")
            self.unlisted[partition] = ListedLog(folder, owner.member)

    def adopt(self, partitions: Iterable[str]) -> None:
        """List logs that were found beside the list."""
        self.add_logs({partition: self.unlisted.pop(partition) for partition in partitions})

    def _finish_removals(self) -> None:
        """Delete what was moved to `removed/`: it was not wanted when it was moved."""
        gone = set()
        for name in self.disk.names(_REMOVED):
            owner = self.owner_of(f"{_REMOVED}/{name}")
            log = self.logs.get(owner.log_id.hex()) if owner else None
            if owner and log and log.member == owner.member:
                gone.add(owner.log_id.hex())
        self.list_logs(
            {partition: log for partition, log in self.logs.items() if partition not in gone}
        )
        self.delete_removed()

    def take_out(self, partitions: Iterable[str]) -> set[str]:
        """Take logs that are proven to be unwanted off the list, and their folders out of `log/`.

        A log that says itself that it is the one can be deleted; any other goes into quarantine.
        The move comes first and decides: a crash behind it is finished at the next start. Returns
        the folders of their topics.
        """
        logs = {**self.unlisted, **self.logs}
        out = [
            partition
            for partition in partitions
            if partition in logs and self._move(partition, logs[partition])
        ]
        for name in (_REMOVED, QUARANTINE):
            if self.disk.is_folder(name):
                self.disk.sync_folder(name)
        self.disk.sync_folder("")
        topics = {logs[partition].folder.rpartition("/")[0] for partition in out}
        for topic in filter(self.disk.is_folder, topics):
            self.disk.sync_folder(topic)
        self.list_logs({g: log for g, log in self.logs.items() if g not in out})
        for partition in out:
            self.unlisted.pop(partition, None)
        return topics

    def _move(self, partition: str, log: ListedLog) -> bool:
        """Whether its folder is out of the way."""
        if not self.disk.is_folder(log.folder):
            return True
        is_it = self.owner_of(log.folder) == Owner(bytes.fromhex(partition), log.member)
        target = _REMOVED if is_it and partition in self.logs else QUARANTINE
        if target == QUARANTINE and len(self.disk.names(QUARANTINE)) >= QUARANTINE_MAX:
            self._note(
                f"{log.folder} stays where it is: {self.root / QUARANTINE} holds {QUARANTINE_MAX} "
                "logs, look at them, delete what is not needed",
                logging.ERROR,
            )
            return False
        self.disk.make_folder(target)
        name = f"{'-'.join(log.folder.split('/')[1:])}-{secrets.token_hex(4)}"
        self.disk.rename(log.folder, f"{target}/{name}")
        if target == QUARANTINE:
            self._note(
                f"{log.folder} is not wanted, but did not say for sure whose it is: it is now "
                f"{self.root / target / name}, delete it if it is not needed"
            )
        return True

    def delete_removed(self, topics: Iterable[str] = ()) -> None:
        """Free the space of what was taken out of these topics. There may be thousands of files."""
        for topic in topics:
            if not self.disk.names(topic):
                self.disk.remove(topic)
        for name in self.disk.names(_REMOVED):
            self.disk.remove(f"{_REMOVED}/{name}")


def damaged_files(disk: Disk) -> Iterator[tuple[str, Severity, list[str]]]:
    """The files that are not logs and not intact, and what is wrong with their copies: damage where
    both are lost. Changes nothing."""
    for file in (MirroredFile("identity"), MirroredFile("logs")):
        if file.exists(disk):
            severity: Severity = "note"
            try:
                _, problems = file.read(disk)
            except UnsupportedFormat as error:
                severity, problems = "newer", [str(error)]
            except Corrupt as error:
                severity, problems = "damage", str(error).split("; ")
            if problems:
                yield file.names[0], severity, problems
