"""Sticky consumers: messages in order, each partition with one member of the group."""

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from quivermq.client import fork_safety
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.checks import check_number
from quivermq.client.core import Core
from quivermq.client.cursor import Place, parse_place
from quivermq.client.models import Message
from quivermq.client.sticky.delivery_buffer import READY_MESSAGES
from quivermq.client.sticky.member import ConsumerSettings, Notify, StickyMember
from quivermq.client.sticky.several_members import SeveralMembers
from quivermq.errors import InvalidRequest
from quivermq.garbage_pause import GARBAGE_PAUSE

Listener = Callable[[list[Any]], Any]
"""A function of the user's that is called with the partitions that come, or go: numbers, or
`TopicPartition` of several topics."""

_FORKED: Final = "this consumer was made before the process was forked: make one in the child"


def check_mode(mode: str) -> None:
    """Raise `InvalidRequest` unless it is the mode of consumers."""
    if mode != "sticky":
        raise InvalidRequest(
            f"a consumer has the mode 'sticky', not {mode!r}: for a shared group use `subscribe` "
            "or `poll`, to read without a group `read`"
        )


class Consumer:
    """A member of a sticky group: messages of its partitions, each partition in order.

    >>> with client.consumer("orders", group="billing") as consumer:
    ...     for message in consumer:
    ...         handle(message)

    It sends heartbeats in the background, so a slow handler loses nothing. Messages that the loop
    is past are committed every second, when a partition goes to another member, and at the end;
    `commit()` commits at once, the message at hand included. One thread at a time may take
    messages.
    """

    ends_first = False

    def __init__(
        self,
        background: BackgroundLoop,
        make_core: Callable[[], Core],
        settings: ConsumerSettings,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> None:
        self._is_closed = True
        self._is_stopped = False
        settings.check()
        _check_listeners(on_assigned, on_revoked)
        self._background = background
        self._refusal = "the consumer is closed: make another"

        async def make() -> StickyMember | SeveralMembers:
            member = _member(make_core, settings, _on_thread(on_assigned), _on_thread(on_revoked))
            await member.join()
            return member

        self._member = background.call(make())
        self._is_closed = False
        fork_safety.watch(self)
        background.add_user(self)

    @property
    def assignment(self) -> list[Any]:
        """The partitions that it may read: numbers, or `TopicPartition` of several topics."""
        return list(self._member.assignment)

    @property
    def generation(self) -> int:
        """A number that grows with every change of the group."""
        return self._member.generation

    def poll(self, max_messages: int = READY_MESSAGES, wait: float = 1.0) -> list[Message]:
        """Take the next messages, waiting so long for one; those of the last poll are done."""
        _check_poll(max_messages, wait)
        self._check_open()
        tracer = self._member.tracer
        if tracer is None:
            return self._poll(max_messages, wait)
        with tracer.receive(*self._member.topic_and_group) as received:
            taken = self._poll(max_messages, wait)
            received.took(taken)
            return taken

    def _poll(self, max_messages: int, wait: float) -> list[Message]:
        if self._is_stopped:
            return []
        taken = _taken(self._member, max_messages)
        if not taken and self._background.call(self._member.await_messages(wait)):
            taken = _taken(self._member, max_messages)
        return taken

    def commit(self) -> None:
        """Commit everything that was given out, the message at hand included.

        Raises `Fenced` if partitions went to other members first, after this one was taken for
        dead: their messages are given out again. The consumer itself goes on.
        """
        self._check_open()
        self._background.call(self._member.commit())

    @property
    def paused(self) -> list[Any]:
        """The partitions that are paused."""
        return list(self._member.paused)

    def pause(self, partitions: Iterable[Any] | None = None) -> None:
        """Give out nothing of these partitions, or of all that it has, until they are resumed.

        It stays a member, and owns them: heartbeats go on. A partition that goes to another member
        and comes back is not paused any more.
        """
        self._check_open()
        self._background.call(self._member.pause(partitions))

    def resume(self, partitions: Iterable[Any] | None = None) -> None:
        """Go on with these partitions, or with all, where they paused."""
        self._check_open()
        self._background.call(self._member.resume(partitions))

    def seek(self, partition: Any, to: Place) -> int:
        """Go on from another place in one of its partitions; returns the offset.

        The partition is a number, or of several topics a `TopicPartition` or such a pair. `to` is
        an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" and
        milliseconds since 1970. The place is committed, so it holds for whichever member gets the
        partition next. Messages of it that were given out before do not count any more. Raises
        `Fenced` if the partition went to another member, `OffsetOutOfRange` beyond the end.
        """
        self._check_open()
        return self._background.call(self._member.seek(partition, parse_place("to", to)))

    def stop(self) -> None:
        """Give out no more messages: a loop over it ends behind the message in hand. Returns at
        once; a signal handler may call this. `close` has to follow."""
        self._is_stopped = True
        self._member.stop_soon()

    def close(self) -> None:
        """Commit what was given out, if `auto_commit`, and leave the group at once."""
        self._close(is_clean=True)

    def abandon(self) -> None:
        """Stop without leaving the group, as if it had died."""
        if not self._is_closed:
            self._is_closed = True
            self._background.call(self._member.abandon())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            if self._is_closed or self._is_stopped:
                raise StopIteration
            message = self._member.buffer.take_one()
            if message is not None:
                return message
            self._background.call(self._member.await_messages(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(is_clean=kind is None)

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            # Its messages cannot be taken any more: other members get its partitions.
            self._background.later(partial(self._member.close, is_clean=False))
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    async def end(self, deadline: float) -> None:  # noqa: ARG002  (it takes as long as it may)
        """The program ends: leave the group, as after trouble."""
        if not self._is_closed:
            self._is_closed = True
            await self._member.close(is_clean=False, is_brief=True)

    def after_fork(self) -> None:
        """The thread that sends heartbeats stayed with the parent."""
        self._is_closed = True
        self._refusal = _FORKED

    def _close(self, *, is_clean: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._background.call(self._member.close(is_clean=is_clean))

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest(self._refusal)


class AsyncConsumer:
    """A member of a sticky group: messages of its partitions, each partition in order.

    >>> async with client.consumer("orders", group="billing") as consumer:
    ...     async for message in consumer:
    ...         await handle(message)

    It joins when it is entered, or first used. Otherwise as `quivermq.client.Consumer`.
    """

    def __init__(
        self,
        make_core: Callable[[], Core],
        settings: ConsumerSettings,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> None:
        self._is_closed = True
        self._is_stopped = False
        settings.check()
        _check_listeners(on_assigned, on_revoked)
        self._member = _member(make_core, settings, _on_loop(on_assigned), _on_loop(on_revoked))
        self._joining: asyncio.Task[None] | None = None
        self._taken = 0
        """Messages that a loop has taken."""
        self._is_closed = False
        self._refusal = "the consumer is closed: make another"
        fork_safety.watch(self)

    @property
    def assignment(self) -> list[Any]:
        """The partitions that it may read: numbers, or `TopicPartition` of several topics."""
        return list(self._member.assignment)

    @property
    def generation(self) -> int:
        """A number that grows with every change of the group."""
        return self._member.generation

    async def poll(self, max_messages: int = READY_MESSAGES, wait: float = 1.0) -> list[Message]:
        """Take the next messages, waiting so long for one; those of the last poll are done."""
        _check_poll(max_messages, wait)
        await self._ensure_joined()
        tracer = self._member.tracer
        if tracer is None:
            return await self._poll(max_messages, wait)
        with tracer.receive(*self._member.topic_and_group) as received:
            taken = await self._poll(max_messages, wait)
            received.took(taken)
            return taken

    async def _poll(self, max_messages: int, wait: float) -> list[Message]:
        await _let_others_run()
        if self._is_stopped or self._is_closed:
            return []
        taken = _taken(self._member, max_messages)
        if not taken and await self._member.await_messages(wait):
            taken = _taken(self._member, max_messages)
        return taken

    async def commit(self) -> None:
        """Commit everything that was given out; see `quivermq.client.Consumer.commit`."""
        await self._ensure_joined()
        await self._member.commit()

    @property
    def paused(self) -> list[Any]:
        """The partitions that are paused."""
        return list(self._member.paused)

    async def pause(self, partitions: Iterable[Any] | None = None) -> None:
        """Give out nothing of these partitions, or of all that it has, until they are resumed.

        It stays a member, and owns them: heartbeats go on. A partition that goes to another member
        and comes back is not paused any more.
        """
        await self._ensure_joined()
        await self._member.pause(partitions)

    async def resume(self, partitions: Iterable[Any] | None = None) -> None:
        """Go on with these partitions, or with all, where they paused."""
        await self._ensure_joined()
        await self._member.resume(partitions)

    async def seek(self, partition: Any, to: Place) -> int:
        """Go on from another place in one of its partitions; returns the offset.

        The partition is a number, or of several topics a `TopicPartition` or such a pair. `to` is
        an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" and
        milliseconds since 1970. The place is committed, so it holds for whichever member gets the
        partition next. Messages of it that were given out before do not count any more. Raises
        `Fenced` if the partition went to another member, `OffsetOutOfRange` beyond the end.
        """
        await self._ensure_joined()
        return await self._member.seek(partition, parse_place("to", to))

    def stop(self) -> None:
        """Give out no more messages: a loop over it ends behind the message in hand. Returns at
        once; a signal handler may call this. `close` has to follow."""
        self._is_stopped = True
        self._member.stop_soon()

    async def close(self) -> None:
        """Commit what was given out, if `auto_commit`, and leave the group at once."""
        await self._close(is_clean=True)

    async def abandon(self) -> None:
        """Stop without leaving the group, as if it had died."""
        if not self._is_closed:
            self._is_closed = True
            await self._member.abandon()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._is_closed:
            await self._ensure_joined()
            if self._taken % READY_MESSAGES == 0:
                await _let_others_run()
        while True:
            if self._is_closed or self._is_stopped:
                raise StopAsyncIteration
            message = self._member.buffer.take_one()
            if message is not None:
                self._taken += 1
                return message
            await self._member.await_messages(None)

    async def __aenter__(self) -> Self:
        try:
            await self._ensure_joined()
        except BaseException:
            await self._close(is_clean=False)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(is_clean=kind is None)

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and self._joining is not None:
            self._member.close_soon()
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def after_fork(self) -> None:
        """The event loop is the parent's."""
        self._is_closed = True
        self._refusal = _FORKED

    async def _ensure_joined(self) -> None:
        if self._is_closed:
            raise InvalidRequest(self._refusal)
        if self._joining is None:
            self._joining = asyncio.ensure_future(self._member.join())
        if not self._joining.done() or self._joining.exception():
            await asyncio.shield(self._joining)

    async def _close(self, *, is_clean: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._joining is not None and not self._joining.done():
                self._joining.cancel()
                await asyncio.gather(self._joining, return_exceptions=True)
            await self._member.close(is_clean=is_clean)


def _member(
    make_core: Callable[[], Core],
    settings: ConsumerSettings,
    on_assigned: Notify,
    on_revoked: Notify,
) -> StickyMember | SeveralMembers:
    if settings.choice.is_one:
        settings = settings._replace(topics=settings.topic)
        return StickyMember(make_core(), settings, on_assigned, on_revoked)
    return SeveralMembers(make_core, settings, on_assigned, on_revoked)


def _taken(member: StickyMember | SeveralMembers, most: int) -> list[Message]:
    """A list of messages, while the collector of garbage pauses.

    A thousand new objects are more than it waits for, so the next object after them would make it
    look through them, and now and then through those of the whole program: longer than it takes to
    make them. If the list that the user had is freed for this one, there are no more objects than
    before. So nothing that it counts is made from here until the user has the list.
    """
    with GARBAGE_PAUSE:
        return member.buffer.take(most)


async def _let_others_run() -> None:
    """A user that waits for nothing must not keep heartbeats from being sent."""
    await asyncio.sleep(0)


def _check_poll(max_messages: int, wait: float) -> None:
    check_number("max_messages", max_messages, least=1, whole=True)
    check_number("wait", wait, least=0)


def _check_listeners(*listeners: Listener | None) -> None:
    for listener in listeners:
        if listener is not None and not callable(listener):
            raise InvalidRequest(
                f"a function is called with lists of partitions: {listener!r} cannot be called"
            )


def _on_thread(listener: Listener | None) -> Notify:
    """Called on a thread of its own: it may use the consumer, which needs the event loop."""

    async def notify(partitions: list[int]) -> None:
        if listener is not None:
            await asyncio.to_thread(listener, sorted(partitions))

    return notify


def _on_loop(listener: Listener | None) -> Notify:
    async def notify(partitions: list[int]) -> None:
        if listener is not None:
            answer = listener(sorted(partitions))
            if inspect.isawaitable(answer):
                await answer

    return notify
