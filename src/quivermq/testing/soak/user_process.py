"""Runs users of a soak as a process, so that they can be killed and paused.

    python -m quivermq.testing.soak.user_process '{"servers": ..., "journal": ..., ...}'

At SIGTERM they finish what they have begun. The process ends when its standard input does. A
violation that a user sees goes into the journal, and ends the process with 3.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import quivermq
from quivermq.errors import QuiverError
from quivermq.testing import Violation
from quivermq.testing.soak.users import GROUPS, journaled_stage, make_user, run_users
from quivermq.testing.trials.client_load import ClientLoad
from quivermq.testing.trials.consumer import ConsumerPlan, EventRecorder, TrialConsumer
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.journal import Journal, JournaledCalls
from quivermq.testing.trials.users import Stage

VIOLATION: Final = 3
_TIMEOUT_S: Final = 15.0
_CONSUMERS: Final = 2
_LEFT: Final = 50


class Program:
    """The users that the process was asked to run."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._name: str = asked["name"]
        self._users: list[str] = asked["users"]
        self._dice = Random(asked["seed"])
        self._servers: str = asked["servers"]
        self._topic: str = asked["topic"]
        self._partitions: int = asked["partitions"]
        self._journal = Journal(Path(asked["journal"]))
        self.stage: Stage = journaled_stage(
            self._journal,
            self._servers,
            self._topic,
            self._partitions,
            asked["pace_s"],
            has_right_clocks=asked["has_right_clocks"],
        )

    def run(self) -> int:
        """Run it to its end; returns the exit code."""
        programs = {"blocking": self._block, "leaving": self._leave}
        violations: list[BaseException] = []
        try:
            programs.get(self._users[0], self._work)()
        except* Violation as found:
            violations += found.exceptions
        for error in violations:
            self._journal.write("violations", "append", str(error))
        return VIOLATION if violations else 0

    def _work(self) -> None:
        users = [
            make_user(
                kind, self.stage, f"{self._name}/{kind} {number}", Random(self._dice.random())
            )
            for number, kind in enumerate(self._users)
        ]
        asyncio.run(run_users(users))

    # Users of the blocking client.

    def _block(self) -> None:
        """Producers, a reader and consumers in threads."""
        places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        history = self.stage.records.messages
        threads = [
            threading.Thread(target=self._consume, args=(f"{self._name}/blocking {number}",))
            for number in range(_CONSUMERS)
        ]
        for thread in threads:
            thread.start()
        with ClientLoad(
            self._servers, places, history=history, seed=self._dice.randrange(1000),
            timeout=_TIMEOUT_S, name=f"{self._name}/", pause_s=self.stage.pace_s,
        ):  # fmt: skip
            self._wait_over()
        for thread in threads:
            thread.join()

    def _consume(self, name: str) -> None:
        plan = ConsumerPlan(self._topic, GROUPS[1], name, max_messages=200, visibility=3.0)
        recorder = cast("EventRecorder", JournaledCalls(self._journal, GROUPS[1]))
        with quivermq.connect(self._servers, timeout=_TIMEOUT_S) as client:
            consumer = TrialConsumer(client, recorder, plan, wall_ms=_steady_ms)
            consumer.run(lambda: self.stage.is_over)

    def _leave(self) -> None:
        """Send and poll, and end without closing anything."""
        client = quivermq.connect(self._servers, timeout=_TIMEOUT_S)
        producer = client.producer(linger=0.05)
        place = TopicPartition(self._topic, self._dice.randrange(self._partitions))
        numbers = count()
        values = [f"{self._name} {next(numbers)} to {place}".encode() for _ in range(_LEFT)]
        self.stage.records.messages.attempt(self._name, place, values)
        try:
            for value in values:
                producer.send(place.topic, value, partition=place.partition)
            plan = ConsumerPlan(self._topic, GROUPS[1], self._name, max_messages=20, wait=0.2)
            recorder = cast("EventRecorder", JournaledCalls(self._journal, GROUPS[1]))
            TrialConsumer(client, recorder, plan, wall_ms=_steady_ms).poll()
        except QuiverError as error:
            self.stage.world.story.trace(f"{self._name}: {error}")

    def _wait_over(self) -> None:
        over = threading.Event()
        while not self.stage.is_over:
            over.wait(0.05)


def _steady_ms() -> float:
    """The other users note times by the steady clock too."""
    return time.monotonic_ns() / 1e6


def _follow(lines: Any) -> None:
    for _ in lines:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    program = Program(json.loads(sys.argv[1]))

    def end(*_: object) -> None:
        program.stage.is_over = True

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_follow, args=(sys.stdin,), daemon=True).start()
    return program.run()


if __name__ == "__main__":
    sys.exit(main())
