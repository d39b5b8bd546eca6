"""Restores a backup into a cluster that has none of its topics.

A topic is created so that it takes nothing but what is restored. Groups come first, then messages,
at the offsets and with the times that they had; then all of it is read back and compared, and only
when that is done for every topic are they opened, and users brought back. Each step does nothing
where it was done before: a restore that was stopped is simply begun again.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quivermq.backup.folder import BackupFolder
from quivermq.backup.frame_file import read_frames
from quivermq.backup.manifest import (
    BackupFile,
    Manifest,
    PartitionBackup,
    StateSection,
    TopicBackup,
)
from quivermq.backup.throttle import CopyThrottle
from quivermq.backup.verify import verify_backup
from quivermq.batches import MIB, Frame, FrameKind, Index
from quivermq.client import BackupAccess
from quivermq.errors import Corrupt, InvalidRequest, TopicExists
from quivermq.queue import ProducerTable, restored_producers_command

REQUEST_BYTES: Final = 4 * MIB
"""Batches that are restored by one request; one by itself may be larger."""
REQUEST_FRAMES: Final = 1_000


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Of what to restore."""

    topic: str = ""
    """Only this topic, into a cluster that may have others; "": everything."""
    new_name: str = ""
    """With `topic`: the name that it gets."""
    users: bool = True
    """Without `topic`: also users and their grants."""


@dataclass(slots=True)
class RestoreReport:
    """The sum of what was restored."""

    manifest: Manifest
    topics: list[str] = field(default_factory=list)
    """Their names in this cluster."""
    left: list[str] = field(default_factory=list)
    """Topics that brokers keep for themselves, which exist here and stay as they are."""
    messages: int = 0
    """Messages of these topics, all of them read back and compared."""
    users: list[str] = field(default_factory=list)
    users_left: list[str] = field(default_factory=list)
    """Users that exist here, and stay as they are."""
    seconds: float = 0.0


def restore_backup(
    access: BackupAccess,
    folder: str | Path,
    options: RestoreOptions | None = None,
    *,
    throttle: CopyThrottle | None = None,
) -> RestoreReport:
    """Restore what a folder holds. Nothing is changed before all that is wanted is verified."""
    options, throttle, place = (
        options or RestoreOptions(),
        throttle or CopyThrottle(),
        BackupFolder(folder),
    )
    began = time.monotonic()
    if options.new_name and not options.topic:
        raise InvalidRequest("a new name needs the topic that is to have it")
    manifest = place.loaded()
    topics = frozenset({options.topic}) if options.topic else None
    if options.topic and manifest.topic(options.topic) is None:
        known = ", ".join(topic.name for topic in manifest.topics) or "none"
        raise InvalidRequest(f"the backup has no topic {options.topic!r}; it has: {known}")
    # By a throttle of its own: a limit is for what the cluster is given.
    verify_backup(place, topics=topics, throttle=CopyThrottle(throttle.report)).check()
    report = RestoreRun(access, place, manifest, options, throttle).run()
    report.seconds = time.monotonic() - began
    return report


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A topic of the backup, and where it goes."""

    topic: TopicBackup
    name: str
    id: str


class RestoreRun:
    """One restore, or one more attempt at it."""

    def __init__(
        self,
        access: BackupAccess,
        folder: BackupFolder,
        manifest: Manifest,
        options: RestoreOptions,
        throttle: CopyThrottle,
    ) -> None:
        self._access = access
        self._folder = folder
        self._manifest = manifest
        self._options = options
        self._throttle = throttle
        self._is_whole = not options.topic

    def run(self) -> RestoreReport:
        access, report = self._access, RestoreReport(self._manifest)
        wanted = self._wanted(report)
        if self._is_whole:
            access.restore_producer_ids(self._manifest.catalog)
        targets = []
        for topic in wanted:
            target, is_open = self._create(topic)
            report.topics.append(target.name)
            report.messages += topic.messages
            if not is_open:
                self._restore_topic(target)
                targets.append(target)
        for target in targets:
            self._compare(target)
        for target in targets:
            access.finish(target.name, target.id)
        if self._is_whole and self._options.users and self._manifest.catalog["users"]:
            # The last thing of all: with an admin among them, who is not one is no longer let in.
            report.users, report.users_left = access.restore_users(self._manifest.catalog)
        return report

    def _wanted(self, report: RestoreReport) -> list[TopicBackup]:
        """Topics to restore; raises unless the cluster is free of others, or one was asked for."""
        options, manifest = self._options, self._manifest
        here = self._access.export_catalog()
        foreign = [name for name in here["topics"] if here["restored"].get(name) != manifest.name]
        if options.topic:
            return [topic for topic in manifest.topics if topic.name == options.topic]
        in_use = [name for name in foreign if not name.startswith("_")]
        if in_use:
            raise TopicExists(
                f"this cluster is in use: it has {len(in_use)} topics that are not from this "
                f"backup, as {in_use[0]!r}. Restore into an empty cluster, or one topic with "
                "--topic NAME"
            )
        # Brokers make topics of their own as soon as they run.
        report.left = [topic.name for topic in manifest.topics if topic.name in foreign]
        return [topic for topic in manifest.topics if topic.name not in foreign]

    def _create(self, topic: TopicBackup) -> tuple[RestoreTarget, bool]:
        manifest, name = self._manifest, self._options.new_name or topic.name
        record = {
            **manifest.catalog["topics"][topic.name],
            "starts": [partition.start for partition in topic.partitions],
        }
        # Under another name it is another topic, which needs another id.
        cluster_id = manifest.cluster_id if name == topic.name else ""
        made = self._access.restore_topic(name, record, backup=manifest.name, cluster_id=cluster_id)
        return RestoreTarget(topic, name, made.id.hex()), made.is_open

    def _restore_topic(self, target: RestoreTarget) -> None:
        self._throttle.begin(f"restoring {target.name}", target.topic.messages)
        for number, partition in enumerate(target.topic.partitions):
            for command in self._commands(self._manifest.groups, partition.groups):
                self._access.restore_frames(target.name, target.id, number, [command])
            self._restore_messages(target, number, partition)
            for command in self._producers(partition):
                self._access.restore_frames(target.name, target.id, number, [command])

    def _commands(self, file: BackupFile, section: StateSection) -> Iterator[Frame]:
        return read_frames(self._folder.path(file.name), section.at, section.bytes)

    def _producers(self, partition: PartitionBackup) -> Iterator[Frame]:
        """The table of producers. In a cluster that has producers of its own, their ids stand for
        others: there it is an empty one."""
        if self._is_whole:
            yield from self._commands(self._manifest.producers, partition.producers)
        else:
            yield Frame.of(FrameKind.COMMAND, restored_producers_command(ProducerTable().pack()))

    def _restore_messages(
        self, target: RestoreTarget, number: int, partition: PartitionBackup
    ) -> None:
        at = self._access.position(target.name, target.id, number).end
        waiting: list[Frame] = []
        size = 0
        for frame in self._frames(partition, at):
            if waiting and (size + len(frame) > REQUEST_BYTES or len(waiting) >= REQUEST_FRAMES):
                self._send(target, number, waiting, size)
                waiting, size = [], 0
            waiting.append(frame)
            size += len(frame)
        if waiting:
            self._send(target, number, waiting, size)

    def _send(self, target: RestoreTarget, number: int, frames: list[Frame], size: int) -> None:
        self._access.restore_frames(target.name, target.id, number, frames)
        self._throttle.advance(sum(frame.header.count for frame in frames), size)

    def _frames(self, partition: PartitionBackup, at: int) -> Iterator[Frame]:
        """The batches of a partition from `at` on."""
        at = max(at, partition.start)
        for file in partition.files:
            if file.end > at:
                for frame in read_frames(self._folder.path(file.name)):
                    if frame.header.base_offset >= at:
                        yield frame if self._is_whole else without_producer(frame)

    def _compare(self, target: RestoreTarget) -> None:
        """Read everything back from the cluster."""
        self._throttle.begin(f"comparing {target.name}", target.topic.messages)
        for number, partition in enumerate(target.topic.partitions):
            held = self._access.position(target.name, target.id, number)
            if (held.start, held.end) != (partition.start, partition.end):
                raise Corrupt(
                    f"{target.name}/{number} holds {held.start} to {held.end}, and the backup "
                    f"{partition.start} to {partition.end}"
                )
            stored = self._stored(target, number, partition)
            for frame in self._frames(partition, partition.start):
                found = next(stored, None)
                if found is None or not is_same(found, frame):
                    raise Corrupt(f"{target.name}/{number} holds {found}, and the backup {frame}")
                self._throttle.advance(frame.header.count, len(frame))

    def _stored(
        self, target: RestoreTarget, number: int, partition: PartitionBackup
    ) -> Iterator[Frame]:
        at = partition.start
        while at < partition.end:
            for frame in self._access.fetch(target.name, target.id, number, at, partition.end):
                yield frame
                at = frame.header.next_offset


def without_producer(frame: Frame) -> Frame:
    """As if no producer had numbered it."""
    header = frame.header._replace(producer_id=0, producer_epoch=0, sequence=0)
    return Frame(header, frame.body)


def is_same(one: Frame, other: Frame) -> bool:
    """Whether two batches are the same but for their places in a Raft log."""
    headers = [frame.header._replace(term=0, index=Index(0)) for frame in (one, other)]
    return one.body == other.body and headers[0] == headers[1]
