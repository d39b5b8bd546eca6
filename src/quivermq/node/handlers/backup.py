"""Answers the requests of `quiver backup` and `quiver restore`.

Leaders export the state of their partitions, as commands that put it in place again, and take back
commands and batches into topics that are being restored. Messages themselves are read by `fetch`.
"""

import asyncio
import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from quivermq.batches import MIB, Frame, FrameKind
from quivermq.cluster import (
    Edit,
    View,
    export_catalog,
    finish_restore,
    partition_id,
    restore_producers,
    restore_topic,
    restore_users,
)
from quivermq.errors import InvalidRequest, NotLeader, TooLarge
from quivermq.node.handlers.topics import done
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Bulky, Handler, Room, StoreHandler
from quivermq.queue import Groups, restored_groups_command, restored_producers_command
from quivermq.replica import Replica, Result
from quivermq.wire import check_answer, proto

_PART_BYTES: Final = MIB
"""Groups that are exported in one answer; one by itself may be larger."""
_ANSWER_BYTES: Final = 16 * MIB
_FOUNDED_S: Final = 5.0


class BackupHandlers:
    """Exports and restores: catalog, topics, state of partitions."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: PartitionLookup,
        threads: ThreadPoolExecutor,
        partitions_max: int,
    ) -> None:
        """States are packed in `threads`."""
        self._partitions_max = partitions_max
        self._metadata = metadata
        self._partitions = partitions
        self._threads = threads

    def handlers(self) -> dict[str, Handler]:
        return {
            "export_catalog": self.export_catalog,
            "restore_catalog": self.restore_catalog,
            "restore_topic": self.restore_topic,
            "finish_restore": self.finish,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {"export_partition": Bulky(self.export_partition, lambda _: _ANSWER_BYTES)}

    def storing(self) -> dict[str, StoreHandler]:
        return {"restore_frames": self.restore_frames}

    async def export_catalog(self, request: proto.Request) -> proto.Response:  # noqa: ARG002
        await self._metadata.catch_up()
        content = json.dumps(export_catalog(self._metadata.view), sort_keys=True).encode()
        check_answer(len(content), "the catalog is too large to be exported")
        return proto.Response(catalog_exported=proto.CatalogExported(content=content))

    async def export_partition(self, request: proto.Request, room: Room) -> Answer:
        body = request.export_partition
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition, restoring=True)
        await hosted.call(Replica.read)
        await room(_ANSWER_BYTES)
        # From here to the fork nothing waits: all of it is of one moment.
        groups, producers = hosted.replica.groups, hosted.replica.producers
        if groups is None or producers is None:
            raise NotLeader(f"{hosted.name} mends its log; try again")
        exported = proto.PartitionExported(
            start=hosted.log.start.next_offset, end=hosted.readable_end
        )
        frames = []
        if body.producers:
            command = restored_producers_command(producers.pack())
            frames.append(Frame.of(FrameKind.COMMAND, command))
        if body.groups:
            frame, exported.next = await self._export_groups(hosted, groups, body.after)
            frames.append(frame)
        return proto.Response(partition_exported=exported), frames

    async def _export_groups(
        self, hosted: HostedReplica, groups: Groups, after: int
    ) -> tuple[Frame, int]:
        part, following = groups.fork().part(after, _PART_BYTES)
        loop = asyncio.get_running_loop()
        command = await loop.run_in_executor(self._threads, restored_groups_command, part)
        try:
            return Frame.of(FrameKind.COMMAND, command), following
        except TooLarge as error:
            largest = max(part.by_name.values(), key=lambda group: group.size_bytes)
            raise TooLarge(
                f"{hosted.name}: the state of group {largest.name!r} takes {len(command):,} bytes, "
                "too much for one entry: let its consumers settle what they hold, and try again"
            ) from error

    async def restore_catalog(self, request: proto.Request) -> proto.Response:
        body = request.restore_catalog
        content = _json(body.content)
        if not body.users:
            granted = content.get("next_producer")
            await self._metadata.edit(lambda view: restore_producers(view, granted))
            return proto.Response(catalog_restored=proto.CatalogRestored())
        restored: list[str] = []
        left: list[str] = []

        def build(view: View) -> Edit | None:
            nonlocal restored, left
            edit, restored, left = restore_users(view, content.get("users"))
            return edit

        await self._metadata.edit(build)
        answer = proto.CatalogRestored(users=restored, users_left=left)
        return proto.Response(catalog_restored=answer)

    async def restore_topic(self, request: proto.Request) -> proto.Response:
        body = request.restore_topic
        record, fresh_id = _json(body.record), secrets.token_hex(12)
        view = await self._metadata.edit(
            lambda view: restore_topic(
                view,
                body.name,
                record,
                backup=body.backup,
                cluster_id=body.cluster_id,
                fresh_id=fresh_id,
                partitions_max=self._partitions_max,
            )
        )
        topic = view.topics[body.name]
        await self._until_led(topic.id, len(topic.partitions))
        answer = proto.TopicRestoring(topic_id=bytes.fromhex(topic.id), is_open=not topic.restoring)
        return proto.Response(topic_restoring=answer)

    async def _until_led(self, topic_id: str, partitions: int) -> None:
        """Wait a while for every partition to have a leader."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FOUNDED_S
        while loop.time() < deadline:
            if all(
                self._partitions.leader_of(partition_id(topic_id, number))
                for number in range(partitions)
            ):
                return
            await asyncio.sleep(0.01)

    async def restore_frames(
        self, request: proto.Request, frames: Sequence[Frame]
    ) -> proto.Response:
        body = request.restore_frames
        if not self._partitions.topic(body.topic, body.topic_id).restoring:
            raise InvalidRequest(f"topic {body.topic!r} is not being restored")
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition, restoring=True)
        if not frames:
            raise InvalidRequest("there is nothing to restore in this request")
        # All are given to the replica before any is waited for: they become one write.
        waiting = [asyncio.ensure_future(_restore(hosted, frame)) for frame in frames]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        end = proto.FramesRestored(end=hosted.readable_end)
        return proto.Response(frames_restored=end)

    async def finish(self, request: proto.Request) -> proto.Response:
        body = request.finish_restore
        self._partitions.topic(body.topic, body.topic_id)
        await self._metadata.edit(lambda view: finish_restore(view, body.topic))
        return done()


async def _restore(hosted: HostedReplica, frame: Frame) -> Result:
    return await hosted.call(lambda replica, token: replica.restore(token, frame))


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"this is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest("this is no JSON object")
    return found
