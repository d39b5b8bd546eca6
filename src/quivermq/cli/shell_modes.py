"""How a shell takes messages of its topic: for a shared group, a sticky one, or for itself.

Each way can take messages, be done with what it took last, and close.
"""

from typing import TYPE_CHECKING, Final

from quivermq.cli.misuse import Misuse

if TYPE_CHECKING:
    from quivermq.client import Client, Consumer, LeasedMessage, Message

MODES: Final = ("shared", "sticky", "single")
HELD_MAX: Final = 10_000


class SharedWay:
    """Messages are leased, and held by number until the user says what became of them."""

    def __init__(self, client: "Client", topic: str, group: str) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._last = 0
        self.held: dict[int, LeasedMessage] = {}

    def take(self, most: int, wait: float) -> list["LeasedMessage"]:
        if len(self.held) + most > HELD_MAX:
            raise Misuse(f"{len(self.held):,} messages are held already: ack or nack them first")
        found = self._client.poll(self._topic, group=self._group, max_messages=most, wait=wait)
        for message in found:
            self._last += 1
            self.held[self._last] = message
        return found

    def settle(self, taken: int) -> None:
        """The last so many messages are done."""
        self.ack(list(self.held)[-taken:])

    def ack(self, numbers: list[int]) -> int:
        messages = self._pop(numbers)
        self._client.ack(messages)
        return len(messages)

    def nack(self, numbers: list[int], delay: float | None) -> int:
        messages = self._pop(numbers)
        self._client.nack(messages, delay)
        return len(messages)

    def reject(self, numbers: list[int], reason: str) -> int:
        messages = self._pop(numbers)
        self._client.reject(messages, reason)
        return len(messages)

    def close(self) -> None:
        messages = self._pop([])
        if messages:
            self._client.release(messages)

    def _pop(self, numbers: list[int]) -> list["LeasedMessage"]:
        """The messages of these numbers, or all; they are not held after this."""
        for number in numbers:
            if number not in self.held:
                raise Misuse(f"no message [{number}] is held; status counts them")
        return [self.held.pop(number) for number in numbers or list(self.held)]


class StickyWay:
    """Messages of the partitions that are assigned to this member."""

    def __init__(self, client: "Client", topic: str, group: str) -> None:
        self.consumer: Consumer = client.consumer(
            topic, group=group, mode="sticky", auto_commit=False
        )
        self._taken = 0

    def take(self, most: int, wait: float) -> list["Message"]:
        found = self.consumer.poll(most, wait)
        self._taken += len(found)
        return found

    def settle(self, taken: int) -> None:  # noqa: ARG002  (an offset means all before)
        self.commit()

    def commit(self) -> int:
        """All that was given out is done; returns how many messages were not before."""
        self.consumer.commit()
        done, self._taken = self._taken, 0
        return done

    def close(self) -> None:
        self.consumer.close()


class SingleWay:
    """Messages from where the group committed, else from the earliest; nobody else is asked."""

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

    def settle(self, taken: int) -> None:  # noqa: ARG002  (an offset means all before)
        self.commit()

    def commit(self) -> int:
        """All that was given out is done; returns how many messages were not before."""
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
        """Nothing is held."""


Way = SharedWay | StickyWay | SingleWay


def open_way(mode: str, client: "Client", topic: str, group: str) -> Way:
    """Begin to consume in this mode."""
    if mode == "sticky":
        return StickyWay(client, topic, group)
    if mode == "single":
        return SingleWay(client, topic, group)
    return SharedWay(client, topic, group)
