"""Makes, opens and removes the logs of the partitions on this broker, as the catalog says.

A replica takes part only once its log is listed in the directory. A log that is listed and cannot
be found was lost: it is never made anew under the same number, because it may have voted. Nor is
one made where a folder stands already, or deleted unless it says itself that it is the one.

A broker that starts knows the catalog as of the last commit that it stored, which may be older than
its own logs. Until it has seen its own registration it opens what it has, and makes and removes
nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from quivermq.cluster import Hosted, Topic, View, epoch_of, partition_id
from quivermq.errors import BrokenInvariant, Corrupt, QuiverError, UnsupportedFormat
from quivermq.log import NewLog, Owner, name_logs, prepare_log
from quivermq.node.ailments import lost_text
from quivermq.node.data_dir import DataDirectory, ListedLog, PartitionName
from quivermq.node.disk_thread import HELPERS_MAX, DiskThread
from quivermq.node.disk_work import Opened, open_log, open_new, read_state
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.replica import founding_checkpoint

logger = logging.getLogger("quivermq.hosting")

_OPEN_AT_ONCE: Final = 50
_PREPARING: Final = HELPERS_MAX - 4
"""So many logs are made at the same time."""


class WantedReplica(NamedTuple):
    """A replica that belongs on this broker."""

    partition_id: bytes
    name: PartitionName
    member: int
    founders: tuple[int, ...]
    preferred: int = 0
    """The member that should lead, if no other does."""
    start: int | None = None
    """Of a restored partition: the offset of its first message, if its log has to be made."""


class Hosting:
    """Brings what runs here in line with what should."""

    def __init__(
        self,
        node_id: int,
        directory: DataDirectory,
        disk_thread: DiskThread,
        scheduler: ReplicaScheduler,
    ) -> None:
        self._node_id = node_id
        self._directory = directory
        self._disk_thread = disk_thread
        self._scheduler = scheduler
        self._lock = asyncio.Lock()
        self._wanted_of: dict[str, tuple[Topic, dict[bytes, WantedReplica]]] = {}
        self.on_lost: Callable[[PartitionName, str], None] = lambda *_: None
        self.lost: dict[bytes, str] = {}
        """Replicas that should run here and cannot, with the reason. Each `reconcile` tries again:
        a disk that did not give back a log may do so later."""

    async def reconcile(self, view: View) -> None:
        """Remove what is not wanted, then make and open what is and does not run."""
        async with self._lock:
            wanted = self._wanted(view)
            if self._is_current(view):
                await self._remove_all_but(wanted)
            else:
                wanted = {g: want for g, want in wanted.items() if self.is_made(g, want.member)}
            for hosted in [hosted for hosted in self.lost if hosted not in wanted]:
                del self.lost[hosted]
            for want in wanted.values():
                if running := self._scheduler.replicas.get(want.partition_id):
                    running.preferred = want.preferred
            missing = (w for w in wanted.values() if w.partition_id not in self._scheduler.replicas)
            while batch := list(islice(missing, _OPEN_AT_ONCE)):
                await self._start(batch)

    def _is_current(self, view: View) -> bool:
        """Whether the view is younger than the start of this broker."""
        known = view.brokers.get(self._node_id)
        return known is not None and self._directory.identity.is_that_of(known)

    def _wanted(self, view: View) -> dict[bytes, WantedReplica]:
        """Those of a topic are made once, until it changes: there may be thousands of others."""
        known, self._wanted_of = self._wanted_of, {}
        wanted: dict[bytes, WantedReplica] = {}
        for name, topic in view.topics.items():
            found = known.get(name)
            if found is None or found[0] is not topic:
                found = topic, self._wanted_in(view.hosted_of(topic, self._node_id))
            self._wanted_of[name] = found
            wanted.update(found[1])
        return wanted

    def _wanted_in(self, hosted: Iterable[Hosted]) -> dict[bytes, WantedReplica]:
        wanted = {}
        for topic, partition, placement, member in hosted:
            key, name = partition_id(topic.id, partition), PartitionName(topic.name, partition)
            wanted[key] = WantedReplica(
                key, name, member, placement.founders, placement.replicas[0], placement.start
            )
        return wanted

    async def open_replica(self, want: WantedReplica) -> HostedReplica:
        """Open or make one log, and run it; raises if it cannot be."""
        async with self._lock:
            await self._start([want])
            if want.partition_id in self.lost:
                raise QuiverError(self.lost[want.partition_id])
            return self._scheduler.replicas[want.partition_id]

    def is_made(self, partition_id: bytes, member: int) -> bool:
        """Whether a log of this replica was made here, as that member."""
        directory, hosted = self._directory, partition_id.hex()
        log = directory.logs.get(hosted) or directory.unlisted.get(hosted)
        return log is not None and log.member == member

    async def remove_replica(self, partition_id: bytes) -> None:
        """Stop a replica, if it runs, and remove its log."""
        async with self._lock:
            hosted = self._scheduler.replicas.get(partition_id)
            if hosted is not None:
                self._scheduler.remove(hosted)
            await self._remove_logs([partition_id.hex()])

    async def _remove_all_but(self, wanted: dict[bytes, WantedReplica]) -> None:
        """The view is younger than this start, so what it does not name is gone from here."""
        members = {partition_id: want.member for partition_id, want in wanted.items()}
        for hosted in list(self._scheduler.replicas.values()):
            if not hosted.is_metadata and members.get(hosted.id) != hosted.member:
                logger.info("%s is removed from this broker", hosted.name)
                self._scheduler.remove(hosted)
        directory = self._directory
        gone = [
            hosted
            for hosted, log in {**directory.unlisted, **directory.logs}.items()
            if not log.is_metadata and members.get(bytes.fromhex(hosted)) != log.member
        ]
        await self._remove_logs(gone)

    async def _remove_logs(self, gone: list[str]) -> None:
        """In the disk thread, behind all that was written to these logs. Files are removed aside:
        there may be thousands, and no fsync is to wait for them."""
        if gone:
            directory = self._directory
            topics = await self._disk_thread.run(lambda: directory.take_out(gone))
            await self._disk_thread.aside(lambda: directory.delete_removed(topics))

    async def _start(self, batch: list[WantedReplica]) -> None:
        if not batch:
            return
        await self._remove_other_members(batch)
        thread = self._disk_thread
        unmade = await thread.run(lambda: self._unmade(batch))
        made = await self._prepare_aside(unmade)
        logs = await thread.run(lambda: self._open_all(batch, made))
        for want, log in zip(batch, logs, strict=True):
            await asyncio.sleep(0)
            if isinstance(log, QuiverError):
                self._lose(want, str(log))
                continue
            try:
                hosted = self._hosted(want, log)
            except (QuiverError, BrokenInvariant) as error:
                is_of_another = isinstance(error, UnsupportedFormat)
                text = str(error) if is_of_another else lost_text(str(error), want.member)
                self._lose(want, text)
                continue
            self.lost.pop(want.partition_id, None)
            self._scheduler.add(hosted)

    async def _prepare_aside(self, unmade: list[WantedReplica]) -> list[NewLog]:
        """Beside the disk thread: these are many syncs, and no other partition is to wait for them.
        Also who is cancelled waits for the end: nothing may be prepared twice at the same time."""
        if not unmade:
            return []
        preparing = asyncio.ensure_future(
            self._disk_thread.aside(lambda: self._prepare_all(unmade))
        )
        try:
            made = await asyncio.shield(preparing)
        except asyncio.CancelledError:
            await asyncio.wait([preparing])
            raise
        failed = [new for new in made if isinstance(new, QuiverError)]
        if failed:
            raise failed[0]
        return [new for new in made if isinstance(new, NewLog)]

    def _lose(self, want: WantedReplica, reason: str) -> None:
        if self.lost.get(want.partition_id) != reason:
            logger.critical("%s cannot run here: %s", want.name, reason)
            self.on_lost(want.name, reason)
        self.lost[want.partition_id] = reason

    def _hosted(self, want: WantedReplica, found: Opened) -> HostedReplica:
        return HostedReplica(
            want.partition_id,
            want.name,
            want.member,
            found,
            self._scheduler,
            preferred=want.preferred,
        )

    async def _remove_other_members(self, batch: list[WantedReplica]) -> None:
        """Remove logs of other members: they must not speak for the member that is wanted."""
        directory = self._directory
        other = [
            want.partition_id.hex()
            for want in batch
            if directory.knows(want.partition_id.hex())
            and not self.is_made(want.partition_id, want.member)
        ]
        await self._remove_logs(other)

    def _unmade(self, batch: list[WantedReplica]) -> list[WantedReplica]:
        """Those whose logs have to be made. In the disk thread."""
        directory = self._directory
        unknown = [want for want in batch if want.partition_id.hex() not in directory.logs]
        for want in unknown:
            if directory.disk.is_folder(want.name.folder):
                directory.look_into(want.name.folder)
        directory.adopt(want.partition_id.hex() for want in unknown if self._is_in_place(want))
        return [
            want
            for want in unknown
            if not directory.knows(want.partition_id.hex())
            and not directory.disk.is_folder(want.name.folder)
            and not self._was_elsewhere(want)
        ]

    def _prepare_all(self, unmade: list[WantedReplica]) -> list[NewLog | QuiverError]:
        """Each file is synced by itself: others on this machine may keep its disks busy. Some
        helpers stay free, for what the disk thread has in hand."""
        waiting, made = deque(enumerate(unmade)), dict[int, NewLog | QuiverError]()

        def prepare(_: int) -> None:
            with suppress(IndexError):
                while True:
                    number, want = waiting.popleft()
                    made[number] = self._prepare(want)

        self._disk_thread.together(prepare, range(_PREPARING))
        return [made[number] for number in range(len(unmade))]

    def _open_all(
        self, batch: list[WantedReplica], prepared: list[NewLog]
    ) -> list[Opened | QuiverError]:
        """Name and list what was made, and open all. In the disk thread."""
        directory = self._directory
        name_logs(directory.disk, [new.folder for new in prepared])
        directory.add_logs(
            {new.state.log_id.hex(): ListedLog(new.folder, new.state.member) for new in prepared}
        )
        made = {new.state.log_id: new for new in prepared}
        return self._disk_thread.together(lambda want: self._open(want, made), batch)

    def _is_in_place(self, want: WantedReplica) -> bool:
        """Whether its log is where it belongs, though no list names it."""
        found = self._directory.unlisted.get(want.partition_id.hex())
        return found == ListedLog(want.name.folder, want.member)

    def _was_elsewhere(self, want: WantedReplica) -> bool:
        """Whether it was in the directory that this one replaces: it is not to be made anew."""
        own = self._directory.identity.member
        return own != 0 and epoch_of(want.member) < epoch_of(own)

    def _prepare(self, want: WantedReplica) -> NewLog | QuiverError:
        is_founder = want.member in want.founders
        founding = founding_checkpoint(want.founders, want.start) if is_founder else None
        owner = Owner(want.partition_id, want.member)
        disk, settings = self._directory.disk, self._scheduler.log_settings
        try:
            return prepare_log(disk, want.name.folder, owner, settings, founding)
        except QuiverError as error:
            # Told at the end, when none of the others is under way any more.
            return error

    def _open(self, want: WantedReplica, made: dict[bytes, NewLog]) -> Opened | QuiverError:
        """Its log; one that was made right now is known without a look at it."""
        disk, settings = self._scheduler.disk, self._scheduler.log_settings
        owner, new = Owner(want.partition_id, want.member), made.get(want.partition_id)
        try:
            if new is not None:
                return open_new(disk, settings, new)
            self._check_place(want)
            found = read_state(open_log(disk, want.name.folder, settings, owner))
        except Exception as error:
            # One log that cannot be opened must not keep the others closed.
            if not isinstance(error, QuiverError):
                logger.exception("%s cannot be opened", want.name)
            return self._lost(want, error)
        for note in found.log.notes:
            logger.warning("%s: %s", want.name, note)
        return found

    def _check_place(self, want: WantedReplica) -> None:
        """Raise `Corrupt` unless the log that is listed is where it belongs."""
        folder, log = want.name.folder, self._directory.logs.get(want.partition_id.hex())
        if log is None and self._was_elsewhere(want):
            raise Corrupt(
                "this replica was in a data directory that is lost; it comes back as another "
                "member if a majority of the others is left"
            )
        if log is None and want.partition_id.hex() in self._directory.unlisted:
            raise Corrupt(f"{folder} does not hold its log, and no list names it")
        if log is None:
            raise Corrupt(
                f"{folder} stands where its log is to be made, and does not say whose it is. If "
                "it is not needed, stop the broker, move the folder out of the data directory, "
                "and start the broker again"
            )

    def _lost(self, want: WantedReplica, error: Exception) -> QuiverError:
        """The error with a remedy."""
        directory, folder = self._directory, want.name.folder
        if isinstance(error, Corrupt):
            found = directory.folder_of(want.partition_id.hex(), want.member)
            if found and found != folder:
                return Corrupt(
                    f"{error}. Its log, or an old copy of it, is in {found}. If the folder was "
                    f"renamed, stop the broker, and give it the name {folder} back; an old copy "
                    "must not be used"
                )
            return Corrupt(lost_text(str(error), want.member))
        return error if isinstance(error, QuiverError) else Corrupt(f"it failed: {error!r}")
