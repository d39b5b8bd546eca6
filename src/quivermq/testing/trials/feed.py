"""Produces work for consumers: small batches with keys and headers, priorities, and delays."""

import threading
import time
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import quivermq
from quivermq.errors import QuiverError
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster
from quivermq.testing.trials.group_history import GroupHistory, Original
from quivermq.testing.trials.history import TopicPartition

_JOIN_S: Final = 60.0
_PRIORITIES: Final = (0, 0, 0, 3, 7)
_DELAYED_CHANCE: Final = 0.1
_DELAY_MAX_S: Final = 1.0


class Feed:
    """Use it in a `with`. Delays are recorded in all `histories`."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: int,
        histories: list[GroupHistory],
        *,
        batch: int = 10,
        pause: float = 0.04,
        seed: int = 1,
        timeout: float = 12.0,
    ) -> None:
        self.stored: dict[TopicPartition, dict[int, bytes]] = {
            TopicPartition(topic, number): {} for number in range(partitions)
        }
        self.failures: list[QuiverError] = []
        """Errors that the producer got after all its retries."""
        self._histories = histories
        self._batch = batch
        self._pause = pause
        self._dice = Random(seed)
        self._stop = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(cluster.servers, timeout), name="feed", daemon=True
        )
        self._thread.start()

    def _run(self, servers: str, timeout: float) -> None:
        numbers: count[int] = count()
        try:
            with quivermq.connect(servers, timeout=timeout) as client:
                while not self._stop.wait(self._pause):
                    self._send(client, [next(numbers) for _ in range(self._batch)])
        except BaseException as error:
            self._broken = error

    def _send(self, client: Any, numbers: list[int]) -> None:
        place = self._dice.choice(list(self.stored))
        values = [f"work {number} for {place}".encode() for number in numbers]
        delay = 0.0
        if self._dice.random() < _DELAYED_CHANCE:
            delay = self._dice.uniform(0.01, _DELAY_MAX_S)
            for history in self._histories:
                history.record_delay(values, int((time.time() + delay) * 1000))
        try:
            (receipt,) = client.produce_many(
                place.topic,
                values,
                [b"key %d" % (number % 7) for number in numbers],
                headers=[{"number": b"%d" % number} for number in numbers],
                priority=self._dice.choice(_PRIORITIES),
                delay=delay,
                partition=place.partition,
            )
        except QuiverError as error:
            self.failures.append(error)
            return
        self.stored[place].update(enumerate(values, receipt.first_offset))

    def stop(self) -> None:
        """Stop sending, and wait for calls under way."""
        self._stop.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise Violation(f"I9: a producer did not come back within {_JOIN_S:.0f} s")
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

    def check(self, contents: dict[TopicPartition, dict[int, Original]]) -> None:
        """I1: every acknowledged message is there."""
        for place, stored in self.stored.items():
            for offset, value in stored.items():
                found = contents[place].get(offset)
                if found is None or found.value != value:
                    raise Violation(f"I1: {place}@{offset} was stored as {value!r}, is {found}")
