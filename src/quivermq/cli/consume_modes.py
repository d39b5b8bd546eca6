"""The modes of `quiver consume`: each takes messages in its way, prints and settles them.

Each prints before it settles, except for `--ack auto`: no message is done that was not shown.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from quivermq.cli.errors import UsageError
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.output import count, remark
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import (
        AsyncClient,
        AsyncConsumer,
        AsyncLeasedMessage,
        AsyncReader,
        GroupInfo,
        Message,
    )

# How long a poll of a shared group waits: while following, and for messages that a rate limit holds
# back.
_FOLLOW_SECONDS: Final = 10.0
_RATE_LIMITED_SECONDS: Final = 1.0
_STICKY_POLL_SECONDS: Final = 1.0
_STICKY_POLL_MESSAGES: Final = 100
# A member that leaves passes on its partitions within this; a member without any then gets none.
_POLLS_WITHOUT_PARTITIONS: Final = 3
_COMMIT_MESSAGES: Final = 10_000
_COMMIT_SECONDS: Final = 1.0
# After a failure that a client has tried for as long as its timeout to get over.
_AGAIN_SECONDS: Final = 1.0

T = TypeVar("T")

GroupStart = Literal["earliest", "latest"]
"""Where a group starts that does not exist yet."""


class ConsumeMode(Enum):
    """How messages are shared between consumers."""

    SHARED = "shared"
    STICKY = "sticky"
    SINGLE = "single"


class Ack(Enum):
    """When a message is settled: after it is printed, or before."""

    MANUAL = "manual"
    AUTO = "auto"


class Then(Enum):
    """How a message is settled once it is printed."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """The options that every mode takes."""

    topics: tuple[str, ...]
    """With a pattern, that alone."""
    group: str
    """Empty: no group."""
    max: int
    """Stop after so many messages; 0: no limit."""
    follow: bool
    pattern: bool = False

    @property
    def title(self) -> str:
        """The topics, as people read them."""
        return ", ".join(self.topics)

    @property
    def asked(self) -> str | list[str]:
        """The topics, as a client takes them."""
        return self.topics[0] if len(self.topics) == 1 else list(self.topics)

    async def find_topics(self, client: "AsyncClient") -> list[str]:
        """The topics that are meant at present."""
        from quivermq.client import TopicChoice  # noqa: PLC0415  (help needs no client)

        if not self.pattern:
            return list(self.topics)
        return TopicChoice.of(self.asked, pattern=True).matching(await client.topic_names())

    def wanted(self, printed: int, most: int) -> int:
        """How many messages to take at once; 0: enough are printed."""
        return min(self.max - printed, most) if self.max else most

    async def wait_after(self, error: QuiverError) -> None:
        """Wait a moment before the next attempt; raises the error unless brokers may come back and
        `--follow` is given."""
        if not (self.follow and error.retriable):
            raise error
        remark(f"waiting for brokers: {error}", "yellow")
        await asyncio.sleep(_AGAIN_SECONDS)


class SharedPrinter:
    """Polls for a shared group, prints and settles."""

    def __init__(
        self,
        lines: MessageLines,
        request: ConsumeRequest,
        start: GroupStart,
        *,
        ack: Ack,
        then: Then,
        reason: str | None,
        visibility: float,
        prefetch: int,
    ) -> None:
        self._lines = lines
        self._request = request
        self._start: GroupStart = start
        self._ack = ack
        self._then = then
        self._reason = reason
        self._visibility = visibility
        self._prefetch = prefetch
        self.printed = 0
        self._left: list[GroupInfo] = []
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End behind the messages in hand."""
        self._stop.set()

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        request = self._request
        # Closing the client releases the leases of messages not settled, also after Ctrl-C.
        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            wait = _FOLLOW_SECONDS if request.follow else 0.0
            while not self._stop.is_set() and (
                wanted := request.wanted(self.printed, self._prefetch)
            ):
                try:
                    messages = await unless(self._stop, self._poll(client, wanted, wait))
                    if messages:
                        await self._print(client, messages)
                except QuiverError as error:
                    await request.wait_after(error)
                    continue
                if not messages and not request.follow:
                    topics = await request.find_topics(client)
                    self._left = [await client.group(each, request.group) for each in topics]
                    if not any(left.lag for left in self._left):
                        return
                    wait = _RATE_LIMITED_SECONDS

    async def _poll(
        self, client: "AsyncClient", wanted: int, wait: float
    ) -> list["AsyncLeasedMessage"]:
        return await client.poll(
            self._request.asked,
            group=self._request.group,
            max_messages=wanted,
            wait=wait,
            visibility=self._visibility,
            ack=self._ack.value,
            start=self._start,
            pattern=self._request.pattern,
        )

    async def _print(self, client: "AsyncClient", messages: list["AsyncLeasedMessage"]) -> None:
        for message in messages:
            self._lines.write(message)
        # Fails if the reader of the pipe is gone: what it did not take is not settled.
        self._lines.flush()
        self.printed += len(messages)
        if self._ack is Ack.MANUAL:
            await self._settle(client, messages)

    async def _settle(self, client: "AsyncClient", messages: list["AsyncLeasedMessage"]) -> None:
        import quivermq  # noqa: PLC0415  (help and completion need no client)

        try:
            if self._then is Then.ACK:
                await client.ack(messages)
            elif self._then is Then.NACK:
                await client.nack(messages, reason=self._reason)
            elif self._then is Then.REJECT:
                await client.reject(messages, self._reason or "")
        except quivermq.LeaseLost as error:
            remark(f"{error}; --visibility gives more time", "yellow")

    def remark_on_end(self) -> None:
        """Say how many messages were printed, and how many others hold or are not due."""
        done = {
            Then.ACK: "acknowledged",
            Then.NACK: "returned as failed",
            Then.REJECT: "rejected",
            Then.LEAVE: "released",
        }[self._then]
        if self.printed:
            remark(f"{count(self.printed, 'message')} of {self._request.title}, {done}")
        elif self._request.follow:
            remark("no messages")
        else:
            remark("nothing is waiting; --follow waits for messages")
        in_flight = sum(left.in_flight for left in self._left)
        delayed = sum(left.delayed for left in self._left)
        if in_flight and self._then is not Then.LEAVE:
            others = f"other consumers of {self._request.group}"
            remark(f"{count(in_flight, 'message')} with {others}")
        if delayed:
            remark(f"{count(delayed, 'message')} not due yet")


class StickyPrinter:
    """Joins a sticky group and prints the messages of its partitions, in order.

    The next poll commits what the last one printed, so nothing is committed that did not leave this
    process.
    """

    def __init__(self, lines: MessageLines, request: ConsumeRequest, start: GroupStart) -> None:
        self._lines = lines
        self._request = request
        self._start: GroupStart = start
        self.printed = 0
        self._consumer: AsyncConsumer | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End behind the messages in hand."""
        self._is_stopped = True
        if self._consumer is not None:
            self._consumer.stop()

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        request = self._request
        async with (
            quivermq.aio.connect(servers, timeout=seconds) as client,
            client.consumer(
                request.asked,
                group=request.group,
                mode="sticky",
                start=self._start,
                pattern=request.pattern,
                on_assigned=lambda added: remark(f"partitions assigned: {_places(added)}"),
                on_revoked=lambda gone: remark(f"partitions revoked: {_places(gone)}"),
            ) as consumer,
        ):
            idle = 0
            self._consumer = consumer
            while not self._is_stopped and (
                wanted := request.wanted(self.printed, _STICKY_POLL_MESSAGES)
            ):
                messages = await consumer.poll(wanted, _STICKY_POLL_SECONDS)
                self._print(messages)
                idle = 0 if messages or self._is_stopped else idle + 1
                if idle and not request.follow and await self._is_at_end(client, consumer, idle):
                    return

    def _print(self, messages: list["Message"]) -> None:
        for message in messages:
            self._lines.write(message)
        self._lines.flush()
        self.printed += len(messages)

    async def _is_at_end(self, client: "AsyncClient", consumer: "AsyncConsumer", idle: int) -> bool:
        mine = consumer.assignment
        if not mine:
            return idle >= _POLLS_WITHOUT_PARTITIONS
        await consumer.commit()
        for topic in await self._request.find_topics(client):
            group = await client.group(topic, self._request.group)
            # Numbers, or pairs of several topics.
            if any(
                each.lag
                for each in group.partitions
                if each.partition in mine or (topic, each.partition) in mine
            ):
                return False
        return True

    def remark_on_end(self) -> None:
        """Say how many messages were printed."""
        if self.printed:
            remark(f"{count(self.printed, 'message')} of {self._request.title}, committed")
        elif self._request.follow:
            remark("no messages")
        else:
            remark("nothing is waiting in its partitions; --follow waits for messages")


class _Enough(Exception):
    """As many messages are printed as were asked for."""


class SinglePrinter:
    """Reads partitions alone, from any position, and commits for a group if one is named."""

    def __init__(
        self,
        lines: MessageLines,
        request: ConsumeRequest,
        partition: int | None,
        start: str | int | datetime | None,
    ) -> None:
        self._lines = lines
        self._request = request
        self._partition = partition
        self._start = start
        self.printed = 0
        self._positions: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End, and commit what was printed."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self, servers: str, seconds: float) -> None:
        self._task = asyncio.create_task(self._run(servers, seconds))
        try:
            await self._task
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._is_stopped:
                raise

    async def _run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            topics = await self._request.find_topics(client)
            if len(topics) > 1 and self._partition is not None:
                raise UsageError("--partition is for one topic")
            starts = {
                (topic, partition): start
                for topic in topics
                for partition, start in (await self._find_starts(client, topic)).items()
            }
            while not self._is_stopped:
                try:
                    await self._read(client, starts)
                except QuiverError as error:
                    await self._request.wait_after(error)
                    starts |= self._positions
                else:
                    return

    async def _read(self, client: "AsyncClient", starts: dict[tuple[str, int], Any]) -> None:
        """Print the partitions from these positions on."""
        follow = self._request.follow
        readers = [
            client.read(topic, partition=partition, start=start, follow=follow)
            for (topic, partition), start in starts.items()
        ]
        try:
            if follow:
                await self._print_as_they_come(client, readers)
            else:
                await self._print_in_order(client, readers)
        except _Enough:
            pass
        finally:
            await self._commit(client)
            for reader in readers:
                await reader.close()

    async def _find_starts(self, client: "AsyncClient", topic: str) -> dict[int, Any]:
        """Where to start, by partition."""
        group = self._request.group
        partitions = (await client.offsets(topic, [])).count
        if self._partition is not None and self._partition not in range(partitions):
            raise UsageError(f"{topic} has partitions 0 to {partitions - 1}")
        wanted = list(range(partitions)) if self._partition is None else [self._partition]
        if isinstance(self._start, int) and len(wanted) > 1:
            raise UsageError("an offset counts within one partition: name it by --partition")
        starts: dict[int, Any] = dict.fromkeys(wanted, self._start or "earliest")
        if not group or self._start is not None:
            return starts
        committed = await client.committed(topic, group=group)
        held = (await client.offsets(topic, wanted)).partitions
        for partition in wanted:
            offset = committed.get(partition, 0)
            lost = held[partition].start - offset
            if partition in committed and lost > 0:
                dropped = f"{count(lost, 'message')} dropped before they were read"
                remark(f"partition {partition}: {dropped}", "yellow")
            starts[partition] = max(offset, held[partition].start)
        return starts

    async def _print_in_order(self, client: "AsyncClient", readers: list["AsyncReader"]) -> None:
        async with aclosing(merge_by_time(readers)) as messages:
            async for message in messages:
                self._print(message)
                if self.printed % _COMMIT_MESSAGES == 0:
                    await self._commit(client)

    async def _print_as_they_come(
        self, client: "AsyncClient", readers: list["AsyncReader"]
    ) -> None:
        committing = asyncio.create_task(self._keep_committing(client))
        try:
            await follow_all(readers, self._print_soon)
        finally:
            committing.cancel()

    def _print(self, message: "Message") -> None:
        self._lines.write(message)
        self.printed += 1
        self._positions[message.topic, message.partition] = message.offset + 1
        if self.printed == self._request.max:
            raise _Enough

    def _print_soon(self, message: "Message") -> None:
        # One flush for all messages that came together.
        asyncio.get_running_loop().call_soon(self._lines.flush)
        self._print(message)

    async def _keep_committing(self, client: "AsyncClient") -> None:
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            await self._commit(client)

    async def _commit(self, client: "AsyncClient") -> None:
        """Commit what was printed, once it has left this process."""
        group = self._request.group
        if not group:
            return
        self._lines.flush()
        for (topic, partition), offset in list(self._positions.items()):
            if self._committed.get((topic, partition)) != offset:
                await client.commit(topic, group=group, partition=partition, offset=offset)
                self._committed[topic, partition] = offset

    def remark_on_end(self) -> None:
        """Say how many messages were printed, and if none, why."""
        if self.printed:
            remark(f"{count(self.printed, 'message')} of {self._request.title}")
        elif self._request.follow:
            remark("no messages")
        elif self._start == "latest":
            remark("no messages: latest is behind the last one; --follow waits for more")
        else:
            remark("no messages; --follow waits for some")


def _places(partitions: Sequence[Any]) -> str:
    """Partitions of one topic as numbers, of several as `orders/0`."""
    return ", ".join(
        str(each) if isinstance(each, int) else f"{each[0]}/{each[1]}" for each in partitions
    )


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, list[T]]) -> list[T]:
    """The result of work; nothing, if it is to stop first."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else []
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def merge_by_time(
    streams: Sequence[AsyncIterator["Message"]],
) -> AsyncGenerator["Message", None]:
    """Merge streams that end: each keeps its order, and older messages come first."""
    heads: list[tuple[int, int, Message]] = []
    for number, stream in enumerate(streams):
        if (message := await anext(stream, None)) is not None:
            heads.append((message.timestamp, number, message))
    heapq.heapify(heads)
    while heads:
        _, number, message = heads[0]
        yield message
        following = await anext(streams[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.timestamp, number, following))


async def follow_all(
    streams: Sequence[AsyncIterator["Message"]], handle: Callable[["Message"], None]
) -> None:
    """Handle the messages of streams that never end, until `handle` or a stream raises."""

    async def follow(stream: AsyncIterator["Message"]) -> None:
        async for message in stream:
            handle(message)

    try:
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(follow(stream))
    except BaseExceptionGroup as group:
        # Others may have failed too, but one error is enough to end.
        raise group.exceptions[0] from None
