"""Ending a consumer in order when its process is told to: SIGTERM, and SIGINT, which is Ctrl-C.

A library must not take signals from the program that uses it. So nothing here happens unless a
program asks for it, by `stop_on_signals` or by `subscription.run()`, and everything is as before
when that has ended.
"""

import asyncio
import signal
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self

from quivermq.errors import InvalidRequest

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """A subscription or a consumer."""

    def stop(self) -> None:
        """Take no more messages: a loop over it ends behind the message in hand."""


class stop_on_signals:  # noqa: N801  (used like a function)
    """Stop consumers when the process is told to end, and not in the middle of a message.

    >>> with client.subscribe("orders", group="billing") as subscription:
    ...     with quivermq.stop_on_signals(subscription):
    ...         for message in subscription:
    ...             bill(message.value)
    ...             message.ack()
    >>> with quivermq.stop_on_signals() as stop:
    ...     while not stop:
    ...         client.ack(client.poll("orders", group="billing"))

    It holds for the block, and only for the first signal: a second one ends the program as it would
    have without this. Blocking or asyncio alike, in the main thread.
    """

    def __init__(self, *consumers: Stoppable) -> None:
        self.signal: int = 0
        """The signal that came."""
        self._consumers = consumers
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __bool__(self) -> bool:
        return bool(self.signal)

    def __enter__(self) -> Self:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        try:
            for number in SIGNALS:
                self._before[number] = signal.getsignal(number)
                if self._loop is None:
                    signal.signal(number, self._on_signal)
                else:
                    self._loop.add_signal_handler(number, self._stop, number)
        except (ValueError, RuntimeError) as error:
            self._restore()
            raise InvalidRequest("signals come to the main thread: use this there") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._stop(number)

    def _stop(self, number: int) -> None:
        self.signal = number
        self._restore()
        for consumer in self._consumers:
            consumer.stop()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            if self._loop is not None:
                self._loop.remove_signal_handler(number)
            try:
                # None: it was not set by Python, and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            except ValueError:
                return  # not the main thread: nothing was changed
