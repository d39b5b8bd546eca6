"""Commits offsets of groups, and answers what they have committed."""

from collections.abc import Callable

from quivermq.errors import OffsetOutOfRange
from quivermq.node.delivery.registry import check_committer, check_not_shared
from quivermq.node.handlers.topics import done
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Handler
from quivermq.queue import LeaseManager
from quivermq.replica import Replica
from quivermq.wire import proto


class OffsetHandlers:
    """Answers for the partitions that are led here; the client asks each leader."""

    def __init__(
        self,
        partitions: PartitionLookup,
        used: Callable[[HostedReplica, str], None],
    ) -> None:
        """`used` is told for which groups offsets are committed."""
        self._used = used
        self._partitions = partitions

    def handlers(self) -> dict[str, Handler]:
        return {
            "commit_offset": self.commit_offset,
            "committed_offsets": self.committed_offsets,
        }

    async def commit_offset(self, request: proto.Request) -> proto.Response:
        body = request.commit_offset
        check_committer(body.group, body.topic)
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition)
        await _check_end(hosted, body.offset)
        self._used(hosted, body.group)

        def commit(leases: LeaseManager) -> None:
            check_not_shared(leases, body.group)
            leases.working_copy.commit(body.group, body.offset, body.epoch)

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
            committed = await hosted.commit_lease_ops(
                lambda leases: leases.working_copy.committed(body.group)
            )
            if committed is not None:
                offsets[number] = committed
        return proto.Response(offsets_committed=proto.OffsetsCommitted(offsets=offsets))


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
