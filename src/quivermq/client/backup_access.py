"""Requests of `quivermq.backup` to brokers: exports, stored batches as they are, and restores.

For admins of the whole cluster. Every request names the id of its topic: one that was deleted and
created again is another topic.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from quivermq.batches import MIB, Frame
from quivermq.client.ask_leaders import check_same
from quivermq.client.client import Client
from quivermq.client.router import Router
from quivermq.client.transport import Reply, run
from quivermq.errors import QuiverError
from quivermq.wire import frames_of, proto

FETCH_BYTES: Final = 4 * MIB


class ExportedState(NamedTuple):
    """The state of a partition at one moment."""

    start: int
    """The first offset that it holds."""
    end: int
    """Behind the last one."""
    commands: list[Frame]
    """They put the state in place again."""
    next_group: int
    """Where the export of groups goes on; 0: there are no more."""


class RestoredUsers(NamedTuple):
    """Names of users that a backup has."""

    restored: list[str]
    left: list[str]
    """They exist, and stay as they are."""


class RestoringTopic(NamedTuple):
    """A topic that is being restored, or was, from the same backup."""

    id: bytes
    is_open: bool


class BackupAccess:
    """The requests of backups, through a blocking client."""

    def __init__(self, client: Client) -> None:
        self._router: Router = client._core.router  # noqa: SLF001 - of the same package

    def export_catalog(self) -> dict[str, Any]:
        """Topics, users, and the next producer id."""
        request = proto.Request()
        request.export_catalog.SetInParent()
        found = self._ask_any(request, "exporting the catalog").catalog_exported.content
        content: dict[str, Any] = json.loads(found)
        return content

    def export_groups(
        self, topic: str, topic_id: str, partition: int, after: int = 0
    ) -> ExportedState:
        """Some groups of a partition, from the one behind number `after` on."""
        request = proto.Request()
        request.export_partition.groups, request.export_partition.after = True, after
        return self._export(topic, topic_id, partition, request)

    def export_producers(self, topic: str, topic_id: str, partition: int) -> ExportedState:
        """The producers that a partition remembers, and where it begins and ends with them."""
        request = proto.Request()
        request.export_partition.producers = True
        return self._export(topic, topic_id, partition, request)

    def position(self, topic: str, topic_id: str, partition: int) -> ExportedState:
        """Where a partition begins and ends."""
        return self._export(topic, topic_id, partition, proto.Request())

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, stop: int
    ) -> list[Frame]:
        """Some stored batches, from the one that holds `offset` on, that begin before `stop`."""
        request = proto.Request()
        fetch = request.fetch
        fetch.topic, fetch.partition = topic, partition
        fetch.offset, fetch.stop, fetch.bytes_max = offset, stop, FETCH_BYTES
        fetch.restoring = True
        reply = run(self._ask(topic, topic_id, partition, request, ()))
        return frames_of(reply.packet, self._router.limits)

    def restore_producer_ids(self, catalog: Mapping[str, Any]) -> None:
        """See that no producer gets an id that one of the backup has."""
        request = proto.Request()
        request.restore_catalog.content = json.dumps(
            {"next_producer": catalog["next_producer"]}
        ).encode()
        self._ask_any(request, "restoring the ids of producers")

    def restore_users(self, catalog: Mapping[str, Any]) -> RestoredUsers:
        """Bring back users that do not exist."""
        request = proto.Request()
        request.restore_catalog.content = json.dumps({"users": catalog["users"]}).encode()
        request.restore_catalog.users = True
        found = self._ask_any(request, "restoring users").catalog_restored
        return RestoredUsers(list(found.users), list(found.users_left))

    def restore_topic(
        self, name: str, record: Mapping[str, Any], *, backup: str, cluster_id: str
    ) -> RestoringTopic:
        """Create a topic that takes only what is restored."""
        request = proto.Request()
        body = request.restore_topic
        body.name, body.backup, body.cluster_id = name, backup, cluster_id
        body.record = json.dumps(dict(record)).encode()
        found = self._ask_any(request, f"creating topic {name!r}").topic_restoring
        return RestoringTopic(found.topic_id, found.is_open)

    def restore_frames(
        self, topic: str, topic_id: str, partition: int, frames: Sequence[Frame]
    ) -> int:
        """Put commands or batches in place; returns where the partition ends then."""
        request = proto.Request()
        request.restore_frames.topic, request.restore_frames.partition = topic, partition
        reply = run(self._ask(topic, topic_id, partition, request, frames))
        return reply.response.frames_restored.end

    def finish(self, topic: str, topic_id: str) -> None:
        """Open a restored topic to its users."""
        request = proto.Request()
        request.finish_restore.topic = topic
        request.finish_restore.topic_id = bytes.fromhex(topic_id)
        self._ask_any(request, f"opening topic {topic!r}")

    def _ask_any(self, request: proto.Request, what: str) -> proto.Response:
        return run(self._router.ask_any(request, self._router.attempts(what)))

    def _export(
        self, topic: str, topic_id: str, partition: int, request: proto.Request
    ) -> ExportedState:
        request.export_partition.topic, request.export_partition.partition = topic, partition
        reply = run(self._ask(topic, topic_id, partition, request, ()))
        found = reply.response.partition_exported
        frames = frames_of(reply.packet, self._router.limits)
        return ExportedState(found.start, found.end, frames, found.next)

    async def _ask(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        request: proto.Request,
        frames: Sequence[Frame],
    ) -> Reply:
        """The answer of the leader, of the topic that has this id and of no other."""
        router, wanted = self._router, bytes.fromhex(topic_id)
        body = getattr(request, request.WhichOneof("body") or "")
        body.topic_id = wanted
        attempts = router.attempts(f"asking the leader of {topic}/{partition}")
        while True:
            await check_same(router, topic, wanted, attempts)
            target = await router.target(topic, partition, attempts)
            request.direct = target.direct
            try:
                return await router.exchange(target.address, request, frames, attempts)
            except QuiverError as error:
                await router.recover(topic, partition, target, error, attempts)
