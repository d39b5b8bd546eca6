"""The asyncio client's methods that look after groups and dead letters."""

from collections.abc import Iterable

from quivermq.client.core import Core
from quivermq.client.cursor import Place
from quivermq.client.dead_letter_admin import Letters
from quivermq.client.group_models import DeadLetter, DelayedInfo, GroupInfo


class AsyncGroupCare:
    """Groups, delayed messages and dead letters."""

    _core: Core

    async def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic, by name."""
        return await self._core.groups.groups(topic)

    async def group(self, topic: str, group: str) -> GroupInfo:
        """One group of a topic: what waits, what is in flight, done and dead, and its members."""
        return await self._core.groups.group(topic, group)

    async def seek(
        self, topic: str, group: str, to: Place = "earliest", partition: int | None = None
    ) -> dict[int, int]:
        """Let a group go on somewhere else; returns the offsets, by partition."""
        return await self._core.groups.seek(topic, group, to, partition)

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget a group: with its next poll it begins anew."""
        await self._core.groups.delete_group(topic, group)

    async def delayed(self, topic: str, limit: int = 1000) -> list[DelayedInfo]:
        """Messages that their producer delayed and that are not due yet, the next first."""
        return await self._core.groups.delayed(topic, limit)

    async def cancel_delayed(self, topic: str, partition: int, offsets: int | Iterable[int]) -> int:
        """Never deliver these delayed messages; returns how many of them were not due yet."""
        return await self._core.groups.cancel_delayed(topic, partition, offsets)

    async def dead_letters(self, topic: str, limit: int = 1000) -> list[DeadLetter]:
        """Messages of a topic that failed too often or were rejected, the oldest first."""
        return await self._core.dead_letters.listed(topic, limit)

    async def redrive(
        self, topic: str, offsets: Letters | None = None, partition: int | None = None
    ) -> int:
        """Put dead letters of a topic back to where they came from; returns how many."""
        return await self._core.dead_letters.redrive(topic, offsets, partition, purge=False)

    async def purge_dead_letters(
        self, topic: str, offsets: Letters | None = None, partition: int | None = None
    ) -> int:
        """Drop dead letters of a topic; returns how many. They are not listed any more."""
        return await self._core.dead_letters.redrive(topic, offsets, partition, purge=True)
