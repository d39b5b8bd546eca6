"""Polling several topics at once: the first that has messages answers, and each comes first in
turn, so that none starves behind a busy one.

Topics are asked one after the other without waiting. If none has messages, the leaders of all are
asked to answer when they have some, over one connection to each broker.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final

from quivermq.client.offsets import Offsets
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.client.shared.poll import WAIT_SECONDS, LeasedRun, Poller, PollRequest, ready_request
from quivermq.client.topic_choice import TopicChoice, TopicLookup
from quivermq.client.transport import Connection
from quivermq.errors import QuiverError, TopicNotFound
from quivermq.wire import proto

# With a topic that cannot be asked, the others are not waited for longer than this at a time.
_PARTIAL_WAIT_SECONDS: Final = 0.25
# Messages that a rate limit holds back are there, and yet cannot be had.
_PAUSE_SECONDS: Final = 0.05


class SeveralTopicsPoller:
    """Polls the topics of a choice as if they were one."""

    def __init__(self, router: Router, polling: Poller) -> None:
        self._router = router
        self._polling = polling
        self._lookup = TopicLookup(Offsets(router).names, router.transport.now)
        self._turns = count()

    async def poll(self, request: PollRequest, choice: TopicChoice) -> list[LeasedRun]:
        """Lease messages of one topic as soon as there are any; none if none came in time."""
        transport = self._router.transport
        end = transport.now() + request.wait_s
        turn = next(self._turns)
        attempts = self._attempts(request)
        ready: list[str] = []
        while True:
            names = await self._lookup.find(choice)
            first = turn % len(names) if names else 0
            order = dict.fromkeys([*ready, *names[first:], *names[:first]])
            round_ = _Round(self._polling, request, choice, attempts)
            for name in order:
                leased_runs = await round_.ask(name)
                if leased_runs:
                    return leased_runs
            if round_.failed and not round_.answered:
                await attempts.pause()  # raises when the time is over
                continue
            attempts = self._attempts(request)
            left = end - transport.now()
            if left <= 0:
                return []
            if ready or not names:
                await transport.sleep(min(_PAUSE_SECONDS, left))
            wait = min(left, WAIT_SECONDS, choice.seconds_max)
            wait = min(wait, _PARTIAL_WAIT_SECONDS) if round_.failed else wait
            ready = await self._await_ready(request, round_.answered, wait, attempts)

    async def _await_ready(
        self, request: PollRequest, names: Sequence[str], wait: float, attempts: Attempts
    ) -> list[str]:
        """Wait until some of these topics have messages, or cannot tell; returns which."""
        router = self._router
        deadline = attempts.attempt_deadline() + wait
        connections: dict[str, Connection] = {}
        posted: list[tuple[str, Connection, int]] = []
        try:
            for name in names:
                with suppress(QuiverError):  # a failure shows when the topic is polled
                    for address, asked in await self._questions(request, name, wait, attempts):
                        if address not in connections:
                            connections[address] = await router.connection(address, deadline)
                        connection = connections[address]
                        asked.timeout_ms = max(1, int((deadline - router.transport.now()) * 1000))
                        number = await connection.post(asked, (), deadline)
                        posted.append((name, connection, number))
            if not posted:
                await router.transport.sleep(min(wait, _PARTIAL_WAIT_SECONDS))
                return []
            asks = [(connection, number) for _, connection, number in posted]
            await router.transport.first_answered(asks, router.transport.now() + wait)
            answered = [each for each in posted if each[1].is_answered(each[2])]
            for each in answered:
                posted.remove(each)
                with suppress(QuiverError):
                    await each[1].take(each[2], deadline)
            return [name for name, _, _ in answered]
        finally:
            for _, connection, number in posted:
                connection.cancel(number)
            for connection in connections.values():
                router.transport.release(connection)

    async def _questions(
        self, request: PollRequest, name: str, wait: float, attempts: Attempts
    ) -> list[tuple[str, proto.Request]]:
        one = request._replace(topic=name)
        return [
            (led.target.address, ready_request(one, led, wait))
            for led in await self._polling.by_leader(name, attempts, may_create=request.names_topic)
        ]

    def _attempts(self, request: PollRequest) -> Attempts:
        return self._router.attempts(f"polling {request.topic} for group {request.group!r}")


class _Round:
    """One round of a poll: every topic is asked once."""

    def __init__(
        self, polling: Poller, request: PollRequest, choice: TopicChoice, attempts: Attempts
    ) -> None:
        self._polling = polling
        self._request = request
        self._choice = choice
        self._attempts = attempts
        self.answered: list[str] = []
        self.failed: list[str] = []

    async def ask(self, name: str) -> list[LeasedRun]:
        """The messages that this topic has at the moment."""
        request = self._request._replace(topic=name, wait_s=0.0)
        try:
            # Briefly: the others must not wait for a topic whose brokers are gone.
            leased_runs = await self._polling.poll(request, self._polling.short_attempts(request))
        except TopicNotFound:
            if self._choice.pattern is None:
                raise
            return []
        except QuiverError as error:
            if not error.retriable:
                raise
            self._attempts.record_failure(name, error)
            self.failed.append(name)
            return []
        self.answered.append(name)
        return leased_runs
