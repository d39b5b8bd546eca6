"""Answers requests for fetches, committed offsets and producer ids."""

import asyncio
from collections.abc import Callable

from quivermq.cluster import Edit, View, grant_producers
from quivermq.errors import OffsetOutOfRange
from quivermq.node.delivery.registry import check_bookkeeper, check_not_shared
from quivermq.node.handlers.fetch import FetchHandler, bytes_wanted
from quivermq.node.handlers.topics import done
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.queue import LeaseManager
from quivermq.replica import Replica
from quivermq.wire import proto

_GRANTED_AT_ONCE = 1000


class OffsetHandlers:
    """Reads, and what groups have committed."""

    def __init__(
        self,
        partitions: PartitionLookup,
        fetching: FetchHandler,
        metadata: Metadata,
        used: Callable[[HostedReplica, str], None],
    ) -> None:
        """`used` is told for which groups offsets are committed."""
        self._used = used
        self._partitions = partitions
        self._fetching = fetching
        self._metadata = metadata
        # Producer ids that the metadata partition granted to this broker: first and behind last.
        self._granted = (0, 0)
        self._granting = asyncio.Lock()

    def handlers(self) -> dict[str, Handler]:
        return {
            "find_offset": self.find_offset,
            "list_offsets": self.list_offsets,
            "commit_offset": self.commit_offset,
            "committed_offsets": self.committed_offsets,
            "new_producer": self.new_producer,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {"fetch": Bulky(self.fetch, lambda request: bytes_wanted(request.fetch))}

    async def fetch(self, request: proto.Request, room: Room) -> Answer:
        return await self._fetching.fetch(request.fetch, room)

    async def find_offset(self, request: proto.Request) -> proto.Response:
        return await self._fetching.find_offset(request.find_offset)

    async def list_offsets(self, request: proto.Request) -> proto.Response:
        return await self._fetching.list_offsets(request.list_offsets)

    async def commit_offset(self, request: proto.Request) -> proto.Response:
        body = request.commit_offset
        check_bookkeeper(body.group)
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition)
        await _check_end(hosted, body.offset)
        self._used(hosted, body.group)

        def commit(leases: LeaseManager) -> None:
            check_not_shared(leases, body.group)
            leases.commit(body.group, body.offset, body.epoch)

        await hosted.commit_lease_ops(commit)
        return done()

    async def committed_offsets(self, request: proto.Request) -> proto.Response:
        """Of the partitions that are led here; the client asks each leader."""
        body = request.committed_offsets
        topic = self._partitions.topic(body.topic)
        offsets: dict[int, int] = {}
        for number in dict.fromkeys(body.partitions) or range(len(topic.partitions)):
            hosted = self._partitions.leading(body.topic, b"", number)
            await hosted.call(Replica.read)
            # Not before it is committed indeed: the lease manager knows more than that.
            committed = await hosted.commit_lease_ops(lambda leases: leases.committed(body.group))
            if committed is not None:
                offsets[number] = committed
        return proto.Response(offsets_committed=proto.OffsetsCommitted(offsets=offsets))

    async def new_producer(self, request: proto.Request) -> proto.Response:  # noqa: ARG002
        async with self._granting:
            first, end = self._granted
            if first == end:
                first, end = await self._grant()
            self._granted = (first + 1, end)
        granted = proto.ProducerGranted(producer_id=first, producer_epoch=0)
        return proto.Response(producer_granted=granted)

    async def _grant(self) -> tuple[int, int]:
        """A run of ids that no other broker gets; raises `NotLeader` where that is not known."""
        first = 0

        def build(view: View) -> Edit | None:
            nonlocal first
            edit, first = grant_producers(view, _GRANTED_AT_ONCE)
            return edit

        await self._metadata.edit(build)
        return first, first + _GRANTED_AT_ONCE


async def _check_end(hosted: HostedReplica, offset: int) -> None:
    """Raise `OffsetOutOfRange` for what is not there yet: the group would never see messages that
    come there. What is not kept any more may be committed: nothing is skipped by that."""
    if offset <= hosted.readable_end:
        return
    # A leader that is new may not know yet how far it goes.
    await hosted.call(Replica.read)
    end = int(hosted.readable_end)
    if offset > end:
        raise OffsetOutOfRange(
            f"offset {offset} of {hosted.name} cannot be committed: the partition ends at {end}. "
            "Commit the offset of the last message that was done, plus one",
            earliest=int(hosted.log.start.next_offset),
            end=end,
        )
