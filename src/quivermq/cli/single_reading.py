"""Reading a topic for oneself: from anywhere, through its partitions, committing or not."""

import asyncio
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from quivermq.cli.message_lines import MessageLines
from quivermq.cli.errors import UsageError
from quivermq.cli.output import count, remark
from quivermq.cli.partition_streams import as_they_come, in_order_of_time

if TYPE_CHECKING:
    from quivermq.client import AsyncClient, AsyncReader, Message

_COMMIT_MESSAGES: Final = 10_000
_COMMIT_SECONDS: Final = 1.0


class _Enough(Exception):
    """As many messages as were asked for."""


class SingleReading:
    """From where to begin, through the partitions, to the line that sums it up."""

    def __init__(
        self,
        lines: MessageLines,
        topic: str,
        partition: int | None,
        start: str | int | datetime | None,
        group: str | None,
        *,
        follow: bool,
        max_: int,
    ) -> None:
        self._lines = lines
        self._topic = topic
        self._partition = partition
        self._start = start
        self._group = group
        self._follow = follow
        self._max = max_
        self._printed = 0
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            starts = await self._starts(client)
            readers = [
                client.read(self._topic, partition=partition, start=start, follow=self._follow)
                for partition, start in starts.items()
            ]
            try:
                if self._follow:
                    await self._print_as_they_come(client, readers)
                else:
                    await self._print_in_order(client, readers)
            except _Enough:
                pass
            finally:
                await self._commit(client)
                for reader in readers:
                    await reader.close()

    async def _starts(self, client: "AsyncClient") -> dict[int, Any]:
        """Where to begin, by partition."""
        partitions = (await client.offsets(self._topic, [])).count
        if self._partition is not None and self._partition not in range(partitions):
            raise UsageError(f"{self._topic} has partitions 0 to {partitions - 1}")
        wanted = list(range(partitions)) if self._partition is None else [self._partition]
        if isinstance(self._start, int) and len(wanted) > 1:
            raise UsageError("an offset counts within one partition: name it by --partition")
        starts: dict[int, Any] = dict.fromkeys(wanted, self._start or "earliest")
        if self._group is None or self._start is not None:
            return starts
        committed = await client.committed(self._topic, group=self._group)
        held = (await client.offsets(self._topic, wanted)).partitions
        for partition in wanted:
            offset = committed.get(partition, 0)
            lost = held[partition].start - offset
            if partition in committed and lost > 0:
                remark(
                    f"partition {partition}: {count(lost, 'message')} went away unread", "yellow"
                )
            starts[partition] = max(offset, held[partition].start)
        return starts

    async def _print_in_order(self, client: "AsyncClient", readers: list["AsyncReader"]) -> None:
        async with aclosing(in_order_of_time(readers)) as messages:
            async for message in messages:
                self._print(message)
                if self._printed % _COMMIT_MESSAGES == 0:
                    await self._commit(client)

    async def _print_as_they_come(
        self, client: "AsyncClient", readers: list["AsyncReader"]
    ) -> None:
        committing = asyncio.create_task(self._keep_committing(client))
        try:
            await as_they_come(readers, self._print_soon)
        finally:
            committing.cancel()

    def _print(self, message: "Message") -> None:
        self._lines.write(message)
        self._printed += 1
        self._positions[message.partition] = message.offset + 1
        if self._printed == self._max:
            raise _Enough

    def _print_soon(self, message: "Message") -> None:
        # One flush for all that came together.
        asyncio.get_running_loop().call_soon(self._lines.flush)
        self._print(message)

    async def _keep_committing(self, client: "AsyncClient") -> None:
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            await self._commit(client)

    async def _commit(self, client: "AsyncClient") -> None:
        """What was printed counts as done, once it has left this process."""
        if self._group is None:
            return
        self._lines.flush()
        for partition, offset in list(self._positions.items()):
            if self._committed.get(partition) != offset:
                await client.commit(
                    self._topic, group=self._group, partition=partition, offset=offset
                )
                self._committed[partition] = offset

    def remark_on_end(self) -> None:
        """For people: how many, and if none, why perhaps."""
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._topic}")
        elif self._start == "latest":
            remark("nothing: latest is behind the last message; --follow waits for more")
        else:
            remark("nothing there; --follow waits for messages")
