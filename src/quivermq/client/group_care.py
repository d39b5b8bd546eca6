"""The blocking client's methods that look after groups and dead letters: see `quivermq.Client`."""

from collections.abc import Iterable

from quivermq.client.core import Core
from quivermq.client.cursor import Place
from quivermq.client.dead_letter_admin import Letters
from quivermq.client.group_models import DeadLetter, DelayedInfo, GroupInfo
from quivermq.client.transport import run


class GroupCare:
    """Groups, delayed messages and dead letters."""

    _core: Core

    def groups(self, topic: str) -> list[GroupInfo]:
        """The groups of a topic, by name.

        >>> for group in client.groups("orders"):
        ...     print(group.name, group.lag, group.in_flight)
        """
        return run(self._core.groups.groups(topic))

    def group(self, topic: str, group: str) -> GroupInfo:
        """One group of a topic: what waits, what is in flight, done and dead, and its members."""
        return run(self._core.groups.group(topic, group))

    def seek(
        self, topic: str, group: str, to: Place = "earliest", partition: int | None = None
    ) -> dict[int, int]:
        """Let a group go on somewhere else; returns the offsets, by partition.

        >>> client.seek("orders", group="billing", to="earliest")
        {0: 0}

        `to` is an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" and
        milliseconds since 1970. All leases end; what is behind it is delivered, again or at last.
        """
        return run(self._core.groups.seek(topic, group, to, partition))

    def delete_group(self, topic: str, group: str) -> None:
        """Forget a group: with its next poll it begins anew."""
        run(self._core.groups.delete_group(topic, group))

    def delayed(self, topic: str, limit: int = 1000) -> list[DelayedInfo]:
        """Messages that their producer delayed and that are not due yet, the next first."""
        return run(self._core.groups.delayed(topic, limit))

    def cancel_delayed(self, topic: str, partition: int, offsets: int | Iterable[int]) -> int:
        """Never deliver these delayed messages; returns how many of them were not due yet."""
        return run(self._core.groups.cancel_delayed(topic, partition, offsets))

    def dead_letters(self, topic: str, limit: int = 1000) -> list[DeadLetter]:
        """Messages of a topic that failed too often or were rejected, the oldest first.

        >>> for letter in client.dead_letters("orders"):
        ...     print(letter.original_offset, letter.reason, letter.value)
        """
        return run(self._core.dead_letters.listed(topic, limit))

    def redrive(
        self, topic: str, offsets: Letters | None = None, partition: int | None = None
    ) -> int:
        """Put dead letters of a topic back to where they came from; returns how many.

        >>> client.redrive("orders")
        >>> client.redrive("orders", [letter for letter in letters if letter.reason == "no stock"])

        Without `offsets`, all of them. Offsets are those in the dead-letter topic.
        """
        return run(self._core.dead_letters.redrive(topic, offsets, partition, purge=False))

    def purge_dead_letters(
        self, topic: str, offsets: Letters | None = None, partition: int | None = None
    ) -> int:
        """Drop dead letters of a topic; returns how many. They are not listed any more."""
        return run(self._core.dead_letters.redrive(topic, offsets, partition, purge=True))
