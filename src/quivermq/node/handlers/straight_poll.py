"""Answers polls of one partition without a task: at once, or when messages come.

Most polls find messages in memory, or wait for some: to them a task, a future and a timer of their
own would cost more than the messages do. Anything out of the ordinary goes the way of `PollHandler`
with a task: before anything was done for it, or with what is leased already.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final

from quivermq.errors import QuiverError
from quivermq.node.deadlines import Deadlines
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.frame_cache import FrameCache
from quivermq.node.delivery.lease_reader import LeaseRead, read_all
from quivermq.node.delivery.registry import DispatcherRegistry
from quivermq.node.handlers.open_poll import WAIT_MS_MAX, OpenPoll, PollAnswers, check_poll
from quivermq.node.handlers.poll import PollHandler, can_read_here
from quivermq.node.handlers.produce import Finished
from quivermq.node.service import AnswerRoom, Cancellable, GoOn, Straight
from quivermq.wire import proto

_WOKEN_AT_ONCE: Final = 8
"""Woken polls that are answered in one turn of the event loop. Of many that wait for the same
message the others get what comes meanwhile along with it."""
_LOOK_AGAIN_S: Final = 0.005
"""A poll is told that there is nothing so late at most."""


class StraightPolls:
    """The polls that are answered without a task, and those of them that wait."""

    def __init__(
        self,
        dispatchers: DispatcherRegistry,
        cache: FrameCache,
        answers: PollAnswers,
        polls: PollHandler,
    ) -> None:
        """`polls`: the other way."""
        self._dispatchers = dispatchers
        self._cache = cache
        self.answers = answers
        self.polls = polls
        self.loop = asyncio.get_running_loop()
        self.waiting: Deadlines[StraightPoll] = Deadlines(StraightPoll.give_up, _LOOK_AGAIN_S)
        self._woken: deque[StraightPoll] = deque()

    def straight(self) -> dict[str, Straight]:
        return {"poll": self.poll}

    def poll(
        self, request: proto.Request, finished: Finished, room: AnswerRoom, go_on: GoOn
    ) -> Cancellable | bool:
        """Answer a poll, or let it wait; False if it has to go the other way."""
        body = request.poll
        if len(body.partitions) != 1 or body.auto_ack:
            return False
        deadline_s = self.loop.time() + min(body.wait_ms, WAIT_MS_MAX) / 1000
        poll = StraightPoll(self, request, finished, room, go_on, deadline_s)
        try:
            check_poll(body)
            dispatcher = self._dispatcher_of(poll)
            if dispatcher is None:
                return False
            if self._take(poll, dispatcher):
                return poll.work or True
        except QuiverError:
            # The other way says what is wrong.
            return False
        if not body.wait_ms:
            finished(*self.answers.nothing(poll.open))
            return True
        poll.park(dispatcher)
        return poll

    def wake(self, poll: "StraightPoll") -> None:
        """Let a poll look again soon."""
        if not self._woken:
            self.loop.call_soon(self._answer_woken)
        self._woken.append(poll)

    def _answer_woken(self) -> None:
        for _ in range(min(_WOKEN_AT_ONCE, len(self._woken))):
            self._woken.popleft().look_again()
        if self._woken:
            self.loop.call_soon(self._answer_woken)

    def look_again(self, poll: "StraightPoll", dispatcher: DeliveryDispatcher) -> None:
        """Answer a poll that was woken."""
        body = poll.open.body
        try:
            is_plain = self._dispatcher_of(poll) is dispatcher
            if not (is_plain and self._take(poll, dispatcher)):
                # Others were faster, or it is led elsewhere, or it takes a wait.
                poll.hand_over()
        except QuiverError as error:
            poll.finished(error)
        # What it did not take is for others that wait.
        dispatcher.dispatch(body.group)

    def _dispatcher_of(self, poll: "StraightPoll") -> DeliveryDispatcher | None:
        """The dispatcher, if nothing has to be waited for but messages."""
        body = poll.open.body
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partitions[0])
        is_plain = (
            dispatcher.is_open(body.group)
            and not dispatcher.settings.rate_per_second
            and dispatcher.is_lately_confirmed
            and poll.room.fits(poll.open.expected_bytes(dispatcher))
        )
        return dispatcher if is_plain else None

    def _take(self, poll: "StraightPoll", dispatcher: DeliveryDispatcher) -> bool:
        """Lease what is ready, and answer with it; False if there is nothing."""
        taking, body = poll.open, poll.open.body
        dispatcher.remember_name(body.consumer, body.consumer_name)
        dispatcher.trim()
        if not taking.lease(dispatcher, taking.wanted(dispatcher)):
            return False
        reads = [LeaseRead(taking.pending[0], self._cache)]
        if not can_read_here(reads):
            poll.room.reserve(taking.expected_bytes(dispatcher))
            poll.work = poll.go_on(partial(self.polls.read_leased, poll.request, taking))
            return True
        lease = taking.pending[0].leased.lease
        try:
            read_all(reads, taking.bytes_max)
            self.polls.take_over(taking, reads)
        except BaseException:
            self.polls.give_all_back(taking)
            raise
        # The process may have stood still meanwhile.
        is_led = dispatcher.is_confirmed and dispatcher.is_leased(body.group, lease)
        if taking.pending and is_led:
            poll.finished(*self.answers.answer(taking))
        else:
            self.polls.give_all_back(taking)
            poll.hand_over()
        return True

    def close(self) -> None:
        """The broker stops: nothing that waits is answered any more."""
        self.waiting.close()


class StraightPoll:
    """A poll on its straight way; one that waits is in a wait table."""

    __slots__ = (
        "_dispatcher",
        "_is_woken",
        "consumer",
        "deadline_s",
        "finished",
        "go_on",
        "open",
        "polls",
        "request",
        "room",
        "wants",
        "work",
    )

    def __init__(
        self,
        polls: StraightPolls,
        request: proto.Request,
        finished: Finished,
        room: AnswerRoom,
        go_on: GoOn,
        deadline_s: float,
    ) -> None:
        body = request.poll
        self.polls = polls
        self.request = request
        self.open = OpenPoll(body, room, deadline_s)
        self.finished = finished
        self.room = room
        self.go_on = go_on
        self.deadline_s = deadline_s
        self.consumer = body.consumer
        self.wants = body.messages_max
        self.work: Cancellable | None = None
        """The task that goes on with it, if one does."""
        self._dispatcher: DeliveryDispatcher | None = None
        self._is_woken = False

    def park(self, dispatcher: DeliveryDispatcher) -> None:
        """Wait for messages, until the deadline."""
        self._dispatcher = dispatcher
        dispatcher.park(self.open.body.group, self, in_front=False)
        self.polls.waiting.add(self)

    def wake(self) -> bool:
        """Let it look again; False if it was woken before, or waits no more."""
        if self._is_woken or self._dispatcher is None:
            return False
        self._is_woken = True
        self.polls.waiting.discard(self)
        self.polls.wake(self)
        return True

    def look_again(self) -> None:
        """Its turn has come."""
        dispatcher = self._leave()
        if dispatcher is not None:
            self.polls.look_again(self, dispatcher)

    def _leave(self) -> DeliveryDispatcher | None:
        """Wait no more; None if it does not."""
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            self.polls.waiting.discard(self)
            dispatcher.leave(self.open.body.group, self)
        return dispatcher

    def give_up(self) -> None:
        """Its time is over."""
        if self._leave() is not None:
            self.finished(*self.polls.answers.nothing(self.open))

    def hand_over(self) -> None:
        """Go the other way with what is left of its time."""
        self.open.shorten(self.polls.loop.time())
        self.work = self.go_on(partial(self.polls.polls.poll, self.request, self.room))

    def cancel(self) -> None:
        """End it without an answer. What it was woken for is for others."""
        dispatcher, was_woken = self._leave(), self._is_woken
        if dispatcher is not None and was_woken:
            dispatcher.dispatch_later(self.open.body.group)
        if self.work is not None:
            self.work.cancel()
