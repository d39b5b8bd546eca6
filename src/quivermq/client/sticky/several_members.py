"""A sticky consumer of several topics: a member of the group in each of them, behind one face.

The coordinator shares out each topic by itself. This merges what the members have ready, in turns,
and with a pattern joins topics that come and leaves those that are gone. Everything but `take` and
`take_one` happens on one event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from quivermq.client import topic_choice
from quivermq.client.core import Core
from quivermq.client.models import Message
from quivermq.client.sticky.member import ConsumerSettings, Notify, StickyMember
from quivermq.client.topic_choice import TopicLookup
from quivermq.errors import InvalidRequest, QuiverError, TopicNotFound

logger = logging.getLogger("quivermq.client")


class TopicPartition(NamedTuple):
    """A partition, where a consumer has several topics."""

    topic: str
    partition: int


class SeveralMembers:
    """Takes part in a group in several topics, and has messages of all of them ready."""

    def __init__(
        self,
        make_core: Callable[[], Core],
        settings: ConsumerSettings,
        on_assigned: Notify,
        on_revoked: Notify,
    ) -> None:
        self._make_core = make_core
        self._core = make_core()
        self._settings = settings
        self._choice = settings.choice
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._loop = asyncio.get_running_loop()
        self._lookup = TopicLookup(self._core.offsets.names, self._loop.time)
        self._members: dict[str, StickyMember] = {}
        """Replaced as a whole: `take` may be under way on another thread."""
        self.generation = 0
        """Grows with every change of its partitions: those of its topics count each by itself."""
        self._turn = 0
        self._arrived = asyncio.Event()
        self._failure: QuiverError | None = None
        self._is_closed = False
        self._is_stopped = False
        self._background: dict[asyncio.Task[None], None] = {}
        self.tracer = self._core.router.tracer
        self.topic_and_group = str(self._choice), settings.group

    @property
    def buffer(self) -> "SeveralMembers":
        return self

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that it may read."""
        return self._pairs(lambda member: member.assignment)

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that give out nothing until they are resumed."""
        return list(self._pairs(lambda member: member.paused))

    async def join(self) -> None:
        """Become a member in every topic; raises what the cluster refuses it with."""
        try:
            await self._follow_topics(await self._lookup.find(self._choice, is_fresh=True))
        except BaseException:
            await self.close(is_clean=False)
            raise
        if self._choice.pattern is not None:
            self._start_background(self._watch_topics())

    # For the user.

    def take_one(self) -> Message | None:
        """The next message, if there is one; those that were given out before are done."""
        for member in self._in_turn():
            message = member.buffer.take_one()
            if message is not None:
                return message
        return None

    def take(self, most: int) -> list[Message]:
        """The next messages, if there are any; those that were given out before are done."""
        members = self._in_turn()
        taken: list[Message] = []
        # To each its share; then what others left, to those that have more.
        shares = max(1, most // max(1, len(members))), most
        try:
            for share, member in product(shares, members):
                if len(taken) < most:
                    taken += member.buffer.take_more(min(share, most - len(taken)))
        except QuiverError:
            if not taken:
                raise
            # A batch cannot be read: the error comes again.
        except BaseException:
            # An interrupt, which the user may go on after.
            for member in members:
                member.buffer.put_back(taken)
            raise
        return taken

    def _in_turn(self) -> list[StickyMember]:
        """All members, another one first each time; their users are done with what they had. Of
        members of which one has failed, none: `await_messages` says why."""
        members = list(self._members.values())
        for member in members:
            member.buffer.finish()
        self._turn += 1
        first = self._turn % max(1, len(members))
        has_failed = any(member.has_failed for member in members)
        return [] if has_failed else members[first:] + members[:first]

    async def await_messages(self, wait: float | None) -> bool:
        """Wait so long for messages to take; False if there are none, or no more."""
        deadline = None if wait is None else self._loop.time() + wait
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closed or self._is_stopped:
                return False
            self._arrived.clear()
            if self._has_messages():
                return True
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return False

    def _has_messages(self) -> bool:
        has_messages = False
        for topic, member in list(self._members.items()):
            try:
                has_messages |= member.has_messages()
            except TopicNotFound:
                if self._choice.pattern is None:
                    raise
                self._start_background(self._leave(topic))
        return has_messages

    async def commit(self) -> None:
        """Commit everything that the user was given; raises `Fenced` if some of it was lost."""
        _raise_first(await self._all(lambda member: member.commit()))

    async def pause(self, partitions: Iterable[TopicPartition] | None) -> None:
        """Give out nothing of these, or of all that it has."""
        for member, numbers in self._by_member(partitions):
            await member.pause(numbers)

    async def resume(self, partitions: Iterable[TopicPartition] | None) -> None:
        """Go on where they paused."""
        for member, numbers in self._by_member(partitions):
            await member.resume(numbers)

    async def seek(self, partition: TopicPartition, place: int | str) -> int:
        """Go on from another place in a partition; returns its offset."""
        ((member, (number,)),) = self._by_member([partition])
        return await member.seek(number, place)

    async def close(self, *, is_clean: bool = True, is_brief: bool = False) -> None:
        """Commit what is done, and leave the group in every topic."""
        await self._end(lambda member: member.close(is_clean=is_clean, is_brief=is_brief))

    async def abandon(self) -> None:
        """Stop without leaving the group, as if it had died."""
        await self._end(lambda member: member.abandon())

    def stop_soon(self) -> None:
        """Have `await_messages` return, and find nothing any more. Any thread may call this."""
        self._is_stopped = True
        with suppress(RuntimeError):  # the loop is closed, and everything on it
            self._loop.call_soon_threadsafe(self._arrived.set)

    def close_soon(self) -> None:
        """Close it, without waiting for that. Any thread may call this, and the collector."""
        with suppress(RuntimeError):  # the loop is closed, and everything on it
            self._loop.call_soon_threadsafe(
                lambda: self._start_background(self.close(is_clean=False))
            )

    # Topics that come and go.

    async def _watch_topics(self) -> None:
        while self._failure is None:
            await asyncio.sleep(topic_choice.PATTERN_SECONDS)
            try:
                await self._follow_topics(await self._lookup.find(self._choice, is_fresh=True))
            except QuiverError as error:
                if not error.retriable:
                    self._failure = error
                    self._arrived.set()
                else:
                    logger.warning("topics of %s: %s", self._choice, error)

    async def _follow_topics(self, names: Sequence[str]) -> None:
        share = max(1, self._settings.prefetch_bytes // max(1, len(names)))
        added = [self._join(name, share) for name in names if name not in self._members]
        gone = [self._leave(name) for name in self._members if name not in names]
        _raise_first(await asyncio.gather(*added, *gone, return_exceptions=True))

    async def _join(self, topic: str, prefetch_bytes: int) -> None:
        settings = self._settings._replace(
            topics=topic,
            pattern=False,
            prefetch_bytes=prefetch_bytes,
            may_create=self._choice.pattern is None,
        )
        member = StickyMember(
            self._make_core(),
            settings,
            partial(self._notify, self._on_assigned, topic),
            partial(self._notify, self._on_revoked, topic),
            self._arrived,
        )
        try:
            await member.join()
        except TopicNotFound:
            if self._choice.pattern is None:
                raise
            return  # it was deleted a moment ago
        self._members = {**self._members, topic: member}
        self._arrived.set()

    async def _leave(self, topic: str) -> None:
        members = dict(self._members)
        member = members.pop(topic, None)
        self._members = members
        if member is not None:
            await member.close()

    async def _notify(self, notify: Notify, topic: str, partitions: list[int]) -> None:
        self.generation += 1
        await notify([TopicPartition(topic, partition) for partition in partitions])

    async def _end(self, end: Callable[[StickyMember], Coroutine[Any, Any, None]]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived.set()
        here = asyncio.current_task()
        tasks = [task for task in self._background if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            _raise_first(await self._all(end))
        finally:
            await self._core.transport.close()

    async def _all(
        self, call: Callable[[StickyMember], Coroutine[Any, Any, None]]
    ) -> Sequence[BaseException | None]:
        calls = [call(member) for member in self._members.values()]
        outcomes: list[BaseException | None] = await asyncio.gather(*calls, return_exceptions=True)
        return outcomes

    def _pairs(
        self, partitions_of: Callable[[StickyMember], Iterable[int]]
    ) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(topic, partition)
            for topic, member in sorted(self._members.items(), key=lambda item: item[0])
            for partition in partitions_of(member)
        )

    def _by_member(
        self, partitions: Iterable[TopicPartition] | None
    ) -> list[tuple[StickyMember, list[int]]]:
        numbers: dict[str, list[int]] = {}
        for each in self.assignment if partitions is None else partitions:
            if not isinstance(each, tuple) or len(each) != 2 or each[0] not in self._members:
                raise InvalidRequest(
                    "a consumer of several topics has partitions as ('orders', 0): "
                    f"{each!r} is none of its own"
                )
            numbers.setdefault(each[0], []).append(each[1])
        return [(self._members[topic], found) for topic, found in numbers.items()]

    def _start_background(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)


def _raise_first(outcomes: Iterable[BaseException | None]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
