"""The clerks of all partitions that are led here, one for each leadership."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from quivermq.cluster import Level
from quivermq.errors import InvalidRequest, NotLeader
from quivermq.node.clerk import Clerk
from quivermq.node.group import Group
from quivermq.node.idle_groups import CountedTime
from quivermq.node.partitions import Partitions
from quivermq.queue import Desk, check_name

_SWEEP_MS: Final = 1_000
_BOOKKEEPERS: Final = ("_archive.", "_published")


class Clerks:
    """Finds the clerk that a request is for, and has one wherever this broker leads."""

    def __init__(self, partitions: Partitions, on_dying: Callable[[Clerk], None]) -> None:
        self._partitions = partitions
        self._on_dying = on_dying
        self._clerks: dict[bytes, Clerk] = {}
        self._time = CountedTime(_SWEEP_MS)
        self._loop = asyncio.get_running_loop()
        self._sweep_handle = self._loop.call_later(_SWEEP_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """Forget groups that nobody uses, where the cluster is at a level that allows it."""
        self._sweep_handle = self._loop.call_later(_SWEEP_MS / 1000, self._sweep)
        self._time.count(int(self._loop.time() * 1000))
        if self._partitions.level < Level.IDLE_GROUPS:
            return
        for clerk in self:
            topic = self._partitions.view.topics.get(clerk.group.name.topic)
            # Where messages go when every group has done them, a group is what keeps them.
            if topic is not None and topic.group_idle_ms and not clerk.settings.delete_acked:
                clerk.forget_idle(self._time, topic.group_idle_ms)

    def office_changed(self, group: Group) -> None:
        """This broker began to lead a partition, or ceased to."""
        former = self._clerks.pop(group.id, None)
        if former is not None:
            former.close()
        if group.was_serving and not group.is_metadata:
            clerk = self._clerks[group.id] = Clerk(group, self._on_dying)
            if group.replica.groups:
                # What was leased and delayed under the leader before goes on here.
                clerk.look_after()

            self._instruct(clerk)

    def catalog_changed(self) -> None:
        """The settings of topics may have changed."""
        for clerk in self:
            self._instruct(clerk)

    def _instruct(self, clerk: Clerk) -> None:
        topic = self._partitions.view.topics.get(clerk.group.name.topic)
        if topic is not None:
            clerk.adopt(topic.topic_settings)

    def leading(self, topic: str, topic_id: bytes, partition: int) -> Clerk:
        """The clerk of a partition; raises `NotLeader` unless it is led here."""
        group = self._partitions.leading(topic, topic_id, partition)
        clerk = self._clerks.get(group.id)
        if clerk is None or clerk.group is not group:
            raise self._partitions.not_leading(group.id, str(group.name))
        return clerk

    def of(self, group: Group) -> Clerk | None:
        """The clerk of a group, if it is led here."""
        clerk = self._clerks.get(group.id)
        return clerk if clerk is not None and clerk.group is group else None

    def __iter__(self) -> Iterator[Clerk]:
        return iter(list(self._clerks.values()))

    def close(self) -> None:
        """The broker stops."""
        self._sweep_handle.cancel()
        for clerk in self:
            clerk.close()
        self._clerks = {}


async def open_all(clerks: list[Clerk], group: str, *, at_end: bool) -> None:
    """Let a group begin in all partitions at once: also where others give it something first, it
    is not to miss what comes from here on."""
    missing = [clerk for clerk in clerks if not clerk.is_open(group)]
    for result in await asyncio.gather(
        *(clerk.open(group, at_end=at_end) for clerk in missing), return_exceptions=True
    ):
        # A partition that moved away is left to who leads it.
        if isinstance(result, BaseException) and not isinstance(result, NotLeader):
            raise result


def check_group(name: str) -> None:
    """Raise `InvalidRequest` unless consumers may use a group of this name."""
    check_name("group", name)
    if name.startswith("_"):
        raise InvalidRequest(f"names of groups that start with '_' are reserved: {name!r}")


def check_not_shared(desk: Desk, name: str) -> None:
    """Raise `InvalidRequest` if a group shares its work: what it has done is known message by
    message, and no committed offset stands for it. A consumer that goes by offsets would get
    everything again."""
    found = desk.groups.by_name.get(name)
    if found is not None and found.is_shared:
        raise InvalidRequest(
            f"group {name!r} shares its messages among consumers that poll or subscribe, and has "
            "no committed offset: use another name for sticky and single consumers, or delete the "
            "group first"
        )


def check_bookkeeper(name: str) -> None:
    """Raise `InvalidRequest` unless offsets may be kept under this name.

    Besides groups of consumers these are tables and queries that say how far they are: nobody can
    consume under their names, so nobody else moves what they have committed.
    """
    if name.startswith(_BOOKKEEPERS):
        check_name("group", name)
    else:
        check_group(name)
