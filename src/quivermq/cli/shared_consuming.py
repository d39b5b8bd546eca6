"""Taking messages for a shared group, printing them, and telling what became of them."""

from typing import TYPE_CHECKING, Final

from quivermq.cli.consume_options import Beginning, Then
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.output import count, remark

if TYPE_CHECKING:
    from quivermq.client import AsyncClient, AsyncLeasedMessage, GroupInfo

# How long one poll waits: while following, and for messages that a rate limit holds back.
_FOLLOW_SECONDS: Final = 10.0
_HELD_BACK_SECONDS: Final = 1.0


class SharedConsuming:
    """Polls, prints, settles; in this order, so that nothing is done with that nobody saw."""

    def __init__(
        self,
        lines: MessageLines,
        topic: str,
        group: str,
        *,
        start: Beginning,
        follow: bool,
        max_: int,
        auto_ack: bool,
        then: Then,
        reason: str,
        visibility: float,
        prefetch: int,
    ) -> None:
        self._lines = lines
        self._topic = topic
        self._group = group
        self._start = start
        self._follow = follow
        self._max = max_
        self._auto_ack = auto_ack
        self._then = then
        self._reason = reason
        self._visibility = visibility
        self._prefetch = prefetch
        self._printed = 0
        self._left: GroupInfo | None = None

    async def run(self, servers: str, seconds: float) -> None:
        import quivermq.aio  # noqa: PLC0415  (help and completion need no client)

        # Leaving gives back what is leased and not settled, also after Ctrl-C.
        async with quivermq.aio.connect(servers, timeout=seconds) as client:
            wait = _FOLLOW_SECONDS if self._follow else 0.0
            while not self._max or self._printed < self._max:
                messages = await self._poll(client, wait)
                if messages:
                    await self._print(client, messages)
                elif not self._follow:
                    self._left = await client.group(self._topic, self._group)
                    if not self._left.lag:
                        return
                    wait = _HELD_BACK_SECONDS

    async def _poll(self, client: "AsyncClient", wait: float) -> list["AsyncLeasedMessage"]:
        wanted = self._max - self._printed if self._max else self._prefetch
        return await client.poll(
            self._topic,
            group=self._group,
            max_messages=min(wanted, self._prefetch),
            wait=wait,
            visibility=self._visibility,
            ack="auto" if self._auto_ack else "manual",
            start=self._start,
        )

    async def _print(self, client: "AsyncClient", messages: list["AsyncLeasedMessage"]) -> None:
        for message in messages:
            self._lines.write(message)
        # A reader that is gone is noticed here: what it did not take is not settled.
        self._lines.flush()
        self._printed += len(messages)
        if not self._auto_ack:
            await self._settle(client, messages)

    async def _settle(self, client: "AsyncClient", messages: list["AsyncLeasedMessage"]) -> None:
        import quivermq  # noqa: PLC0415  (help and completion need no client)

        try:
            if self._then is Then.ACK:
                await client.ack(messages)
            elif self._then is Then.NACK:
                await client.nack(messages)
            elif self._then is Then.REJECT:
                await client.reject(messages, self._reason)
        except quivermq.LeaseLost as error:
            remark(f"{error}; --visibility gives more time", "yellow")

    def remark_on_end(self) -> None:
        """For people: how many, and what others have or what is not due yet."""
        done = {
            Then.ACK: "acknowledged",
            Then.NACK: "returned as failed",
            Then.REJECT: "rejected",
            Then.LEAVE: "given back",
        }[self._then]
        if self._printed:
            remark(f"{count(self._printed, 'message')} of {self._topic}, {done}")
        elif not self._follow:
            remark("nothing is waiting; --follow waits for messages")
        left = self._left
        if left is not None and left.in_flight and self._then is not Then.LEAVE:
            remark(f"{count(left.in_flight, 'message')} with other consumers of {self._group}")
        if left is not None and left.delayed:
            remark(f"{count(left.delayed, 'message')} not due yet")
