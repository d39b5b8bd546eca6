"""The delivery dispatchers of all partitions that are led here, one for each leadership."""

import asyncio
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from quivermq.cluster import Level
from quivermq.errors import InvalidRequest, NotLeader
from quivermq.names import check_group_name
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.idle_groups import CountedTime
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.queue import LeaseManager


def public_id(number: int) -> int:
    """The same for the same number, and no way back. Fits where a number of 63 bits does."""
    digest = blake2b(number.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


_SWEEP_MS: Final = 1_000
_ARCHIVES: Final = "_archive."
_PUBLISHED: Final = "_published"
_TABLE_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""Delta gives every table a GUID."""


class DispatcherRegistry:
    """Finds the dispatcher that a request is for, and has one wherever this broker leads."""

    def __init__(
        self, partitions: PartitionLookup, on_dying: Callable[[DeliveryDispatcher], None]
    ) -> None:
        self._partitions = partitions
        self._on_dying = on_dying
        self._dispatchers: dict[bytes, DeliveryDispatcher] = {}
        self._restoring: dict[bytes, HostedReplica] = {}
        """Led here, and being restored."""
        self._time = CountedTime(_SWEEP_MS)
        self._loop = asyncio.get_running_loop()
        self._sweep_handle = self._loop.call_later(_SWEEP_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """Forget groups that are not used, where the cluster is at a level that allows it."""
        self._sweep_handle = self._loop.call_later(_SWEEP_MS / 1000, self._sweep)
        self._time.count(int(self._loop.time() * 1000))
        if self._partitions.level < Level.IDLE_GROUPS:
            return
        for dispatcher in self:
            topic = self._partitions.view.topics.get(dispatcher.hosted.name.topic)
            # Where messages go when every group has done them, a group is what keeps them.
            if topic is not None and topic.group_idle_ms and not dispatcher.settings.delete_acked:
                dispatcher.forget_idle(self._time, topic.group_idle_ms)

    @property
    def level(self) -> int:
        """The feature level by which this broker writes."""
        return self._partitions.level

    def leadership_changed(self, hosted: HostedReplica) -> None:
        """This broker began to lead a partition, or ceased to."""
        former = self._dispatchers.pop(hosted.id, None)
        if former is not None:
            former.close()
        self._restoring.pop(hosted.id, None)
        if hosted.was_serving and self._partitions.is_restoring(hosted.name.topic):
            # Its groups are ahead of its messages: nothing may act on them yet.
            self._restoring[hosted.id] = hosted
        elif hosted.was_serving and not hosted.is_metadata:
            dispatcher = self._dispatchers[hosted.id] = DeliveryDispatcher(hosted, self._on_dying)
            if hosted.replica.groups:
                # What was leased and delayed under the leader before goes on here.
                dispatcher.schedule_dispatch()

            self._apply_settings(dispatcher)

    def catalog_changed(self) -> None:
        """The settings of topics may have changed, or one is restored."""
        for hosted in list(self._restoring.values()):
            if not self._partitions.is_restoring(hosted.name.topic):
                self.leadership_changed(hosted)
        for dispatcher in self:
            self._apply_settings(dispatcher)

    def _apply_settings(self, dispatcher: DeliveryDispatcher) -> None:
        topic = self._partitions.view.topics.get(dispatcher.hosted.name.topic)
        # Another topic was changed: with thousands of them, that must not cost anything here.
        if topic is not None and topic is not dispatcher.topic:
            dispatcher.topic = topic
            dispatcher.drop_expired = topic.drop_expired
            dispatcher.apply_settings(topic.topic_settings)

    def leading(self, topic: str, topic_id: bytes, partition: int) -> DeliveryDispatcher:
        """The dispatcher of a partition; raises `NotLeader` unless it is led here."""
        hosted = self._partitions.leading(topic, topic_id, partition)
        dispatcher = self._dispatchers.get(hosted.id)
        if dispatcher is None or dispatcher.hosted is not hosted:
            raise self._partitions.not_leading(hosted.id, str(hosted.name))
        return dispatcher

    def of(self, hosted: HostedReplica) -> DeliveryDispatcher | None:
        """The dispatcher of a partition, if it is led here."""
        dispatcher = self._dispatchers.get(hosted.id)
        return dispatcher if dispatcher is not None and dispatcher.hosted is hosted else None

    def __iter__(self) -> Iterator[DeliveryDispatcher]:
        return iter(list(self._dispatchers.values()))

    def close(self) -> None:
        """The broker stops."""
        self._sweep_handle.cancel()
        for dispatcher in self:
            dispatcher.close()
        self._dispatchers = {}


async def open_all(dispatchers: list[DeliveryDispatcher], group: str, *, at_end: bool) -> None:
    """Let a group begin in all partitions at once: also where others give it something first, it
    is not to miss what comes from here on."""
    missing = [dispatcher for dispatcher in dispatchers if not dispatcher.is_open(group)]
    if not missing:
        return
    for result in await asyncio.gather(
        *(dispatcher.open(group, at_end=at_end) for dispatcher in missing), return_exceptions=True
    ):
        # A partition that moved away is left to who leads it.
        if isinstance(result, BaseException) and not isinstance(result, NotLeader):
            raise result


def check_group(name: str) -> None:
    """Raise `InvalidRequest` unless consumers may use a group of this name."""
    check_group_name(name)
    if name.startswith("_"):
        raise InvalidRequest(f"names of groups that start with '_' are reserved: {name!r}")


def check_not_shared(leases: LeaseManager, name: str) -> None:
    """Raise `InvalidRequest` if a group shares its work: what it has done is known message by
    message, and no committed offset stands for it. A consumer that goes by offsets would get
    everything again."""
    found = leases.working_copy.groups.by_name.get(name)
    if found is not None and found.is_shared:
        raise InvalidRequest(
            f"group {name!r} shares its messages among consumers that poll or subscribe, and has "
            "no committed offset: use another name for sticky and single consumers, or delete the "
            "group first"
        )


def check_committer(name: str, topic: str) -> None:
    """Raise `InvalidRequest` unless offsets of a topic may be committed under this name.

    Retention waits for every group that has committed something: a name that no table and no
    query has would hold it back for ever.
    """
    check_bookkeeper(name)
    table = name.removeprefix(_ARCHIVES)
    if table != name and not _TABLE_ID.fullmatch(table):
        raise InvalidRequest(
            f"{name!r} is no archive: archives commit what they hold under the id of their table, "
            f"as in {_ARCHIVES}3f2b8c1e-…; consumers use a name that does not begin with _"
        )
    if name.startswith(_PUBLISHED) and not topic.startswith("_"):
        raise InvalidRequest(f"names of groups that start with '_' are reserved: {name!r}")


def check_bookkeeper(name: str) -> None:
    """Raise `InvalidRequest` unless offsets may be kept under this name.

    Besides groups of consumers these are tables and queries that say how far they are: no
    consumer can use their names, so nothing else moves what they have committed.
    """
    if name.startswith((_ARCHIVES, _PUBLISHED)):
        check_group_name(name)
    else:
        check_group(name)
