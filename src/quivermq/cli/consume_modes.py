"""The modes of `quiver consume`: each takes messages in its way, prints and settles them.

Each prints before it settles, except for `--ack auto`: no message is done that was not shown.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from quivermq.cli.errors import UsageError
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.output import count, numbers, remark

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

    topic: str
    group: str
    """Empty: no group."""
    max: int
    """Stop after so many messages; 0: no limit."""
    follow: bool

    def wanted(self, printed: int, most: int) -> int:
        """How many messages to take at once; 0: enough are printed."""
        return min(self.max - printed, most) if self.max else most


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
        self._printed = 0
        self._left: GroupInfo | None = None

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        request = self._request
        # Closing the client releases the leases of messages not settled, also after Ctrl-C.
        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            wait = _FOLLOW_SECONDS if request.follow else 0.0
            while wanted := request.wanted(self._printed, self._prefetch):
                messages = await self._poll(client, wanted, wait)
                if messages:
                    await self._print(client, messages)
                elif not request.follow:
                    self._left = await client.group(request.topic, request.group)
                    if not self._left.lag:
                        return
                    wait = _RATE_LIMITED_SECONDS

    async def _poll(
        self, client: "AsyncClient", wanted: int, wait: float
    ) -> list["AsyncLeasedMessage"]:
        return await client.poll(
            self._request.topic,
            group=self._request.group,
            max_messages=wanted,
            wait=wait,
            visibility=self._visibility,
            ack=self._ack.value,
            start=self._start,
        )

    async def _print(self, client: "AsyncClient", messages: list["AsyncLeasedMessage"]) -> None:
        for message in messages:
            self._lines.write(message)
        # Fails if the reader of the pipe is gone: what it did not take is not settled.
        self._lines.flush()
        self._printed += len(messages)
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
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._request.topic}, {done}")
        elif not self._request.follow:
            remark("nothing is waiting; --follow waits for messages")
        left = self._left
        if left is not None and left.in_flight and self._then is not Then.LEAVE:
            others = f"other consumers of {self._request.group}"
            remark(f"{count(left.in_flight, 'message')} with {others}")
        if left is not None and left.delayed:
            remark(f"{count(left.delayed, 'message')} not due yet")


class StickyPrinter:
    """Joins a sticky group and prints the messages of its partitions, in order.

    The next poll commits what the last one printed, so nothing is committed that did not leave this
    process.
    """

    def __init__(self, lines: MessageLines, request: ConsumeRequest, start: GroupStart) -> None:
        self._lines = lines
        self._request = request
        self._start: GroupStart = start
        self._printed = 0

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        request = self._request
        async with (
            quivermq.aio.connect(servers, timeout=seconds) as client,
            client.consumer(
                request.topic,
                group=request.group,
                mode="sticky",
                start=self._start,
                on_assigned=lambda added: remark(f"partitions assigned: {numbers(added)}"),
                on_revoked=lambda gone: remark(f"partitions revoked: {numbers(gone)}"),
            ) as consumer,
        ):
            idle = 0
            while wanted := request.wanted(self._printed, _STICKY_POLL_MESSAGES):
                messages = await consumer.poll(wanted, _STICKY_POLL_SECONDS)
                self._print(messages)
                idle = 0 if messages else idle + 1
                if idle and not request.follow and await self._is_at_end(client, consumer, idle):
                    return

    def _print(self, messages: list["Message"]) -> None:
        for message in messages:
            self._lines.write(message)
        self._lines.flush()
        self._printed += len(messages)

    async def _is_at_end(self, client: "AsyncClient", consumer: "AsyncConsumer", idle: int) -> bool:
        mine = consumer.assignment
        if not mine:
            return idle >= _POLLS_WITHOUT_PARTITIONS
        await consumer.commit()
        group = await client.group(self._request.topic, self._request.group)
        return not any(each.lag for each in group.partitions if each.partition in mine)

    def remark_on_end(self) -> None:
        """Say how many messages were printed."""
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._request.topic}, committed")
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
        self._printed = 0
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        topic, follow = self._request.topic, self._request.follow
        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            starts = await self._find_starts(client)
            readers = [
                client.read(topic, partition=partition, start=start, follow=follow)
                for partition, start in starts.items()
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

    async def _find_starts(self, client: "AsyncClient") -> dict[int, Any]:
        """Where to start, by partition."""
        topic, group = self._request.topic, self._request.group
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
                if self._printed % _COMMIT_MESSAGES == 0:
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
        self._printed += 1
        self._positions[message.partition] = message.offset + 1
        if self._printed == self._request.max:
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
        topic, group = self._request.topic, self._request.group
        if not group:
            return
        self._lines.flush()
        for partition, offset in list(self._positions.items()):
            if self._committed.get(partition) != offset:
                await client.commit(topic, group=group, partition=partition, offset=offset)
                self._committed[partition] = offset

    def remark_on_end(self) -> None:
        """Say how many messages were printed, and if none, why."""
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._request.topic}")
        elif self._start == "latest":
            remark("no messages: latest is behind the last one; --follow waits for more")
        else:
            remark("no messages; --follow waits for some")


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
