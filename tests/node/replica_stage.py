"""Groups on a real runner, loop and disk thread, with a disk that fails when it is told to."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Event

from quivermq.batches import encode_batch
from quivermq.log import Log, LogSettings
from quivermq.node.data_dir import PartitionName
from quivermq.node.disk_thread import DiskThread
from quivermq.node.disk_work import read_state
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.replica import Produced, ReplicaSettings, Result, founding_checkpoint
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.transports.stage import until

SMALL = LogSettings(segment_bytes=16_384, allocation_bytes_min=4_096, allocation_bytes_step=4_096)


@dataclass
class Stage:
    """A runner without links: what a group sends is lost."""

    disk: SimulatedDisk
    disk_thread: DiskThread
    scheduler: ReplicaScheduler
    leaderships: list[tuple[bytes, bool]] = field(default_factory=list)

    def group(
        self, number: int = 1, founders: tuple[int, ...] = (1,), member: int = 1
    ) -> HostedReplica:
        name, log_id = PartitionName("orders", number), bytes([number]) * 16
        founding = founding_checkpoint(founders)
        log = Log.create(self.disk, name.folder, log_id, SMALL, founding, member)
        group = HostedReplica(log_id, name, member, read_state(log), self.scheduler)
        self.scheduler.add(group)
        return group

    async def serving_group(self, number: int = 1) -> HostedReplica:
        group = self.group(number)
        await until(lambda: group.was_serving)
        return group

    def stuck_disk(self) -> AbstractContextManager[None]:
        """The thread does nothing more until this ends."""
        return stuck(self.disk_thread)


@asynccontextmanager
async def stage(*, writes_inline: bool = False) -> AsyncIterator[Stage]:
    disk = SimulatedDisk(Random(1))
    thread = DiskThread(asyncio.get_running_loop(), "disk")
    thread.start()
    leaderships: list[tuple[bytes, bool]] = []
    scheduler = ReplicaScheduler(
        disk=disk,
        disk_thread=thread,
        replica_settings=ReplicaSettings(tick_ms=10, election_ticks=5),
        log_settings=SMALL,
        writes_inline=writes_inline,
        copy_bytes_per_second=1 << 30,
        on_leadership=lambda group: leaderships.append((group.id, group.was_serving)),
    )
    it = Stage(disk, thread, scheduler, leaderships)
    scheduler.start_ticking()
    try:
        yield it
    finally:
        scheduler.stop_ticking()
        for group in list(scheduler.replicas.values()):
            scheduler.remove(group)
        await thread.close()


@contextmanager
def stuck(thread: DiskThread) -> Iterator[None]:
    """A disk thread that does nothing more until this ends."""
    release = Event()
    thread.submit(release.wait, lambda _: None)
    try:
        yield
    finally:
        release.set()


def begin_produce(group: HostedReplica, size: int = 10) -> list[Result]:
    """Ask for a batch to be stored; the answer comes into the list."""
    answers: list[Result] = []
    group.produce(encode_batch([bytes(size)]), answers.append)
    return answers


async def produced(group: HostedReplica, size: int = 10) -> Produced:
    answers = begin_produce(group, size)
    await until(lambda: answers)
    (answer,) = answers
    assert isinstance(answer, Produced), answer
    return answer
