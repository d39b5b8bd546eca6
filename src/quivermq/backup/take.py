"""Takes a backup: the state of all groups first, then the messages of all partitions.

In this order nothing is lost between partitions, and nothing doubled. A broker moves dead letters
(and redrives them) by storing them in the other partition first, and only then noting that in the
groups of their own. So what the groups have noted is among the messages, which are read later; and
what they have not is moved again after a restore, and recognised by the producers of the target,
which are read together with the end of its messages.

A redrive to the group that failed is noted by that group first, and then by the dead-letter topic:
so the groups of dead-letter topics are read before those of the topics that they serve.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import quivermq
from quivermq.backup.folder import (
    BackupFolder,
    contiguous,
    messages_name,
    section_of,
    state_name,
)
from quivermq.backup.frame_file import FrameFileWriter, digest_of_file, read_frames
from quivermq.backup.manifest import (
    BackupFile,
    Manifest,
    MessagesFile,
    PartitionBackup,
    StateSection,
    TopicBackup,
)
from quivermq.backup.throttle import CopyThrottle
from quivermq.batches import MIB, Frame
from quivermq.client import BackupAccess
from quivermq.errors import (
    Corrupt,
    InvalidRequest,
    OffsetOutOfRange,
    StorageFailed,
    TopicNotFound,
)

FILE_BYTES: Final = 64 * MIB
"""A file of messages ends with the batch that passes this. A backup that was stopped goes on behind
the last whole file."""
_AGAIN: Final = 10
"""How often a partition is begun anew because retention was faster."""

PartitionKey = tuple[str, int]
"""The id of a topic, and a partition."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A finished backup."""

    manifest: Manifest
    messages_new: int
    """Messages that were copied, since the folder did not have them."""
    bytes_new: int
    seconds: float


def take_backup(
    access: BackupAccess, folder: str | Path, *, throttle: CopyThrottle | None = None
) -> BackupReport:
    """Back a cluster up into a folder: all of it the first time, what is new after that."""
    place, throttle = BackupFolder(folder), throttle or CopyThrottle()
    began = time.monotonic()
    with place.locked():
        try:
            taking = BackupRun(access, place, place.load(), throttle)
            manifest = taking.run()
        except OSError as error:
            raise StorageFailed(f"the backup cannot be written to {place}: {error}") from error
    return BackupReport(manifest, taking.copied, throttle.bytes, time.monotonic() - began)


class BackupRun:
    """One backup, from its first request to its manifest."""

    def __init__(
        self,
        access: BackupAccess,
        folder: BackupFolder,
        previous: Manifest | None,
        throttle: CopyThrottle,
    ) -> None:
        self._access = access
        self._folder = folder
        self._previous = previous
        self._serial = previous.serial + 1 if previous else 1
        self._throttle = throttle
        self.copied = 0
        """Messages."""

    def run(self) -> Manifest:
        began_ms = int(time.time() * 1000)
        catalog, groups, groups_file = self._take_groups()
        topics, producers_file = self._take_topics(catalog, groups)
        # One that was deleted meanwhile is no part of the backup.
        kept = {topic.name for topic in topics}
        records = {name: record for name, record in catalog["topics"].items() if name in kept}
        manifest = Manifest(
            id=self._previous.id if self._previous else secrets.token_hex(8),
            serial=self._serial,
            began_ms=began_ms,
            finished_ms=int(time.time() * 1000),
            release=quivermq.__version__,
            catalog={**catalog, "topics": records},
            groups=groups_file,
            producers=producers_file,
            topics=tuple(topics),
        )
        self._folder.save(manifest)
        return manifest

    def _take_groups(self) -> tuple[dict[str, Any], dict[PartitionKey, StateSection], BackupFile]:
        """The groups of all topics, also of those that are created meanwhile: no dead letter may
        be noted as moved to a topic that the backup does not have."""
        writer = FrameFileWriter(self._folder.root, state_name(self._serial, "groups"))
        taken: dict[PartitionKey, StateSection] = {}
        try:
            while True:
                catalog = self._catalog()
                missing = [
                    (name, record["id"], number)
                    for name, record in letters_first(catalog["topics"])
                    for number in range(record["partitions"])
                    if (record["id"], number) not in taken
                ]
                if not missing:
                    return catalog, taken, writer.finish()
                self._throttle.begin(f"reading the groups of {len(missing):,} partitions")
                for name, topic_id, number in missing:
                    taken[topic_id, number] = self._export_groups(name, topic_id, number, writer)
        except BaseException:
            writer.discard()
            raise

    def _catalog(self) -> dict[str, Any]:
        catalog = self._access.export_catalog()
        previous = self._previous
        if previous is not None and previous.cluster_id != catalog["cluster_id"]:
            raise InvalidRequest(
                f"{self._folder} holds a backup of cluster {previous.cluster_id}, and this is "
                f"cluster {catalog['cluster_id']}: use another folder"
            )
        return catalog

    def _export_groups(
        self, name: str, topic_id: str, number: int, writer: FrameFileWriter
    ) -> StateSection:
        at, after = writer.size, 0
        try:
            while True:
                state = self._access.export_groups(name, topic_id, number, after)
                for frame in state.commands:
                    writer.write(frame)
                after = state.next_group
                if not after:
                    break
        except TopicNotFound:
            # Deleted meanwhile: the next look at the catalog does not show it.
            pass
        return StateSection(at, writer.size - at)

    def _take_topics(
        self, catalog: Mapping[str, Any], groups: Mapping[PartitionKey, StateSection]
    ) -> tuple[list[TopicBackup], BackupFile]:
        writer = FrameFileWriter(self._folder.root, state_name(self._serial, "producers"))
        topics: list[TopicBackup] = []
        try:
            for name, record in catalog["topics"].items():
                topic_id = record["id"]
                try:
                    partitions = [
                        self._take_partition(name, topic_id, n, groups[topic_id, n], writer)
                        for n in range(record["partitions"])
                    ]
                except TopicNotFound:
                    continue
                topics.append(TopicBackup(name, topic_id, tuple(partitions)))
            return topics, writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _take_partition(
        self, name: str, topic_id: str, number: int, groups: StateSection, writer: FrameFileWriter
    ) -> PartitionBackup:
        for _ in range(_AGAIN):
            state = self._access.export_producers(name, topic_id, number)
            place = Place(name, topic_id, number, state.start, state.end)
            files = self._known_files(place)
            try:
                files += self._copy(place, files[-1].end if files else state.start)
            except OffsetOutOfRange:
                # Retention dropped what was about to be read: the partition begins later by now.
                continue
            producers = section_of(state.commands, writer.size)
            for frame in state.commands:
                writer.write(frame)
            if not contiguous(tuple(files), state.start, state.end):
                raise Corrupt(f"{place} was copied with gaps: {files}")
            return PartitionBackup(state.start, state.end, tuple(files), groups, producers)
        raise InvalidRequest(
            f"{name}/{number} is deleted by retention faster than it can be read: try again, "
            "without a rate limit"
        )

    def _known_files(self, place: "Place") -> list[MessagesFile]:
        """Files that hold messages of it already, also of a backup that was not finished."""
        known = self._previous and self._previous.partition(place.topic_id, place.partition)
        files = [file for file in known.files if file.end > place.start] if known else []
        # One that is gone, or was cut, is copied again, with all behind it.
        files = list(takewhile(self._folder.has, files))
        if known and known.end > place.end:
            raise InvalidRequest(
                f"{place.topic}/{place.partition} ends at {place.end:,}, and the backup in "
                f"{self._folder} holds messages up to {known.end:,}: the cluster has lost "
                "messages. Keep this backup, and use another folder for the next"
            )
        if files and files[0].first > place.start:
            files = []
        at = files[-1].end if files else place.start
        while at < place.end and (left := self._left_over(place, at)) is not None:
            files.append(left)
            at = left.end
        return files

    def _left_over(self, place: "Place", first: int) -> MessagesFile | None:
        """A whole file of a backup that was stopped before its manifest was written."""
        name = messages_name(place.topic_id, place.partition, first)
        path = self._folder.path(name)
        if not path.is_file():
            return None
        end = first
        try:
            for frame in read_frames(path):
                if frame.header.base_offset != end:
                    return None
                end = frame.header.next_offset
        except Corrupt:
            return None
        size, digest = digest_of_file(path)
        return MessagesFile(name, size, digest, first, end) if first < end <= place.end else None

    def _copy(self, place: "Place", at: int) -> Iterable[MessagesFile]:
        """Copy the batches from `at` to the end, as they are stored."""
        files: list[MessagesFile] = []
        self._throttle.begin(f"copying {place.topic}/{place.partition}", place.end - at)
        while at < place.end:
            file = self._copy_file(place, at)
            files.append(file)
            at = file.end
        return files

    def _copy_file(self, place: "Place", first: int) -> MessagesFile:
        name = messages_name(place.topic_id, place.partition, first)
        writer, at = FrameFileWriter(self._folder.root, name), first
        try:
            while at < place.end and writer.size < FILE_BYTES:
                frames = self._access.fetch(
                    place.topic, place.topic_id, place.partition, at, place.end
                )
                for frame in frames:
                    at = self._append(place, writer, frame, at)
        except BaseException:
            writer.discard()
            raise
        file = writer.finish()
        return MessagesFile(file.name, file.bytes, file.sha256, first, at)

    def _append(self, place: "Place", writer: FrameFileWriter, frame: Frame, at: int) -> int:
        header = frame.header
        if header.base_offset != at or header.next_offset > place.end:
            raise Corrupt(f"{place} gave {frame} where {at} comes next")
        writer.write(frame)
        self.copied += header.count
        self._throttle.advance(header.count, len(frame))
        return header.next_offset


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, and what it held when its producers were exported."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


def letters_first(topics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """All topics, each behind its dead-letter topic."""
    found: dict[str, Any] = {}
    for name in topics:
        line = [name]
        while True:
            last = line[-1]
            place = topics[last].get("settings", {}).get("dead_letter") or f"{last[:196]}.dlq"
            if place not in topics or place in found or place in line:
                break
            line.append(place)
        found |= {each: topics[each] for each in reversed(line) if each not in found}
    return list(found.items())
