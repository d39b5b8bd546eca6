"""Taking part in a sticky group: partitions that come and go, and their messages in order."""

from typing import TYPE_CHECKING, Final

from quivermq.cli.consume_options import Beginning
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.output import count, numbers, remark

if TYPE_CHECKING:
    from quivermq.client import AsyncClient, AsyncConsumer, Message

_POLL_SECONDS: Final = 1.0
_POLL_MESSAGES: Final = 100
# Partitions of a member that is leaving come within this; whoever has none by then gets none.
_POLLS_WITHOUT_PARTITIONS: Final = 3


class StickyConsuming:
    """Polls and prints. The next poll says that what was printed is done, so the consumer commits
    nothing that did not leave this process."""

    def __init__(
        self,
        lines: MessageLines,
        topic: str,
        group: str,
        start: Beginning,
        *,
        follow: bool,
        max_: int,
    ) -> None:
        self._lines = lines
        self._topic = topic
        self._group = group
        self._start = start
        self._follow = follow
        self._max = max_
        self._printed = 0

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        async with (
            quivermq.aio.connect(servers, timeout=seconds) as client,
            client.consumer(
                self._topic,
                group=self._group,
                mode="sticky",
                start=self._start,
                on_assigned=lambda came: remark(f"partitions came: {numbers(came)}"),
                on_revoked=lambda gone: remark(f"partitions go: {numbers(gone)}"),
            ) as consumer,
        ):
            idle = 0
            while not self._max or self._printed < self._max:
                wanted = self._max - self._printed if self._max else _POLL_MESSAGES
                messages = await consumer.poll(min(wanted, _POLL_MESSAGES), _POLL_SECONDS)
                self._print(messages)
                idle = 0 if messages else idle + 1
                if idle and not self._follow and await self._is_at_end(client, consumer, idle):
                    return

    def _print(self, messages: list["Message"]) -> None:
        for message in messages:
            self._lines.write(message)
        self._lines.flush()
        self._printed += len(messages)

    async def _is_at_end(self, client: "AsyncClient", consumer: "AsyncConsumer", idle: int) -> bool:
        mine = consumer.assignment
        if not mine:
            return idle >= _POLLS_WITHOUT_PARTITIONS
        await consumer.commit()
        group = await client.group(self._topic, self._group)
        return not any(each.lag for each in group.partitions if each.partition in mine)

    def remark_on_end(self) -> None:
        """For people: how many."""
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._topic}, committed")
        else:
            remark("nothing is waiting in its partitions; --follow waits for messages")
