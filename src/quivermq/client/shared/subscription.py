"""The subscription of a blocking client: messages are pushed to an iterator or to a handler.

It takes from a `Prefetcher` on an event loop, on a thread in the background.
"""

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from quivermq.client import fork_safety
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.checks import Delay, check_number
from quivermq.client.core import Core
from quivermq.client.deserialize import find_fault, kind_with_data
from quivermq.client.shared.delivery_run import DeliveryRun, RunSize
from quivermq.client.shared.leased_message import LeasedFields, LeasedMessage
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
from quivermq.client.stop_signals import stop_on_signals
from quivermq.errors import InvalidRequest, QuiverError

T = TypeVar("T")

logger = logging.getLogger("quivermq.client")

DRAIN_SECONDS: Final = 30.0

_CLOSED: Final = "the subscription is closed: subscribe again"
_FORKED: Final = "this subscription was made before the process was forked: subscribe in the child"


class Subscription:
    """Messages of a topic for a group, pushed: iterate, or give a handler.

    >>> with client.subscribe("orders", group="billing") as subscription:
    ...     for message in subscription:
    ...         bill(message.value)
    ...         message.ack()

    `message.ack()` waits until it is durable. Where that takes too long, take `batches()` and
    acknowledge with `subscription.ack(messages)`, which waits for nothing; `flush` and `close` do.
    """

    ends_first = True

    def __init__(
        self,
        background: BackgroundLoop,
        make_core: Callable[[SubscribeOptions], Core],
        options: SubscribeOptions,
        handler: Callable[[LeasedMessage], object] | None,
        on_begin: Callable[["Subscription"], None],
    ) -> None:
        """`on_begin` is called before a handler runs: the first may close the client."""
        self._is_closed = True
        self._refusal = _CLOSED
        options.check(handler)
        self._options = options
        self._background = background
        self._has_handler = handler is not None
        self._arrival = threading.Condition()
        """Notified of messages, and of the end."""
        self._closing = threading.Lock()
        self._prefetcher = background.call(_start(options, make_core, background, self._arrival))
        self._outbox = self._prefetcher.outbox
        self._is_closed = False
        self._workers = [] if handler is None else self._make_workers(handler)
        fork_safety.watch(self)
        background.add_user(self)
        on_begin(self)
        for worker in self._workers:
            worker.daemon = True
            worker.start()

    def _make_workers(self, handler: Callable[[Any], object]) -> list[threading.Thread]:
        tracer, options = self._prefetcher.tracer, self._options
        if tracer is not None:
            handler = tracer.traced_handler(handler, options.group)
        if options.deserializer is not None:
            handler = _decoding(handler)
        return [
            threading.Thread(
                target=self._work, args=(number, handler), name=f"quivermq-{options.group}"
            )
            for number in range(options.concurrency)
        ]

    def __iter__(self) -> Iterator[LeasedMessage]:
        self._check_may_iterate()
        return self._loop_over_runs() if self._prefetcher.gives_runs else self

    def _loop_over_runs(self) -> Iterator[LeasedMessage]:
        """As `next` gives them, as many at a time as the loop takes in a moment (decision 0076)."""
        prefetcher, size, owner = self._prefetcher, RunSize(), object()
        message: LeasedFields | None = None

        def take() -> DeliveryRun | None:
            return prefetcher.take_run(owner, size.messages)

        try:
            while (run := take() or self._wait_for(take)) is not None:
                began, first = time.perf_counter(), run.acknowledged
                take_next = run.rest.popleft
                with suppress(IndexError):  # that was all, or the event loop took the rest back
                    while True:
                        message = take_next()
                        yield cast("LeasedMessage", message)
                message = None
                self._check_may_iterate()
                size.adapt(run.end - first, time.perf_counter() - began)
        finally:
            prefetcher.leave_run(owner, threading.current_thread(), message)

    def __next__(self) -> LeasedMessage:
        self._check_may_iterate()
        worker = threading.current_thread()
        pop = self._prefetcher.pop
        message = pop(worker) or self._wait_for(lambda: pop(worker))
        if message is None:
            raise StopIteration
        return cast("LeasedMessage", message)

    def batches(self, max_messages: int | None = None) -> Iterator[list[LeasedMessage]]:
        """Lists of messages that are there: at least one, and at most `max_messages`.

        >>> with client.subscribe("orders", group="billing", prefetch=20_000) as subscription:
        ...     for messages in subscription.batches(1_000):
        ...         bill_all(messages)
        ...         subscription.ack(messages)

        While a list is worked on, the next ones are fetched, up to `prefetch` messages.
        """
        self._check_may_iterate()
        prefetcher, worker = self._prefetcher, threading.current_thread()
        most = checked_list_size(max_messages)

        def take() -> list[LeasedFields]:
            return prefetcher.take(worker, most)

        while messages := take() or self._wait_for(take):
            yield cast("list[LeasedMessage]", messages)

    def ack(self, messages: LeasedMessage | Iterable[LeasedMessage]) -> None:
        """Acknowledge messages. Returns at once; `flush` waits until it is durable."""
        if isinstance(messages, LeasedFields) and messages.lease.token:
            self._check_open()
            self._outbox.put(messages)
        else:
            self._enqueue(messages, ACK)

    def nack(
        self,
        messages: LeasedMessage | Iterable[LeasedMessage],
        delay: Delay | None = None,
        reason: str | None = None,
    ) -> None:
        """Have messages delivered again after `delay` seconds; None: the topic's backoff."""
        self._enqueue(messages, nack_terms(delay, reason))

    def reject(self, messages: LeasedMessage | Iterable[LeasedMessage], reason: str = "") -> None:
        """Put messages that can never succeed among the dead letters."""
        self._enqueue(messages, reject_terms(reason))

    def flush(self) -> None:
        """Wait until all settlements so far are durable.

        Raises the first failure since the last flush, as `LeaseLost`.
        """
        self._check_open()
        self._background.call(self._prefetcher.flush())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False if it has not in time. Raises why, if not by `close`."""
        with self._arrival:
            self._arrival.wait_for(lambda: self._is_closed or self._prefetcher.error, timeout)
        if self._prefetcher.error is not None:
            raise self._prefetcher.error
        return self._is_closed

    def stop(self) -> None:
        """Take no more messages, and give back what waits: loops and handlers end behind the
        message in hand. Returns at once; a signal handler may call this. `close` has to follow."""
        self._background.later(self._prefetcher.stop)

    def run(self, drain: float = DRAIN_SECONDS) -> bool:
        """Handle messages until the process gets SIGTERM or SIGINT, or this is closed; then close.

        >>> client.subscribe("orders", group="billing", handler=bill).run()

        Handlers have `drain` seconds to finish what they work on, and it is acknowledged. Returns
        False if some did not: what they work on goes to other consumers. Raises what ended the
        subscription. For the main thread; see `quivermq.stop_on_signals` for loops.
        """
        check_number("drain", drain, least=0)
        if not self._has_handler:
            raise InvalidRequest("run is for handlers: loop over the subscription instead")
        with stop_on_signals(self):
            with self._arrival:
                self._arrival.wait_for(lambda: self._is_ending or self._prefetcher.error)
            deadline = time.monotonic() + drain
            self._join_workers(deadline)
        is_drained = not any(worker.is_alive() for worker in self._workers)
        if not is_drained:
            logger.warning("handlers of the %s did not end within %g s", self._options, drain)
        self._close(is_patient=is_drained)
        if self._prefetcher.error is not None:
            raise self._prefetcher.error
        return is_drained

    @property
    def _is_ending(self) -> bool:
        return self._is_closed or self._prefetcher.is_closing

    def close(self) -> None:
        """Wait for handlers that run, and give back what was not worked on."""
        if self.is_handling:
            # A handler that waited for itself would wait for ever.
            threading.Thread(target=self.close, name="quivermq-close").start()
            return
        self._close(is_patient=True)

    def _close(self, *, is_patient: bool) -> None:
        with self._closing:
            if self._is_closed:
                return
            try:
                self._background.call(self._prefetcher.stop())
                for worker in self._workers if is_patient else ():
                    worker.join()
                self._background.call(self._prefetcher.close())
            except BaseException:
                # Interrupted: the leases are given back in the background all the same.
                self._background.later(self._prefetcher.close)
                raise
            finally:
                self._is_closed = True
                with self._arrival:
                    self._arrival.notify_all()

    @property
    def is_handling(self) -> bool:
        """Asked by one of its own handlers."""
        return threading.current_thread() in self._workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._is_closed:
            # Its messages cannot be taken any more: other consumers get them.
            self._background.later(self._prefetcher.close)
            warnings.warn(f"the {self._options} was not closed", ResourceWarning, 2, source=self)

    async def end(self, deadline: float) -> None:
        """The program ends: handlers that run have a moment, and all else goes back."""
        if self._is_closed:
            return
        now = time.monotonic()
        patience = now + (deadline - now) / 2
        # What was not handed out is not given back one by one: all goes back together.
        self._prefetcher.forget_waiting()
        await self._prefetcher.stop()
        with suppress(RuntimeError):  # no more threads can be started
            await asyncio.to_thread(self._join_workers, patience)
        await self._prefetcher.close()
        self._is_closed = True
        with self._arrival:
            self._arrival.notify_all()

    def __repr__(self) -> str:
        return f"<{self._options}>"

    def after_fork(self) -> None:
        """The thread that takes messages in stayed with the parent."""
        for run in self._prefetcher.in_hand.runs.values():
            run.rest.clear()
        self._is_closed = True
        self._refusal = _FORKED
        self._workers = []
        self._arrival = threading.Condition()
        self._closing = threading.Lock()

    def _wait_for(self, take: Callable[[], T | None]) -> T | None:
        """Messages, as soon as there are any; None: this is the end."""
        with self._arrival:
            while True:
                if found := take():
                    return found
                if self._is_closed or self._prefetcher.is_closing:
                    return None
                if self._prefetcher.error is not None:
                    raise self._prefetcher.error
                self._arrival.wait()

    def _work(self, number: int, handler: Callable[[Any], object]) -> None:
        """One of the threads that call the handler."""
        work = self._work_on_runs if self._prefetcher.gives_runs else self._work_on_each
        try:
            work(number, handler)
        except QuiverError as error:
            logger.error("the %s has ended: %s", self._options, error)  # noqa: TRY400

    def _work_on_each(self, number: int, handler: Callable[[Any], object]) -> None:
        """Message by message."""
        prefetcher, is_ordered = self._prefetcher, self._options.ordered_by_key
        pop = partial(prefetcher.pop, number)
        while (message := pop() or self._wait_for(pop)) is not None:
            terms = ACK
            try:
                handler(message)
            except BaseException as error:
                terms = self._failed(message, error)
            if is_ordered:
                prefetcher.free_key(message, terms)
            self._outbox.put((message, terms))

    def _work_on_runs(self, number: int, handler: Callable[[Any], object]) -> None:
        """As many at a time as are handled in a moment (decision 0076)."""
        size = RunSize()

        def take() -> DeliveryRun | None:
            return self._prefetcher.take_run(number, size.messages)

        while (run := take() or self._wait_for(take)) is not None:
            began, begins_at = time.perf_counter(), run.acknowledged
            self._work_on_run(run, handler)
            self._outbox.put(run)
            size.adapt(run.end - begins_at, time.perf_counter() - began)

    def _work_on_run(self, run: DeliveryRun, handler: Callable[[Any], object]) -> None:
        take = run.rest.popleft
        while True:
            try:
                message = take()
            except IndexError:  # that was all, or the event loop took the rest back
                break
            try:
                handler(message)
            except BaseException as error:
                self._outbox.put((message, self._failed(message, error)))
        run.is_over = True

    def _failed(self, message: LeasedFields, error: BaseException) -> SettlementTerms:
        if isinstance(error, _UndecodableError):
            logger.error("the %s rejects %r: it %s", self._options, message, error)
            return reject_terms(str(error))
        logger.error("the handler of the %s failed at %r", self._options, message, exc_info=error)
        return failed_terms(error)

    def _join_workers(self, deadline: float) -> None:
        for worker in self._workers:
            if worker.ident is not None:  # else it did not come to be started
                worker.join(max(0.0, deadline - time.monotonic()))

    def _enqueue(
        self, messages: LeasedMessage | Iterable[LeasedMessage], terms: SettlementTerms
    ) -> None:
        self._check_open()
        settlements = settlements_of(messages, terms)
        if settlements:
            self._outbox.put(settlements)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest(self._refusal)

    def _check_may_iterate(self) -> None:
        if self._refusal is _FORKED:
            raise InvalidRequest(_FORKED)
        if self._has_handler:
            raise InvalidRequest("a subscription with a handler cannot be iterated")


class _UndecodableError(Exception):
    """The value of a message cannot be decoded: the handler does not see it."""


def _decoding(handler: Callable[[Any], object]) -> Callable[[Any], object]:
    def decode_and_handle(message: LeasedFields) -> None:
        if fault := find_fault(message):
            raise _UndecodableError(fault)
        handler(message)

    return decode_and_handle


# Functions and not methods: what runs in the background must not keep a subscription alive that
# the program no longer refers to.


async def _start(
    options: SubscribeOptions,
    make_core: Callable[[SubscribeOptions], Core],
    background: BackgroundLoop,
    arrival: threading.Condition,
) -> Prefetcher:
    core = make_core(options)
    prefetchers: list[Prefetcher] = []

    def settle(settlements: Sequence[Settlement]) -> None:
        background.call(prefetchers[0].settle(settlements))

    def on_arrival() -> None:
        with arrival:
            arrival.notify_all()

    try:
        request = options.poll_request(core, settle)
        for name in [request.topic] if request.choice is None else request.choice.names:
            await core.router.consumed_route(name, core.router.attempts(f"subscribing to {name}"))
    except BaseException:
        await core.close()
        raise
    found = Prefetcher(
        core,
        request,
        options.prefetch,
        kind_with_data(LeasedMessage, options.deserializer),
        on_arrival,
        ordered_by_key=options.ordered_by_key,
    )
    prefetchers.append(found)
    return found
