"""Consuming by shared groups: checked poll requests, and giving leases back at the end."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quivermq.client.checks import check_number, checked_group, one_of
from quivermq.client.connect_options import program_name
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.client.shared.held_leases import HeldLeases
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Settlement, milliseconds
from quivermq.client.shared.poll import LeasedRun, Poller, PollRequest
from quivermq.client.shared.poll_result import Rows, messages_of_runs, table_of_runs
from quivermq.client.shared.poll_size import FIRST_MESSAGES, PollSizes
from quivermq.client.shared.settle import Settler, TracedSettler
from quivermq.client.shared.several_topics import SeveralTopicsPoller
from quivermq.client.topic_choice import TopicChoice, Topics
from quivermq.client.transport import run
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.garbage_pause import GARBAGE_PAUSE
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer

M = TypeVar("M", bound=LeasedFields)

MESSAGES_MAX: Final = 100_000
"""Messages that one poll may ask for."""

# A consumer that ends does not wait longer than this for brokers: leases expire by themselves.
RELEASE_SECONDS: Final = 2.0


class SharedConsumer:
    """One consumer of shared groups: polls, settles, and releases its leases."""

    def __init__(self, router: Router, begun: set[tuple[str, str]] | None = None) -> None:
        """Consumers that share `begun` create a group once, and not each of them."""
        self.held_leases = HeldLeases()
        self.polling = Poller(router, self.held_leases, begun)
        self.settling = (
            Settler(router, self.held_leases)
            if router.tracer is None
            else TracedSettler(router, self.held_leases, router.tracer)
        )
        self._several = SeveralTopicsPoller(router, self.polling)
        self._router = router
        self._poll_sizes = PollSizes(self.held_leases, router.transport.now)
        self._last_checked: tuple[tuple[Any, ...], PollRequest] | None = None

    def poll_request(
        self,
        topics: Topics,
        group: str,
        max_messages: int | None,
        wait: float,
        visibility: float,
        ack: str,
        start: str,
        settle: Callable[[Sequence[Settlement]], Any],
        *,
        pattern: bool = False,
    ) -> PollRequest:
        """Check what a user asks for, and make one value of it."""
        arguments = (topics, group, max_messages, wait, visibility, ack, start, pattern, settle)
        request = self._known_request(arguments)
        if request is None:
            request = self._checked_request(*arguments)
            # A list may change, and be the same.
            if type(topics) is str:
                self._last_checked = arguments, request
        if max_messages is None:
            size = self._poll_sizes.choose(request.topic, group)
            if size != request.messages_max:
                request = request._replace(messages_max=size)
        return request

    def _known_request(self, arguments: tuple[Any, ...]) -> PollRequest | None:
        """The last one, if a loop asks again by the same objects: equal ones may be wrong, as True
        is for 1."""
        if self._last_checked is None:
            return None
        checked, request = self._last_checked
        *others, settle = arguments
        is_same = all(map(is_, others, checked)) and settle == request.settle
        # A forked process is another consumer.
        return request if is_same and request.consumer == self.held_leases.consumer else None

    def _checked_request(
        self,
        topics: Topics,
        group: str,
        max_messages: int | None,
        wait: float,
        visibility: float,
        ack: str,
        start: str,
        pattern: bool,  # noqa: FBT001  (as they were passed)
        settle: Callable[[Sequence[Settlement]], Any],
    ) -> PollRequest:
        check_number("wait", wait, least=0)
        choice = TopicChoice.of(topics, pattern=pattern)
        if max_messages is None:
            max_messages = FIRST_MESSAGES
        check_number("max_messages", max_messages, least=1, whole=True)
        if max_messages > MESSAGES_MAX:
            raise InvalidRequest(f"max_messages must be at most {MESSAGES_MAX:,}: {max_messages!r}")
        return PollRequest(
            topic=str(choice),
            group=checked_group(group),
            consumer=self.held_leases.consumer,
            consumer_name=program_name(),
            messages_max=max_messages,
            wait_s=wait,
            visibility_ms=milliseconds("visibility", visibility, least=0.001),
            auto_ack=one_of("ack", ack, "manual", "auto") == "auto",
            start_latest=one_of("start", start, "earliest", "latest") == "latest",
            settle=settle,
            choice=None if choice.is_one else choice,
        )

    @property
    def tracer(self) -> "ClientTracer | None":
        """Makes a span of each poll, if there is one."""
        return self._router.tracer

    async def poll_in_span(
        self, tracer: "ClientTracer", request: PollRequest, kind: type[M]
    ) -> list[M]:
        """Lease messages as soon as there are any, in a span of their own."""
        with tracer.receive(request.topic, request.group) as received:
            messages = self.messages_of(request, await self.lease(request), kind)
            received.took(messages)
            return messages

    async def lease(self, request: PollRequest) -> list[LeasedRun]:
        """Lease messages as soon as there are any."""
        if request.choice is None:
            return await self.polling.poll(request)
        return await self._several.poll(request, request.choice)

    def messages_of(
        self, request: PollRequest, leased_runs: Sequence[LeasedRun], kind: type[M]
    ) -> list[M]:
        """The messages that were leased.

        The collector of garbage pauses until this returns: the next object after a thousand new
        ones would make it look through all of them. If the user's last list is freed for this one,
        there are no more objects than before (decision 0075).
        """
        with GARBAGE_PAUSE:
            messages = messages_of_runs(leased_runs, kind, self._router.limits)
            if messages:
                leases = [leased_run.lease for leased_run in leased_runs if leased_run.lease.token]
                self._poll_sizes.record(
                    request.topic, request.group, request.messages_max, len(messages), leases
                )
            return messages

    async def poll_table(self, request: PollRequest) -> tuple[Any, list[Rows]]:
        """The same, as one Arrow table, with the rows of each lease."""
        router = self._router
        if router.tracer is None:
            return table_of_runs(await self.polling.poll(request), router.limits)
        with router.tracer.receive(request.topic, request.group) as received:
            table, rows = table_of_runs(await self.polling.poll(request), router.limits)
            received.took_table(table)
            return table, rows

    async def release(self, seconds: float = RELEASE_SECONDS) -> None:
        """This consumer ends: give back what it holds, so that others need not wait for it."""
        transport = self._router.transport
        held = self.held_leases.take_all(transport.now())
        attempts = Attempts(transport, seconds, "giving back what was polled")
        for (topic, group), partitions in held.items():
            if transport.now() >= attempts.deadline:
                return
            with suppress(QuiverError):  # best effort: leases expire by themselves
                await self.release_of(topic, group, partitions, attempts)

    async def release_of(
        self, topic: str, group: str, partitions: Sequence[int], attempts: Attempts
    ) -> None:
        """Give back everything of these partitions."""
        asks = []
        for led in await self._router.by_leader(topic, attempts, partitions):
            request = proto.Request(direct=led.target.direct)
            release = request.release_consumer
            release.topic, release.topic_id, release.group = topic, led.target.topic_id, group
            release.partitions.extend(led.partitions)
            release.consumer = self.held_leases.consumer
            asks.append((led.target.address, request))
        await self._router.ask_all(asks, attempts)


class ReleaseAtExit:
    """Gives back at the end of the program what a blocking client polled and did not settle."""

    def __init__(self, consuming: SharedConsumer) -> None:
        self._consuming = consuming

    @property
    def is_any(self) -> bool:
        """Something may be leased."""
        return self._consuming.held_leases.is_any

    def end(self, deadline: float) -> None:
        """The program ends: give it back."""
        seconds = deadline - time.monotonic()
        if seconds > 0:
            run(self._consuming.release(seconds))
