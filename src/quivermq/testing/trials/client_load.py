"""Runs producers and a reader while a cluster is disturbed.

They use the public client, as users would: `produce`, a `producer`, and `produce_many`. Attempts,
acknowledgements and reads go into a `History`.
"""

import threading
import time
from collections.abc import Callable, Iterable
from itertools import count, cycle
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import quivermq
from quivermq.errors import QuiverError
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster
from quivermq.testing.trials.history import History, TopicPartition

_PAUSE_S: Final = 0.004
_WINDOW: Final = 50
_MANY: Final = 20
_PADDING_MAX: Final = 300
_PROGRESS_S: Final = 30.0
_JOIN_S: Final = 60.0


class ClientLoad:
    """Use it in a `with`: at the end all producers have finished what they began."""

    def __init__(
        self,
        cluster: Cluster | str,
        places: Iterable[TopicPartition],
        *,
        history: History | None = None,
        seed: int = 1,
        timeout: float = 12.0,
        name: str = "",
        pause_s: float = _PAUSE_S,
    ) -> None:
        """Of a cluster, or of the brokers at some addresses. `name` is put before those of the
        producers, which a history takes for one each."""
        self.history = history or History()
        self.places = list(places)
        self.failures: list[QuiverError] = []
        """Errors that clients got after all their retries."""
        self.slowest_s = 0.0
        """The longest that a single produce took, since it was last set to 0."""
        self._cluster = cluster
        self._timeout = timeout
        self._pause_s = pause_s
        self._dice = Random(seed)
        self._stop = threading.Event()
        self._broken: BaseException | None = None
        self._servers = cluster if isinstance(cluster, str) else cluster.servers
        jobs = [self._one_by_one, self._gathered, self._many_at_once]
        self._threads = [
            threading.Thread(target=self._run, args=(job, f"{name}{job.__name__[1:]}"), daemon=True)
            for job in (*jobs, self._reading)
        ]
        for thread in self._threads:
            thread.start()

    def wait_progress(self, messages: int = 20, timeout: float = _PROGRESS_S) -> None:
        """Wait until so many more messages are acknowledged in every partition."""
        if isinstance(self._cluster, str):
            raise TypeError("a load knows the progress of a whole cluster only")
        goals = {place: self.history.acked_count(place) + messages for place in self.places}
        self._cluster.wait_until(
            lambda: (
                bool(self._broken)
                or all(self.history.acked_count(place) >= goal for place, goal in goals.items())
            ),
            "produces are not acknowledged any more",
            timeout,
        )
        self._raise_broken()

    def stop(self) -> None:
        """Stop sending, and wait for calls under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
            if thread.is_alive():
                raise Violation(f"I9: a client did not come back within {_JOIN_S:.0f} s")
        self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if error is None:
            self.stop()

    # Threads.

    def _run(self, job: Callable[[Any, str], None], name: str) -> None:
        try:
            with quivermq.connect(self._servers, timeout=self._timeout) as client:
                job(client, name)
        except BaseException as error:
            self._broken = error

    def _values(
        self, producer: str, place: TopicPartition, numbers: "count[int]", many: int
    ) -> list[bytes]:
        values = [
            f"{producer} {next(numbers)} to {place} ".encode()
            + b"." * self._dice.randrange(_PADDING_MAX)
            for _ in range(many)
        ]
        self.history.attempt(producer, place, values)
        return values

    def _one_by_one(self, client: Any, producer: str) -> None:
        numbers: count[int] = count()
        for place in cycle(self.places):
            if self._stop.wait(self._pause_s):
                return
            (value,) = self._values(producer, place, numbers, 1)
            began = time.monotonic()
            try:
                receipt = client.produce(place.topic, value, partition=place.partition)
            except QuiverError as error:
                self.failures.append(error)
                continue
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.history.ack(place, receipt.offset, [value])
            if receipt.offset % 10 == 0:
                self._read_own(client, place, receipt.offset, value)

    def _read_own(self, client: Any, place: TopicPartition, offset: int, value: bytes) -> None:
        """Check that a read which begins after an acknowledgement shows the message."""
        try:
            found = [m.value for m in client.read(*place, start=offset, stop=offset + 1)]
        except quivermq.OffsetOutOfRange as error:
            if error.earliest > offset:
                return  # retention was faster
            raise Violation(
                f"I6: offset {offset} of {place} is acked and not seen: {error}"
            ) from error
        except QuiverError as error:
            self.failures.append(error)
            return
        if found != [value]:
            raise Violation(
                f"I6: offset {offset} of {place} is acked as {value!r}, read as {found}"
            )

    def _gathered(self, client: Any, producer: str) -> None:
        numbers: count[int] = count()
        with client.producer(linger=0.002, timeout=self._timeout) as sender:
            for place in cycle(self.places):
                if self._stop.wait(self._pause_s):
                    return
                values = self._values(producer, place, numbers, _WINDOW)
                sent = [sender.send(place.topic, v, partition=place.partition) for v in values]
                for delivery, value in zip(sent, values, strict=True):
                    error = delivery.exception()
                    if error is None:
                        self.history.ack(place, delivery.result().offset, [value])
                    else:
                        self.failures.append(error)

    def _many_at_once(self, client: Any, producer: str) -> None:
        numbers: count[int] = count()
        for place in cycle(self.places):
            if self._stop.wait(self._pause_s):
                return
            values = self._values(producer, place, numbers, _MANY)
            try:
                receipts = client.produce_many(place.topic, values, partition=place.partition)
            except QuiverError as error:
                self.failures.append(error)
                continue
            for receipt in receipts:
                head, values = values[: receipt.count], values[receipt.count :]
                self.history.ack(place, receipt.first_offset, head)

    def _reading(self, client: Any, name: str) -> None:  # noqa: ARG002
        """Read from any replica, behind the producers."""
        offsets = dict.fromkeys(self.places, 0)
        for place in cycle(self.places):
            if self._stop.wait(self._pause_s):
                return
            offsets[place] = self._read_on(client, place, offsets[place])

    def _read_on(self, client: Any, place: TopicPartition, offset: int) -> int:
        try:
            for message in client.read(*place, start=offset, follower_ok=True):
                if message.offset != offset:
                    raise Violation(f"I6: {place} goes on at {message.offset}, not at {offset}")
                self.history.see(place, offset, [message.value])
                offset += 1
                if self._stop.is_set():
                    return offset
        except quivermq.OffsetOutOfRange as error:
            return max(offset, error.earliest)
        except QuiverError as error:
            self.failures.append(error)
        return offset
