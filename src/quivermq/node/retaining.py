"""Dropping what is too old or too much, on a timer, also where nothing happens."""

import asyncio
import logging
from collections.abc import Callable

from quivermq.batches import Index
from quivermq.log import Disk, Log
from quivermq.node.deferred_sync import DeferredFile, DeferredSyncDisk
from quivermq.node.disk_thread import HELPERS_MAX, DiskThread
from quivermq.node.group import Group
from quivermq.node.partitions import Partitions
from quivermq.node.retention import (
    Ages,
    archived_by_all,
    done_by_all,
    droppable,
    drops_anything,
    is_stale,
)
from quivermq.node.runner import GroupRunner
from quivermq.node.tasks import end_tasks
from quivermq.queue import TopicSettings
from quivermq.settings import BrokerSettings

logger = logging.getLogger("quivermq.retention")


class Retaining:
    """The timers of the disk: retention, and syncs where they are deferred."""

    def __init__(
        self,
        settings: BrokerSettings,
        partitions: Partitions,
        runner: GroupRunner,
        disk_thread: DiskThread,
        disk: Disk,
        on_dropped: Callable[[Group], None],
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._runner = runner
        self._disk_thread = disk_thread
        self._disk = disk
        self._on_dropped = on_dropped
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

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_interval_ms / 1000)
            self._ages = {name: self._ages.get(name) or Ages() for name in self._runner.groups}
            for topic in list(self._partitions.view.topics.values()):
                settings = topic.topic_settings
                if drops_anything(settings):
                    for number in range(len(topic.partitions)):
                        group = self._partitions.local(topic.name, b"", number)
                        if group is not None:
                            self._try_to_drop(group, settings)

    def _try_to_drop(self, group: Group, settings: TopicSettings) -> None:
        try:
            self._drop(group, settings)
        except Exception:
            # The others, and the next time, must not suffer from it.
            logger.exception("%s: nothing could be dropped", group.name)

    def _drop(self, group: Group, settings: TopicSettings) -> None:
        # Groups are told of what went the last time.
        self._on_dropped(group)
        now_ms = self._runner.clock.age_ms()
        done = done_by_all(group.replica.groups)
        archived = archived_by_all(group.replica.groups)
        applied = group.replica.applied_index
        ages = self._ages[group.id]
        ages.look(group.log, now_ms)
        stale = is_stale(group.log, settings, now_ms, ages)
        fresh = group.replica.checkpoint if stale else None

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
                logger.info("%s: entries %d to %d are dropped", group.name, first, kept - 1)

        group.drop_before(plan)
