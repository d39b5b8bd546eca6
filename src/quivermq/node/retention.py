"""Retention: finds the segments that a partition need not keep, and drops them by a timer."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quivermq.batches import Index
from quivermq.log import Disk, Edge, Log
from quivermq.node.disk_thread import HELPERS_MAX, DiskThread
from quivermq.node.disks import DeferredFile, DeferredSyncDisk
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.node.tasks import end_tasks
from quivermq.queue import Groups, TopicSettings
from quivermq.settings import BrokerSettings

ARCHIVE_PREFIX: Final = "_archive."
"""Begins the name of a group whose committed offset says how far a table holds the topic."""

_EARLIEST_MS: Final = 1_577_836_800_000
"""The year 2020: a clock that shows less was never set."""


class Ages:
    """When what a log holds was stored, also if the clock that stamped it was wrong.

    What is stamped with a time that is still to come, or from before there were brokers, counts
    from when this broker first saw it: it is not deleted early, and not kept until that time comes.
    """

    def __init__(self) -> None:
        self._seen_ms: dict[Index, int] = {}

    def look(self, log: Log, now_ms: int) -> None:
        """Take note of everything with a time that cannot be."""
        edges = [*(footer.end for footer in log.sealed), log.edge]
        self._seen_ms = {
            edge.next_index: self._seen_ms.get(edge.next_index, now_ms)
            for edge in edges
            if _cannot_be(edge.timestamp_ms, now_ms)
        }

    def time_of(self, edge: Edge, now_ms: int) -> int:
        """When the last of what lies before an edge was stored."""
        if _cannot_be(edge.timestamp_ms, now_ms):
            return self._seen_ms.get(edge.next_index, now_ms)
        return edge.timestamp_ms


def drops_anything(settings: TopicSettings) -> bool:
    """Whether there is anything to look for."""
    return bool(
        settings.retention_ms
        or settings.retention_messages
        or settings.retention_bytes
        or settings.delete_acked
    )


def done_by_all(groups: Groups | None) -> int:
    """The offset below which every group is done; 0 where there is no group.

    A table holds messages, but consumes none: archives alone are no reason to drop anything.
    """
    if not groups or all(_is_archive(name) for name in groups.by_name):
        return 0
    return min(
        group.floor if group.is_shared else group.committed or 0
        for group in groups.by_name.values()
    )


def archived_by_all(groups: Groups | None) -> int:
    """The offset below which every archive holds everything; 0 where there is none."""
    if not groups:
        return 0
    archives = [group for name, group in groups.by_name.items() if _is_archive(name)]
    return min((group.committed or 0 for group in archives), default=0)


def droppable(
    log: Log, settings: TopicSettings, now_ms: int, ages: Ages, done: int = 0, archived: int = 0
) -> Index:
    """The index before which everything may go; 0 if all must stay.

    A sealed segment goes if all of it is too old, if what stays without it still meets the limit
    on count or bytes, or, where the topic deletes what is done, if it ends at or below `done`.
    Where the topic waits for its archives, nothing goes that does not end at or below `archived`.
    """
    messages = log.edge.next_offset - log.start.next_offset
    size = log.size_bytes
    end = Index(0)
    for footer in log.sealed:
        if settings.keep_until_archived and footer.end.next_offset > archived:
            break
        messages -= footer.end.next_offset - footer.start.next_offset
        size -= footer.file_bytes
        too_old = _is_too_old(ages.time_of(footer.end, now_ms), settings, now_ms)
        too_many = settings.retention_messages and messages >= settings.retention_messages
        too_large = settings.retention_bytes and size >= settings.retention_bytes
        is_done = settings.delete_acked and footer.end.next_offset <= done
        if not (too_old or too_many or too_large or is_done):
            break
        end = footer.next_index
    return end


def is_stale(log: Log, settings: TopicSettings, now_ms: int, ages: Ages) -> bool:
    """Whether even the last message, in the segment that is still written to, is too old."""
    starts = log.sealed[-1].end.next_offset if log.sealed else log.start.next_offset
    if log.edge.next_offset <= starts:
        return False
    return _is_too_old(ages.time_of(log.edge, now_ms), settings, now_ms)


def _is_archive(group_name: str) -> bool:
    return group_name.startswith(ARCHIVE_PREFIX)


def _cannot_be(timestamp_ms: int, now_ms: int) -> bool:
    return timestamp_ms > now_ms or timestamp_ms < _EARLIEST_MS <= now_ms


def _is_too_old(newest_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    return bool(settings.retention_ms) and newest_ms < now_ms - settings.retention_ms


logger = logging.getLogger("quivermq.retention")


class RetentionTimer:
    """The timers of the disk: retention, and syncs where they are deferred."""

    def __init__(
        self,
        settings: BrokerSettings,
        partitions: PartitionLookup,
        scheduler: ReplicaScheduler,
        disk_thread: DiskThread,
        disk: Disk,
        on_dropped: Callable[[HostedReplica], None],
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._scheduler = scheduler
        self._disk_thread = disk_thread
        self._disk = disk
        self._on_dropped = on_dropped
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._ages: dict[bytes, Ages] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._retain(), name="retention"))
        if isinstance(self._disk, DeferredSyncDisk):
            self._tasks.append(asyncio.create_task(self._sync(self._disk), name="sync"))

    async def close(self) -> None:
        await end_tasks(*self._tasks)

    async def _sync(self, disk: DeferredSyncDisk) -> None:
        while True:
            await asyncio.sleep(self._settings.fsync_interval_ms / 1000)
            if self._settings.fsync != "interval":
                disk.forget()
                continue
            # A few at a time: votes and checkpoints wait for the same thread.
            files = disk.unsynced()
            for start in range(0, len(files), HELPERS_MAX):
                await self._sync_together(disk, files[start : start + HELPERS_MAX])

    async def _sync_together(self, disk: DeferredSyncDisk, files: list[DeferredFile]) -> None:
        thread = self._disk_thread
        failed = await thread.run(lambda: thread.together(disk.sync_one, files))
        for error in failed:
            if error is not None:
                # What was written is in the system's hands; what comes next must be synced again.
                logger.critical("an fsync failed, messages may be lost with the power: %s", error)
                self.on_trouble(f"an fsync failed, messages may be lost with the power: {error}")

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_interval_ms / 1000)
            self._ages = {name: self._ages.get(name) or Ages() for name in self._scheduler.replicas}
            for topic in list(self._partitions.view.topics.values()):
                settings = topic.topic_settings
                # What is being restored is kept whole until all of it is there.
                if drops_anything(settings) and not topic.restoring:
                    for number in range(len(topic.partitions)):
                        hosted = self._partitions.local(topic.name, b"", number)
                        if hosted is not None:
                            self._try_to_drop(hosted, settings)

    def _try_to_drop(self, hosted: HostedReplica, settings: TopicSettings) -> None:
        try:
            self._drop(hosted, settings)
        except Exception:
            # The others, and the next time, must not suffer from it.
            logger.exception("%s: nothing could be dropped", hosted.name)

    def _drop(self, hosted: HostedReplica, settings: TopicSettings) -> None:
        # Groups are told of what went the last time.
        self._on_dropped(hosted)
        now_ms = self._scheduler.clock.age_ms()
        done = done_by_all(hosted.replica.groups)
        archived = archived_by_all(hosted.replica.groups)
        applied = hosted.replica.applied_index
        ages = self._ages[hosted.id]
        ages.look(hosted.log, now_ms)
        stale = is_stale(hosted.log, settings, now_ms, ages)
        fresh = hosted.replica.checkpoint if stale else None

        def plan(log: Log) -> None:
            if fresh is not None and fresh.edge.next_index == log.edge.next_index:
                # Nothing new came: all of the last segment may go, once a state stands for it.
                log.roll()
                log.save_checkpoint(fresh.edge.next_index, fresh.data)
            first = log.first_index
            # Only what is applied here: the state machine must not miss what is dropped.
            end = droppable(log, settings, now_ms, ages, done, archived)
            kept = log.drop_before(min(end, Index(applied + 1)))
            if kept > first:
                logger.info("%s: entries %d to %d are dropped", hosted.name, first, kept - 1)

        hosted.drop_before(plan)
