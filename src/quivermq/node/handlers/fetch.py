"""Answers fetches: whole batches, only what is committed, waiting for more if asked to.

Files are read in threads, so that a cold disk never holds the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, ParamSpec, TypeVar

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.errors import Corrupt, OffsetOutOfRange, StorageFailed, UnsupportedFormat
from quivermq.log import Log
from quivermq.node.counters import Counters
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.replica import Replica
from quivermq.wire import proto

_BYTES_DEFAULT: Final = 1 << 20
_BYTES_MAX: Final = 32 << 20
_WAIT_MS_MAX: Final = 60_000
_READERS: Final = 2
_CONFIRMED_AT_ONCE: Final = 500
_FRAMES_MAX: Final = 8_192
"""Batches in one answer, however small they are."""
_Asked = ParamSpec("_Asked")
T = TypeVar("T")


class Part(NamedTuple):
    """The result of a read."""

    frames: list[Frame]
    next_offset: Offset


class FetchHandler:
    """Answers fetches and questions about offsets."""

    def __init__(self, partitions: PartitionLookup, counters: Counters) -> None:
        self._partitions = partitions
        self._counters = counters
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="quiver-read")
        """Whatever may wait for a disk is read in these."""

    def close(self) -> None:
        self.readers.shutdown(wait=True, cancel_futures=True)

    def handlers(self) -> dict[str, Handler]:
        return {"find_offset": self.find_offset, "list_offsets": self.list_offsets}

    def bulky(self) -> dict[str, Bulky]:
        return {"fetch": Bulky(self.fetch, lambda request: bytes_wanted(request.fetch))}

    async def fetch(self, request: proto.Request, room: Room) -> Answer:
        body = request.fetch
        hosted = await self._readable_by(body)
        deadline = asyncio.get_running_loop().time() + min(body.wait_ms, _WAIT_MS_MAX) / 1000
        while True:
            start, end = hosted.log.start.next_offset, hosted.readable_end
            if body.offset < start or (body.offset > end and not body.follower_ok):
                held = f"it holds {start} to {end - 1}" if end > start else "it is empty"
                raise OffsetOutOfRange(
                    f"offset {body.offset} of {hosted.name} is not kept: {held}, the next is {end}",
                    earliest=start,
                    end=end,
                )
            if body.offset < end:
                break
            if not await self._wait([hosted], deadline):
                return self._answer(hosted, Part([], Offset(body.offset)), end)
            # It may have lost its leadership, or its topic, meanwhile.
            hosted = await self._readable_by(body)
        # Not before there is something to read: a fetch that waits takes no room from others.
        await room(bytes_wanted(body))
        return self._answer(hosted, await self._read(hosted, body), end)

    async def _readable_by(self, body: proto.Fetch) -> HostedReplica:
        """The replica to read from; raises `Fenced` if the sticky member lost the partition."""
        if not body.epoch:
            return await self._readable(body)
        hosted = await self._leading(body, body.partition)
        hosted.with_leases(lambda leases: leases.working_copy.check_claim(body.group, body.epoch))
        return hosted

    async def _readable(self, body: proto.Fetch | proto.FindOffset) -> HostedReplica:
        """The replica to read from: any that is readable, if a follower will do, or the leader."""
        if body.follower_ok and not self._partitions.is_restoring(body.topic):
            hosted = self._partitions.local(body.topic, body.topic_id, body.partition)
            if hosted is not None and hosted.is_readable:
                return hosted
        return await self._leading(body, body.partition)

    async def _leading(
        self, body: proto.Fetch | proto.FindOffset | proto.ListOffsets, partition: int
    ) -> HostedReplica:
        """The replica, once a quorum has confirmed that it is led here."""
        while True:
            halted = self._partitions.local(body.topic, body.topic_id, partition)
            if halted is not None and halted.refusal is not None and halted.is_readable:
                # It is alone, and takes no writes: no broker knows more than what is applied here.
                return halted
            restoring = isinstance(body, proto.Fetch) and body.restoring
            hosted = self._partitions.leading(
                body.topic, body.topic_id, partition, restoring=restoring
            )
            replica = hosted.replica
            await hosted.call(Replica.read)
            if hosted.replica is replica:
                return hosted
            # It was made anew since it answered, and knows less for a while.

    async def _wait(self, replicas: Sequence[HostedReplica], deadline: float) -> bool:
        """Wait until one may have more; False if there is none by the deadline."""
        loop = asyncio.get_running_loop()
        if deadline <= loop.time() or any(hosted.is_closed for hosted in replicas):
            return False
        woken: asyncio.Future[None] = loop.create_future()
        for hosted in replicas:
            hosted.on_messages(woken, lambda: _set(woken))
        try:
            async with asyncio.timeout_at(deadline):
                await woken
        except TimeoutError:
            return False
        finally:
            for hosted in replicas:
                hosted.off_messages(woken)
        return True

    async def _read(self, hosted: HostedReplica, body: proto.Fetch) -> Part:
        end = Index(hosted.replica.applied_index + 1)
        stop = Offset(body.stop) if body.offset < body.stop < hosted.readable_end else None
        return await self._in_thread(
            hosted, read_batches, hosted.log, Offset(body.offset), end, bytes_wanted(body), stop
        )

    async def _in_thread(
        self,
        hosted: HostedReplica,
        read: Callable[_Asked, T],
        *args: _Asked.args,
        **rest: _Asked.kwargs,
    ) -> T:
        """Read a replica's log in a reader thread. The replica learns what cannot be read."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.readers, partial(read, *args, **rest))
        except (Corrupt, StorageFailed, UnsupportedFormat) as error:
            raise hosted.report_unreadable(error) from error

    def _answer(
        self, hosted: HostedReplica, part: Part, end: Offset
    ) -> tuple[proto.Response, list[Frame]]:
        """`end` is what was readable when the read began: it never goes back for who reads."""
        response = proto.Response()
        fetched = response.fetched
        fetched.next_offset = part.next_offset
        fetched.end_offset = max(end, hosted.readable_end)
        fetched.start_offset = hosted.log.start.next_offset
        traffic = self._counters.traffic[hosted.name.topic, hosted.name.partition]
        traffic.messages_out += sum(frame.header.count for frame in part.frames)
        traffic.bytes_out += sum(map(len, part.frames))
        return response, part.frames

    async def find_offset(self, request: proto.Request) -> proto.Response:
        body = request.find_offset
        hosted = await self._readable(body)
        end = hosted.readable_end
        where = body.WhichOneof("where")
        if where == "latest":
            offset = end
        elif where == "timestamp_ms":
            offset = await self.offset_at(hosted, body.timestamp_ms)
        else:
            offset = hosted.log.start.next_offset
        return proto.Response(offset_found=proto.OffsetFound(offset=offset))

    async def list_offsets(self, request: proto.Request) -> proto.Response:
        """The offsets that partitions hold. A request that waits asks no quorum, and wakes no
        sleeping replica: that is done for those that have more than is known."""
        body = request.list_offsets
        wanted = {position.partition: position.offset for position in body.positions}
        for number in wanted:
            self._partitions.partition_id(body.topic, body.topic_id, number)
        if body.wait_ms:
            wanted = await self._beyond(body, wanted)
        found = proto.OffsetsListed()
        numbers = sorted(wanted)
        # A few at a time: all of them would go on together, and hold the loop.
        for first in range(0, len(numbers), _CONFIRMED_AT_ONCE):
            part = numbers[first : first + _CONFIRMED_AT_ONCE]
            for hosted in await self._all_leading(body, part):
                found.partitions.add(
                    partition=hosted.name.partition,
                    start=hosted.log.start.next_offset,
                    end=hosted.readable_end,
                )
        return proto.Response(offsets_listed=found)

    async def _all_leading(
        self, body: proto.ListOffsets, numbers: Sequence[int]
    ) -> list[HostedReplica]:
        """The replicas of these partitions, confirmed together; raises the first refusal."""
        asked = (self._leading(body, number) for number in numbers)
        replicas = await asyncio.gather(*asked, return_exceptions=True)
        for hosted in replicas:
            if isinstance(hosted, BaseException):
                raise hosted
        return [hosted for hosted in replicas if isinstance(hosted, HostedReplica)]

    async def _beyond(self, body: proto.ListOffsets, wanted: dict[int, int]) -> dict[int, int]:
        """Of these positions, those with more behind them, once there are any."""
        deadline = asyncio.get_running_loop().time() + min(body.wait_ms, _WAIT_MS_MAX) / 1000
        while True:
            led = {
                number: self._partitions.leading(body.topic, body.topic_id, number)
                for number in wanted
            }
            found = {
                number: offset
                for number, offset in wanted.items()
                if led[number].readable_end > offset
            }
            if found or not await self._wait(list(led.values()), deadline):
                return found

    async def offset_at(self, hosted: HostedReplica, timestamp_ms: int) -> Offset:
        """The first readable message of the first batch that was stored at or after a time."""
        end = hosted.readable_end
        return min(await self._in_thread(hosted, offset_of_time, hosted.log, timestamp_ms), end)

    async def read_on(self, hosted: HostedReplica, offset: int) -> list[Frame]:
        """Some batches from the one that holds `offset` on."""
        end = Index(hosted.replica.applied_index + 1)
        part = await self._in_thread(
            hosted, read_batches, hosted.log, Offset(offset), end, _BYTES_DEFAULT
        )
        return part.frames


def bytes_wanted(body: proto.Fetch) -> int:
    """How much a fetch may answer with; one batch may be larger."""
    return min(body.bytes_max or _BYTES_DEFAULT, _BYTES_MAX)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def read_batches(
    log: Log, offset: Offset, end: Index, bytes_max: int, stop: Offset | None = None
) -> Part:
    """Batches of messages from the one that holds `offset` on, before entry `end`; only those that
    begin before `stop`. What is before something that cannot be read is given without it."""
    index = log.index_of_offset(offset)
    found: list[Frame] = []
    left = bytes_max
    while index < end and left > 0 and len(found) < _FRAMES_MAX:
        behind = min(end, Index(index + _FRAMES_MAX - len(found)))
        try:
            frames = log.read(index, end=behind, bytes_max=left, stop=stop)
        except (Corrupt, StorageFailed):
            if not found:
                raise
            break
        found += [frame for frame in frames if frame.header.kind == FrameKind.DATA]
        left -= sum(map(len, frames))
        index = Index(index + len(frames))
        if stop is not None and found and found[-1].header.next_offset >= stop:
            break
    return Part(found, found[-1].header.next_offset if found else offset)


def offset_of_time(log: Log, timestamp_ms: int) -> Offset:
    """The first message of the first entry stamped at or after a time; the end if there is none."""
    return log.edge_before(log.index_of_time(timestamp_ms)).next_offset
