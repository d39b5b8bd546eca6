"""Which partitions live on this broker: logs made, opened and removed as the catalog says.

A replica takes part only once its log is listed in the directory. A log that is listed and cannot
be found was lost: it is never made anew under the same number, because it may have voted.

A broker that starts knows the catalog as of the last commit that it stored, which may be older than
its own logs. Until it has seen its own registration it opens what it has, and makes and removes
nothing.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from quivermq.cluster import View, epoch_of, group_id
from quivermq.errors import BrokenInvariant, Corrupt, QuiverError
from quivermq.log import Disk
from quivermq.node.deferred_sync import UnsyncedDisk
from quivermq.node.directory import Directory, ListedLog
from quivermq.node.disk_thread import DiskThread
from quivermq.node.disk_work import Opened, open_log, opened
from quivermq.node.group import Group
from quivermq.node.group_names import GroupName
from quivermq.node.runner import GroupRunner
from quivermq.replica import blank_log, found_log

logger = logging.getLogger("quivermq.hosting")

_OPEN_AT_ONCE: Final = 50
_SYNC_ALL_FROM: Final = 8
"""From so many new logs on, one sync of the whole disk is cheaper than one for each file."""


class Wanted(NamedTuple):
    """A replica that belongs on this broker."""

    group_id: bytes
    name: GroupName
    member: int
    founders: tuple[int, ...]
    is_preferred: bool = False
    """Whether it should lead, if nobody does."""


class Hosting:
    """Brings what runs here in line with what should."""

    def __init__(
        self, node_id: int, directory: Directory, disk_thread: DiskThread, runner: GroupRunner
    ) -> None:
        self._node_id = node_id
        self._directory = directory
        self._disk_thread = disk_thread
        self._runner = runner
        self._lock = asyncio.Lock()
        self.lost: dict[bytes, str] = {}
        """Replicas that should run here and cannot, with the reason."""

    async def reconcile(self, view: View) -> None:
        """Remove what is not wanted, then make and open what is."""
        async with self._lock:
            wanted = {want.group_id: want for want in self._wanted(view)}
            if self._is_current(view):
                await self._remove_all_but(wanted)
            else:
                wanted = {g: want for g, want in wanted.items() if self.is_made(g, want.member)}
            for group in [group for group in self.lost if group not in wanted]:
                del self.lost[group]
            for want in wanted.values():
                if running := self._runner.groups.get(want.group_id):
                    running.is_preferred = want.is_preferred
            missing = (w for w in wanted.values() if w.group_id not in self._runner.groups)
            while batch := list(islice(missing, _OPEN_AT_ONCE)):
                await self._start([want for want in batch if want.group_id not in self.lost])

    def _is_current(self, view: View) -> bool:
        """Whether the view is younger than the start of this broker."""
        known = view.brokers.get(self._node_id)
        return known is not None and self._directory.identity.is_that_of(known)

    def _wanted(self, view: View) -> Iterator[Wanted]:
        for topic, partition, placement, member in view.hosted(self._node_id):
            name = GroupName(topic.name, partition)
            is_preferred = placement.replicas[0] == member
            group = group_id(topic.id, partition)
            yield Wanted(group, name, member, placement.founders, is_preferred)

    async def open_group(self, want: Wanted) -> Group:
        """Open or make one log, and run it; raises if it cannot be."""
        async with self._lock:
            await self._start([want])
            if want.group_id in self.lost:
                raise QuiverError(self.lost[want.group_id])
            return self._runner.groups[want.group_id]

    def is_made(self, group_id: bytes, member: int) -> bool:
        """Whether a log of this group was made here, as that member."""
        log = self._directory.logs.get(group_id.hex())
        return log is not None and log.member == member

    async def remove_group(self, group_id: bytes) -> None:
        """Stop a group, if it runs, and remove its log."""
        async with self._lock:
            group = self._runner.groups.get(group_id)
            if group is not None:
                self._runner.remove(group)
            await self._remove_listed([group_id.hex()])

    async def _remove_all_but(self, wanted: dict[bytes, Wanted]) -> None:
        members = {group_id: want.member for group_id, want in wanted.items()}
        await self._remove(
            [
                group
                for group in list(self._runner.groups.values())
                if not group.is_metadata and members.get(group.id) != group.member
            ]
        )
        gone = [
            group
            for group, log in self._directory.logs.items()
            if not log.is_metadata and members.get(bytes.fromhex(group)) != log.member
        ]
        if gone:
            await self._remove_listed(gone)

    async def _remove(self, groups: list[Group]) -> None:
        if groups:
            for group in groups:
                logger.info("%s is removed from this broker", group.name)
                self._runner.remove(group)
            await self._remove_listed([group.id.hex() for group in groups])

    async def _remove_listed(self, gone: list[str]) -> None:
        """In this order: a log that is listed and gone would count as lost.

        Files are removed aside: there may be thousands, and nobody's fsync is to wait for them.
        """
        folders = await self._disk_thread.run(lambda: self._unlist(gone))
        await self._disk_thread.aside(lambda: self._remove_folders(folders))

    def _unlist(self, gone: list[str]) -> list[str]:
        """In the disk thread, behind all that was written to these logs: their folders."""
        directory = self._directory
        folders = [directory.logs[group].folder for group in gone if group in directory.logs]
        directory.list_logs({g: log for g, log in directory.logs.items() if g not in gone})
        return folders

    def _remove_folders(self, folders: list[str]) -> None:
        disk = self._directory.disk
        for folder in folders:
            disk.remove(folder)
            topic = folder.rpartition("/")[0]
            if not disk.names(topic):
                disk.remove(topic)

    async def _start(self, batch: list[Wanted]) -> None:
        if not batch:
            return
        await self._remove_other_members(batch)
        logs = await self._disk_thread.run(lambda: self._logs_of(batch))
        for want, log in zip(batch, logs, strict=True):
            if isinstance(log, QuiverError):
                self.lost[want.group_id] = str(log)
                logger.critical("%s cannot run here: %s", want.name, log)
                continue
            try:
                group = self._group(want, log)
            except (QuiverError, BrokenInvariant) as error:
                self.lost[want.group_id] = str(error)
                logger.critical("%s cannot run here: %s", want.name, error)
                continue
            self._runner.add(group)

    def _group(self, want: Wanted, found: Opened) -> Group:
        return Group(
            want.group_id,
            want.name,
            want.member,
            found,
            self._runner,
            is_preferred=want.is_preferred,
        )

    async def _remove_other_members(self, batch: list[Wanted]) -> None:
        """What another member of a group knew must not speak for the one that is wanted."""
        listed = self._directory.logs
        other = [
            want.group_id.hex()
            for want in batch
            if want.group_id.hex() in listed and not self.is_made(want.group_id, want.member)
        ]
        if other:
            await self._remove_listed(other)

    def _logs_of(self, batch: list[Wanted]) -> list[Opened | QuiverError]:
        """In the disk thread."""
        listed = self._directory.logs
        fresh = [
            want
            for want in batch
            if want.group_id.hex() not in listed and not self._was_elsewhere(want)
        ]
        if fresh:
            self._make(fresh)
        return self._disk_thread.together(self._open, batch)

    def _was_elsewhere(self, want: Wanted) -> bool:
        """Whether it was in the directory that this one replaces: it is not to be made anew."""
        own = self._directory.identity.member
        return own != 0 and epoch_of(want.member) < epoch_of(own)

    def _make(self, fresh: list[Wanted]) -> None:
        directory, settings = self._directory, self._runner.log_settings
        self._remove_folders([want.name.folder for want in fresh])
        many = len(fresh) >= _SYNC_ALL_FROM
        disk: Disk = UnsyncedDisk(directory.root) if many else directory.disk
        for want in fresh:
            folder, log_id = want.name.folder, want.group_id
            disk.make_folder(folder.rpartition("/")[0])
            if want.member in want.founders:
                found_log(disk, folder, log_id, want.founders, settings)
            else:
                blank_log(disk, folder, log_id, settings)
        if many:
            os.sync()
        made = {want.group_id.hex(): ListedLog(want.name.folder, want.member) for want in fresh}
        directory.list_logs({**directory.logs, **made})

    def _open(self, want: Wanted) -> Opened | QuiverError:
        if want.group_id.hex() not in self._directory.logs:
            return Corrupt(
                "this replica was in a data directory that is lost; it comes back as another "
                "member if a majority of the others is left"
            )
        try:
            folder, settings = want.name.folder, self._runner.log_settings
            return opened(open_log(self._runner.disk, folder, settings, want.group_id))
        except Exception as error:
            # One log that cannot be opened must not keep the others closed.
            if not isinstance(error, QuiverError):
                logger.exception("%s cannot be opened", want.name)
            return error if isinstance(error, QuiverError) else Corrupt(f"it failed: {error!r}")
