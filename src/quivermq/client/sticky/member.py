"""A member of a sticky group: sends heartbeats, and takes and releases partitions as told.

Partitions that stay are never touched. One that is revoked is handed over: what the user was given
of it is finished and committed, what was only read ahead is dropped, then it is released. One that
is lost, because this member was taken for dead, is dropped at once: others may have it.

Everything here happens on one event loop.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from quivermq.batches import Frame
from quivermq.client.checks import check_number, checked_group, checked_name, one_of
from quivermq.client.core import Core
from quivermq.client.deserialize import Deserializer, kind_with_data
from quivermq.client.models import Message
from quivermq.client.sticky.delivery_buffer import DeliveryBuffer
from quivermq.client.sticky.heartbeat import Heartbeat
from quivermq.client.sticky.owned_partition import FETCHES_AT_ONCE, OwnedPartition, Ownership, Start
from quivermq.client.topic_choice import TopicChoice, Topics
from quivermq.errors import Fenced, InvalidRequest, QuiverError, Timeout, TopicNotFound
from quivermq.wire import proto

AUTO_COMMIT_SECONDS: Final = 1.0
SESSION_SECONDS_MAX: Final = 3600.0
FINISH_SECONDS_MAX: Final = 300.0
"""How long a partition that is revoked waits for a user that works on its messages."""
COMMIT_SECONDS_MAX: Final = 5.0
"""How long it then waits for the user to commit, where that is the user's business."""
PARTITION_BYTES_MIN: Final = 256 << 10
COMMITS_AT_ONCE: Final = 64

Notify = Callable[[list[Any]], Awaitable[object]]
"""Called with partitions."""


class ConsumerSettings(NamedTuple):
    """How a sticky consumer takes part."""

    topics: Topics
    group: str
    assignor: str = "sticky"
    session: float = 10.0
    start: Start = "earliest"
    auto_commit: bool = True
    prefetch_bytes: int = 8 << 20
    name: str = ""
    deserializer: Deserializer | None = None
    pattern: bool = False
    may_create: bool = True
    """Have the topic created if it is not there, where brokers do that."""

    @property
    def choice(self) -> TopicChoice:
        """The topics to take part in."""
        return TopicChoice.of(self.topics, pattern=self.pattern)

    @property
    def topic(self) -> str:
        """The topic, where it is one; of several: all of them, as text."""
        return self.topics if isinstance(self.topics, str) else str(self.choice)

    def check(self) -> None:
        """Raise `InvalidRequest` unless it can be done."""
        check_number("session", self.session, least=0.5)
        if self.session > SESSION_SECONDS_MAX:
            raise InvalidRequest(f"session must be at most {SESSION_SECONDS_MAX:g} s")
        check_number("prefetch_bytes", self.prefetch_bytes, least=1, whole=True)
        TopicChoice.of(self.topics, pattern=self.pattern)
        checked_group(self.group)
        checked_name("assignor", self.assignor)
        if self.name != "":
            checked_name("member", self.name)
        one_of("start", self.start, "earliest", "latest")
        one_of("auto_commit", self.auto_commit, True, False)
        kind_with_data(Message, self.deserializer)


class StickyMember:
    """Takes part in a group, and has messages of its partitions ready."""

    def __init__(
        self,
        core: Core,
        settings: ConsumerSettings,
        on_assigned: Notify,
        on_revoked: Notify,
        arrived: asyncio.Event | None = None,
    ) -> None:
        """`arrived` is set when there may be messages to take."""
        self.assignment: tuple[int, ...] = ()
        """The partitions that it may read; replaced in one step."""
        self.tracer = core.router.tracer
        self.topic_and_group = settings.topic, settings.group
        self._kind = kind_with_data(Message, settings.deserializer)
        self._core = core
        self._settings = settings
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._heartbeat = Heartbeat(core.router, settings, secrets.randbelow((1 << 63) - 1) + 1)
        self._loop = asyncio.get_running_loop()
        self.buffer = DeliveryBuffer(self._loop.call_soon_threadsafe)
        self._owned_partitions: dict[int, OwnedPartition] = {}
        self._tasks: dict[OwnedPartition, asyncio.Task[None]] = {}
        self._background: dict[asyncio.Task[None], None] = {}
        self._arrived = arrived or asyncio.Event()
        self._lost: set[int] = set()
        """Partitions that were lost with messages that were given out and not committed."""
        self._failure: QuiverError | None = None
        self._is_closed = False
        self._is_stopped = False
        self._fetches = asyncio.Semaphore(FETCHES_AT_ONCE)
        self._commits = asyncio.Semaphore(COMMITS_AT_ONCE)

    @property
    def generation(self) -> int:
        """As it was last heard."""
        return self._heartbeat.generation

    async def _first_state(self) -> proto.StickyState:
        try:
            return await self._heartbeat.send()
        except TopicNotFound:
            if not self._settings.may_create:
                raise
            router = self._core.router
            attempts = router.attempts(f"looking for {self._settings.topic}")
            await router.consumed_route(self._settings.topic, attempts)
            return await self._heartbeat.send()

    async def join(self) -> None:
        """Become a member; raises what the cluster refuses it with."""
        began = time.monotonic()
        try:
            self._apply(await self._first_state(), began)
        except asyncio.CancelledError:
            # It may be a member by now, which the caller no longer wants.
            await self._finish(is_leaving=True)
            raise
        except BaseException:
            await self.abandon()
            raise
        self._start_background(self._send_heartbeats())
        if self._settings.auto_commit:
            self._start_background(self._commit_periodically())

    # For the user.

    async def await_messages(self, wait: float | None) -> bool:
        """Wait so long for messages to take; False if there are none, or no more.

        Raises what ended the membership for good.
        """
        deadline = None if wait is None else self._loop.time() + wait
        while True:
            self._arrived.clear()
            if self._is_stopped:
                return False
            if self.has_messages():
                return True
            if self._is_closed:
                return False
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return False

    @property
    def has_failed(self) -> bool:
        """The membership ended for good."""
        return self._failure is not None

    def has_messages(self) -> bool:
        """There is something to take; raises what ended the membership for good."""
        if self._failure is not None:
            raise self._failure
        return not self._is_closed and self.buffer.has_messages

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def paused(self) -> list[int]:
        """The partitions that give out nothing until they are resumed."""
        owned = self._owned_partitions
        return [number for number in self.assignment if owned[number].is_paused]

    async def pause(self, partitions: Iterable[int] | None) -> None:
        """Give out nothing of these, or of all that it has."""
        for owned_partition in self._chosen(partitions):
            self.buffer.pause(owned_partition)

    async def resume(self, partitions: Iterable[int] | None) -> None:
        """Go on where they paused."""
        for owned_partition in self._chosen(partitions):
            owned_partition.is_paused = False
            self.buffer.open(owned_partition)
        self._arrived.set()

    async def seek(self, partition: int, place: int | str) -> int:
        """Go on from another place in a partition; returns its offset."""
        (owned_partition,) = self._chosen([partition])
        owned_partition.holds += 1
        try:
            async with asyncio.timeout(self._core.router.timeout), owned_partition.seeking:
                await owned_partition.claimed.wait()
                return await self._seek(owned_partition, place)
        except TimeoutError:
            raise Timeout(f"partition {partition} could not be sought in time") from None
        except Fenced:
            self._lose(owned_partition)
            self._heartbeat.send_now()
            raise
        finally:
            owned_partition.holds -= 1
            self.buffer.open(owned_partition)
            self._arrived.set()

    async def _seek(self, owned_partition: OwnedPartition, place: int | str) -> int:
        task = self._tasks.get(owned_partition)
        if task is None:
            raise Fenced(f"partition {owned_partition.partition} is not this consumer's any more")
        # It may be waiting for messages at the place that it is to leave.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            return await owned_partition.seek(place, partial(self.buffer.rewind, owned_partition))
        finally:
            is_owned = self._owned_partitions.get(owned_partition.partition) is owned_partition
            if is_owned and not owned_partition.is_withdrawn and not self._is_closed:
                self._run(owned_partition)

    def _chosen(self, partitions: Iterable[int] | None) -> list[OwnedPartition]:
        numbers = self.assignment if partitions is None else list(partitions)
        for number in numbers:
            if number not in self.assignment:
                raise InvalidRequest(
                    f"partition {number!r} of {self._settings.topic} is not this consumer's: it "
                    f"has {list(self.assignment)}"
                )
        return [self._owned_partitions[number] for number in numbers]

    async def commit(self) -> None:
        """Commit everything that the user was given; raises `Fenced` if some of it was lost."""
        self.buffer.finish()
        for failure in await self._commit(self._owned_partitions.values()):
            raise failure
        lost, self._lost = sorted(self._lost), set()
        if lost:
            raise Fenced(
                f"partitions {lost} of {self._settings.topic} went to other members of group "
                f"{self._settings.group} before their messages were committed: those members "
                "get these messages again"
            )

    async def close(self, *, is_clean: bool = True, is_brief: bool = False) -> None:
        """Commit what is done, and leave the group at once. After trouble, what the user was
        given last does not count as done. If it is to be brief, leaving is tried once."""
        if self._is_closed:
            return
        try:
            await self._stop_background()
            if is_clean:
                self.buffer.finish()
            if self._settings.auto_commit and not self.buffer.is_stale:
                await self._commit(self._owned_partitions.values())
        finally:
            await self._finish(is_leaving=self.generation > 0, is_brief=is_brief)

    def stop_soon(self) -> None:
        """Have `await_messages` return, and find nothing any more. Any thread may call this."""
        self._is_stopped = True
        with suppress(RuntimeError):  # the loop is closed, and everything on it
            self._loop.call_soon_threadsafe(self._arrived.set)

    def close_soon(self) -> None:
        """Close it, without waiting for that. Any thread may call this, and the collector."""
        with suppress(RuntimeError):  # the loop is closed, and everything on it
            self._loop.call_soon_threadsafe(
                lambda: self._start_background(self.close(is_clean=False))
            )

    async def abandon(self) -> None:
        """Stop without leaving the group, as if it had died."""
        await self._finish(is_leaving=False)

    async def _stop_background(self) -> None:
        self._is_closed = True
        self._arrived.set()
        here = asyncio.current_task()
        tasks = [task for task in self._background if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, *, is_leaving: bool, is_brief: bool = False) -> None:
        await self._stop_background()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._owned_partitions, self.assignment = {}, ()
        with suppress(QuiverError):
            # Without this, the others get its partitions when its session ends.
            if is_leaving:
                await self._heartbeat.leave(is_brief=is_brief)
        await self._core.transport.close()

    # Heartbeats, and their answers.

    async def _send_heartbeats(self) -> None:
        while self._failure is None:
            began = time.monotonic()
            try:
                self._apply(await self._heartbeat.send(), began)
            except QuiverError as error:
                if not error.retriable:
                    self._fail(error)
        with suppress(QuiverError):
            # Its partitions go to members that can work.
            await self._heartbeat.leave()

    def _fail(self, error: QuiverError) -> None:
        """Something is wrong for good: the next call of the user raises it."""
        self._failure = self._failure or error
        self._heartbeat.send_now()
        for owned_partition in list(self._owned_partitions.values()):
            self._lose(owned_partition)
        self._arrived.set()

    def _apply(self, state: proto.StickyState, began: float) -> None:
        """Take, hand over and drop partitions as the coordinator says."""
        if self._failure is not None or 0 < state.generation < self.generation:
            return  # the latter is of a coordinator that does not know yet that it is none any more
        self._heartbeat.generation = state.generation
        self.buffer.valid_until = began + self._settings.session
        assigned = {each.partition: each.epoch for each in state.assigned}
        revoked = set(state.revoked)
        for number, owned_partition in list(self._owned_partitions.items()):
            if number in revoked:
                if not owned_partition.is_withdrawn:
                    self._update_assignment(without=number)
                    self.buffer.withdraw(owned_partition)
                    self._start_background(self._hand_over(owned_partition))
            elif assigned.get(number) != owned_partition.epoch:
                self._lose(owned_partition)
        self._heartbeat.release(revoked - self._owned_partitions.keys(), revoked)
        begun = [number for number in assigned if number not in self._owned_partitions]
        for number in begun:
            self._begin(number, assigned[number])
        if begun:
            self._update_assignment()
            taken = [self._owned_partitions[number] for number in begun]
            self._start_background(self._tell_assigned(taken))
        self._arrived.set()

    async def _tell_assigned(self, taken: list[OwnedPartition]) -> None:
        """Nothing of a partition is given out before the user's callback has returned, which may
        seek."""
        try:
            await self._notify(self._on_assigned, [each.partition for each in taken])
        finally:
            for owned_partition in taken:
                owned_partition.holds -= 1
                self.buffer.open(owned_partition)
            self._arrived.set()

    def _begin(self, partition: int, epoch: int) -> None:
        settings = self._settings
        owned = Ownership(settings.topic, settings.group, partition, epoch)
        owned_partition = OwnedPartition(
            self._core.router,
            owned,
            settings.start,
            self._bytes_per_partition(),
            self._fetches,
            self._put,
            self._kind,
        )
        owned_partition.holds += 1
        self._owned_partitions[partition] = owned_partition
        self._run(owned_partition)

    def _put(self, owned_partition: OwnedPartition, frames: list[Frame]) -> None:
        self.buffer.put(owned_partition, frames)
        self._arrived.set()

    def _run(self, owned_partition: OwnedPartition) -> None:
        task = self._loop.create_task(owned_partition.run())
        self._tasks[owned_partition] = task
        task.add_done_callback(lambda _: self._on_end(owned_partition))

    def _bytes_per_partition(self) -> int:
        share = max(
            PARTITION_BYTES_MIN, self._settings.prefetch_bytes // (len(self._owned_partitions) + 1)
        )
        for owned_partition in self._owned_partitions.values():
            owned_partition.bytes_max = share
        return share

    def _on_end(self, owned_partition: OwnedPartition) -> None:
        """An owned partition runs until it is cancelled, or until something is wrong for good."""
        task = self._tasks.pop(owned_partition)
        error = None if task.cancelled() else task.exception()
        if (
            error is None
            or self._is_closed
            or self._owned_partitions.get(owned_partition.partition) is not owned_partition
        ):
            return
        self._lose(owned_partition)
        # Deleting a group takes its claims away too: they can be made again.
        was_claimed = isinstance(error, InvalidRequest) and owned_partition.committed >= 0
        if was_claimed or isinstance(error, Fenced | TopicNotFound):
            # The next heartbeat tells what became of it; soon, but never in a hot loop.
            self._start_background(self._ask_soon())
        elif isinstance(error, QuiverError):
            self._fail(error)
        else:
            self._fail(QuiverError(f"the consumer failed: {error!r}"))

    async def _ask_soon(self) -> None:
        await asyncio.sleep(0.1)
        self._heartbeat.send_now()

    def _lose(self, owned_partition: OwnedPartition) -> None:
        """It is not ours any more, and nothing can be done about what was given out."""
        if self._owned_partitions.get(owned_partition.partition) is not owned_partition:
            return
        del self._owned_partitions[owned_partition.partition]
        self.buffer.withdraw(owned_partition)
        self._record_loss(owned_partition)
        self._stop(owned_partition)
        self._update_assignment()
        self._start_background(self._notify(self._on_revoked, [owned_partition.partition]))

    def _record_loss(self, owned_partition: OwnedPartition) -> None:
        if owned_partition.yielded > owned_partition.committed >= 0:
            self._lost.add(owned_partition.partition)

    def _stop(self, owned_partition: OwnedPartition) -> None:
        task = self._tasks.get(owned_partition)
        if task is not None:
            task.cancel()

    async def _hand_over(self, owned_partition: OwnedPartition) -> None:
        """Finish, commit, release."""
        self._stop(owned_partition)
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                await owned_partition.freed.wait()
        await self._notify(self._on_revoked, [owned_partition.partition])
        if self._settings.auto_commit:
            await self._commit([owned_partition])
        elif owned_partition.yielded > owned_partition.committed >= 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_SECONDS_MAX):
                    await owned_partition.await_committed(owned_partition.yielded)
        if self._owned_partitions.get(owned_partition.partition) is owned_partition:
            del self._owned_partitions[owned_partition.partition]
            self._record_loss(owned_partition)
            self._heartbeat.release([owned_partition.partition])
            self._heartbeat.send_now()

    async def _notify(self, notify: Notify, partitions: list[int]) -> None:
        try:
            await notify(partitions)
        except Exception as error:
            self._fail(InvalidRequest(f"on_assigned or on_revoked failed: {error!r}"))

    def _update_assignment(self, without: int | None = None) -> None:
        numbers = (
            n
            for n, owned_partition in self._owned_partitions.items()
            if not owned_partition.is_withdrawn and n != without
        )
        self.assignment = tuple(sorted(numbers))

    # Commits.

    async def _commit_periodically(self) -> None:
        while True:
            await asyncio.sleep(AUTO_COMMIT_SECONDS)
            await self._commit(self._owned_partitions.values())

    async def _commit(self, owned_partitions: Iterable[OwnedPartition]) -> list[BaseException]:
        """Commit how far the user is past. Fenced partitions are lost; returns other failures."""
        wanted = [
            owned_partition
            for owned_partition in owned_partitions
            if owned_partition.past > owned_partition.committed >= 0
        ]
        outcomes = await asyncio.gather(
            *(self._commit_one(owned_partition) for owned_partition in wanted),
            return_exceptions=True,
        )
        for owned_partition, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Fenced):
                self._lose(owned_partition)
                self._heartbeat.send_now()
        return [
            outcome
            for outcome in outcomes
            if isinstance(outcome, BaseException) and not isinstance(outcome, Fenced)
        ]

    async def _commit_one(self, owned_partition: OwnedPartition) -> None:
        async with self._commits:
            await owned_partition.commit_past()

    def _start_background(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
