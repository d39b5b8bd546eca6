"""The modes in which `quiver shell` consumes: for a shared group, for a sticky group, or single.

Each mode can take messages, settle those it took last, and close.
"""

from typing import TYPE_CHECKING, Final

from quivermq.cli.errors import UsageError

if TYPE_CHECKING:
    from quivermq.client import Client, Consumer, LeasedMessage, Message

MODES: Final = ("shared", "sticky", "single")
HELD_MAX: Final = 10_000


class SharedMode:
    """Leases messages, and holds them by number until the user settles them."""

    def __init__(self, client: "Client", topic: str, group: str) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._last = 0
        self.held: dict[int, LeasedMessage] = {}

    def take(self, most: int, wait: float) -> list["LeasedMessage"]:
        if len(self.held) + most > HELD_MAX:
            raise UsageError(f"{len(self.held):,} messages are held: ack or nack them first")
        found = self._client.poll(self._topic, group=self._group, max_messages=most, wait=wait)
        for message in found:
            self._last += 1
            self.held[self._last] = message
        return found

    def settle(self, taken: int) -> None:
        """Acknowledge the last `taken` messages."""
        self.ack(list(self.held)[-taken:])

    def ack(self, numbers: list[int]) -> int:
        messages = self._pop(numbers)
        self._client.ack(messages)
        return len(messages)

    def nack(self, numbers: list[int], delay: float | None, reason: str | None) -> int:
        messages = self._pop(numbers)
        self._client.nack(messages, delay, reason)
        return len(messages)

    def reject(self, numbers: list[int], reason: str) -> int:
        messages = self._pop(numbers)
        self._client.reject(messages, reason)
        return len(messages)

    def close(self) -> None:
        """Release the messages that are held."""
        messages = self._pop([])
        if messages:
            self._client.release(messages)

    def _pop(self, numbers: list[int]) -> list["LeasedMessage"]:
        """Remove and return the messages with these numbers; without numbers, all of them."""
        for number in numbers:
            if number not in self.held:
                raise UsageError(f"no message [{number}] is held; status counts them")
        return [self.held.pop(number) for number in numbers or list(self.held)]


class StickyMode:
    """Reads the partitions that the group assigns to this member, and commits offsets."""

    def __init__(self, client: "Client", topic: str, group: str) -> None:
        self.consumer: Consumer = client.consumer(
            topic, group=group, mode="sticky", auto_commit=False
        )
        self._taken = 0

    def take(self, most: int, wait: float) -> list["Message"]:
        found = self.consumer.poll(most, wait)
        self._taken += len(found)
        return found

    def settle(self, taken: int) -> None:  # noqa: ARG002  (an offset covers all before it)
        self.commit()

    def commit(self) -> int:
        """Commit all messages taken; returns how many were not committed before."""
        self.consumer.commit()
        done, self._taken = self._taken, 0
        return done

    def close(self) -> None:
        self.consumer.close()


class SingleMode:
    """Reads all partitions alone, from the group's committed offsets, else from the earliest."""

    def __init__(self, client: "Client", topic: str, group: str) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        committed = client.committed(topic, group=group)
        self.positions = {
            number: max(committed.get(number, 0), held.start)
            for number, held in client.offsets(topic).partitions.items()
        }
        self._committed = dict(self.positions)

    def take(self, most: int, wait: float) -> list["Message"]:  # noqa: ARG002  (it never waits)
        found: list[Message] = []
        for partition, start in self.positions.items():
            with self._client.read(self._topic, partition=partition, start=start) as reader:
                for message in reader:
                    if len(found) == most:
                        return found
                    found.append(message)
                    self.positions[partition] = message.offset + 1
        return found

    def settle(self, taken: int) -> None:  # noqa: ARG002  (an offset covers all before it)
        self.commit()

    def commit(self) -> int:
        """Commit all messages taken; returns how many were not committed before."""
        done = 0
        for partition, offset in self.positions.items():
            if offset != self._committed[partition]:
                self._client.commit(
                    self._topic, group=self._group, partition=partition, offset=offset
                )
                done += offset - self._committed[partition]
                self._committed[partition] = offset
        return done

    def close(self) -> None:
        """Holds nothing."""


ShellMode = SharedMode | StickyMode | SingleMode


def open_mode(name: str, client: "Client", topic: str, group: str) -> ShellMode:
    """Start consuming in the mode of this name."""
    if name == "sticky":
        return StickyMode(client, topic, group)
    if name == "single":
        return SingleMode(client, topic, group)
    return SharedMode(client, topic, group)
