"""The subscription of an asyncio client: messages are pushed to an iterator or to a handler.

It takes from a `Prefetcher` on the event loop that it is used on.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from quivermq.client.checks import Delay, check_number
from quivermq.client.core import Core
from quivermq.client.deserialize import find_fault, kind_with_data
from quivermq.client.shared.leased_message import AsyncLeasedMessage, LeasedFields
from quivermq.client.shared.leases import (
    ACK,
    Settlement,
    SettlementTerms,
    failed_terms,
    nack_terms,
    reject_terms,
    settlements_of,
)
from quivermq.client.shared.prefetch import Prefetcher, SubscribeOptions, checked_list_size
from quivermq.client.shared.subscription import DRAIN_SECONDS
from quivermq.client.stop_signals import stop_on_signals
from quivermq.errors import InvalidRequest, QuiverError

T = TypeVar("T")

logger = logging.getLogger("quivermq.client")


class AsyncSubscription:
    """Messages of a topic for a group, pushed: iterate, or give a handler.

    >>> async with client.subscribe("orders", group="billing") as subscription:
    ...     async for message in subscription:
    ...         await message.ack()
    """

    def __init__(
        self,
        make_core: Callable[[SubscribeOptions], Core],
        options: SubscribeOptions,
        handler: Callable[[AsyncLeasedMessage], object] | None,
    ) -> None:
        options.check(handler)
        self._options = options
        self._handler = handler
        self._decodes = options.deserializer is not None
        self._is_closed = False
        self._arrival = asyncio.Event()
        self._ended = asyncio.Event()
        self._stopped = asyncio.Event()
        """Set when it takes no more messages, for whatever reason."""
        self._stopping: asyncio.Task[None] | None = None
        core = make_core(options)
        self._prefetcher = Prefetcher(
            core,
            options.poll_request(core, self._settle),
            options.prefetch,
            kind_with_data(AsyncLeasedMessage, options.deserializer),
            self._on_arrival,
            ordered_by_key=options.ordered_by_key,
        )
        if handler is not None and core.router.tracer is not None:
            self._handler = core.router.tracer.traced_aio_handler(handler, options.group)
        self._workers = [
            asyncio.create_task(self._work(number))
            for number in range(options.concurrency if handler is not None else 0)
        ]
        self._closer: asyncio.Task[None] | None = None
        """Closes it, whether or not a task waits for that."""

    def __aiter__(self) -> AsyncIterator[AsyncLeasedMessage]:
        return self

    async def __anext__(self) -> AsyncLeasedMessage:
        self._check_no_handler()
        worker = _current_task()
        pop = self._prefetcher.pop
        message = pop(worker) or await self._wait_for(lambda: pop(worker))
        if message is None:
            raise StopAsyncIteration
        return cast("AsyncLeasedMessage", message)

    async def batches(
        self, max_messages: int | None = None
    ) -> AsyncIterator[list[AsyncLeasedMessage]]:
        """Lists of messages that are there: at least one, and at most `max_messages`. See
        `quivermq.Subscription.batches`."""
        self._check_no_handler()
        prefetcher, worker = self._prefetcher, _current_task()
        most = checked_list_size(max_messages)

        def take() -> list[LeasedFields]:
            return prefetcher.take(worker, most)

        while messages := take() or await self._wait_for(take):
            yield cast("list[AsyncLeasedMessage]", messages)

    async def ack(self, messages: Iterable[AsyncLeasedMessage]) -> None:
        """Acknowledge messages. Waits for nothing; `flush` waits until it is durable."""
        self._enqueue(messages, ACK)

    async def nack(
        self,
        messages: Iterable[AsyncLeasedMessage],
        delay: Delay | None = None,
        reason: str | None = None,
    ) -> None:
        """Have messages delivered again after `delay` seconds; None: the topic's backoff."""
        self._enqueue(messages, nack_terms(delay, reason))

    async def reject(self, messages: Iterable[AsyncLeasedMessage], reason: str = "") -> None:
        """Put messages that can never succeed among the dead letters."""
        self._enqueue(messages, reject_terms(reason))

    async def flush(self) -> None:
        """Wait until all settlements so far are durable; raises the first failure."""
        self._check_open()
        await self._prefetcher.flush()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (as in threads)
        """Wait until it has ended; False if it has not in time. Raises why, if not by `close`."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return False
        if self._prefetcher.error is not None:
            raise self._prefetcher.error
        return True

    def stop(self) -> None:
        """Take no more messages, and give back what waits: loops and handlers end behind the
        message in hand. Returns at once; `close` has to follow."""
        self._stopping = self._stopping or asyncio.create_task(self._prefetcher.stop())
        self._stopping.add_done_callback(lambda _: self._stopped.set())

    async def run(self, drain: float = DRAIN_SECONDS) -> bool:
        """Handle messages until the process gets SIGTERM or SIGINT, or this is closed; then close.

        Handlers have `drain` seconds to finish what they work on, and it is acknowledged. Returns
        False if some did not: they are cancelled, and what they work on goes to other consumers.
        Raises what ended the subscription. For the event loop of the main thread.
        """
        check_number("drain", drain, least=0)
        if self._handler is None:
            raise InvalidRequest("run is for handlers: loop over the subscription instead")
        with stop_on_signals(self):
            await self._stopped.wait()
            left = (await asyncio.wait(self._workers, timeout=drain))[1]
        if left:
            logger.warning("handlers of the %s did not end within %g s", self._options, drain)
        for worker in left:
            worker.cancel()
        await self.close()
        if self._prefetcher.error is not None:
            raise self._prefetcher.error
        return not left

    async def close(self) -> None:
        """Wait for handlers that run, and give back what was not worked on."""
        self._closer = self._closer or asyncio.create_task(self._close())
        # A handler that waited for itself would wait for ever.
        if not self.is_handling:
            # Shielded: it is closed also if the task that waits for it is cancelled.
            await asyncio.shield(self._closer)

    @property
    def is_handling(self) -> bool:
        """Asked by one of its own handlers."""
        return asyncio.current_task() in self._workers

    async def _close(self) -> None:
        try:
            await self._prefetcher.stop()
            await asyncio.gather(*self._workers, return_exceptions=True)
            await self._prefetcher.close()
        finally:
            self._is_closed = True
            self._ended.set()
            self._stopped.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{self._options}>"

    async def _wait_for(self, take: Callable[[], T | None]) -> T | None:
        """Messages, as soon as there are any; None: this is the end."""
        while True:
            if found := take():
                return found
            if self._is_closed or self._prefetcher.is_closing:
                return None
            if self._prefetcher.error is not None:
                raise self._prefetcher.error
            self._arrival.clear()
            await self._arrival.wait()

    async def _work(self, number: int) -> None:
        """One of the tasks that call the handler."""
        prefetcher, is_ordered = self._prefetcher, self._options.ordered_by_key

        def pop() -> LeasedFields | None:
            return prefetcher.pop(number)

        try:
            while (message := pop() or await self._wait_for(pop)) is not None:
                terms = await self._handle(message)
                if is_ordered:
                    prefetcher.free_key(message, terms)
                prefetcher.finish([(message, terms)])
        except QuiverError as error:
            logger.error("the %s has ended: %s", self._options, error)  # noqa: TRY400
        finally:
            prefetcher.in_hand.empty(number)

    async def _handle(self, message: LeasedFields) -> SettlementTerms:
        if self._handler is None:
            return ACK
        if self._decodes and (fault := find_fault(message)):
            logger.error("the %s rejects %r: it %s", self._options, message, fault)
            return reject_terms(fault)
        try:
            found = self._handler(cast("AsyncLeasedMessage", message))
            if inspect.isawaitable(found):
                await found
        except (Exception, asyncio.CancelledError) as error:
            if _current_task().cancelling():
                raise  # not the handler was cancelled, but the task that calls it
            logger.exception("the handler of the %s failed at %r", self._options, message)
            return failed_terms(error)
        return ACK

    def _on_arrival(self) -> None:
        self._arrival.set()
        if self._prefetcher.error is not None:
            self._ended.set()
            self._stopped.set()

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        await self._prefetcher.settle(settlements)

    def _enqueue(self, messages: Iterable[AsyncLeasedMessage], terms: SettlementTerms) -> None:
        self._check_open()
        settlements = settlements_of(messages, terms)
        if settlements:
            self._prefetcher.enqueue(settlements)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("the subscription is closed: subscribe again")

    def _check_no_handler(self) -> None:
        if self._handler is not None:
            raise InvalidRequest("a subscription with a handler cannot be iterated")


def _current_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())
