"""A consumer of a shared group that settles messages at random, and records every event.

It runs in a thread of a test, or in a process that can be killed: `testing.consumer_process`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from quivermq.client import LeasedMessage
from quivermq.errors import LeaseLost, QuiverError
from quivermq.testing.trials.group_history import (
    Delivered,
    Fate,
    SettleAction,
    SettleCall,
)
from quivermq.testing.trials.history import TopicPartition

ALL_HABITS = {
    "ack": 60,
    "ack_each": 12,
    "ack_some": 8,
    "nack": 8,
    "release": 4,
    "extend": 4,
    "forget": 2,
    "reject": 2,
}
ONLY_ACKS = {"ack": 1}
_LOOK_AGAIN_S = 0.05


class EventRecorder(Protocol):
    """Takes down events: a history, or a journal."""

    def record_deliveries(self, found: Sequence[Delivered], /) -> None: ...
    def begin_calls(self, consumer: str, said: Sequence[SettleCall], /) -> None: ...
    def end_calls(self, consumer: str, said: Sequence[SettleCall], /) -> None: ...
    def record_leave(self, consumer: str, at_ns: int, /) -> None: ...


@dataclass(frozen=True)
class ConsumerPlan:
    """How a consumer polls and settles."""

    topic: str
    group: str
    name: str = "consumer"
    max_messages: int = 20
    visibility: float = 2.0
    wait: float = 0.5
    habits: dict[str, int] = field(default_factory=lambda: dict(ALL_HABITS))
    """The relative frequency of each way to settle the messages of one poll."""
    nack_delay: float | None = 0.05
    seed: int = 1
    waits_for_word: bool = False
    """Settles the messages of a poll only after a line on standard input."""
    is_pushed: bool = False
    """Subscribes instead of polling, and acknowledges one by one."""
    crashes_on: str = ""
    """Kills its process at a value with this prefix, before it has settled anything."""


class TrialConsumer:
    """Polls, settles, and records both."""

    def __init__(
        self,
        client: Any,
        recorder: EventRecorder,
        plan: ConsumerPlan,
        wait_for_word: Callable[[], bool] = lambda: True,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._plan = plan
        self._dice = Random(f"{plan.seed} {plan.name}")
        self._wait_for_word = wait_for_word
        self._wall_ms = wall_ms
        self.failures: list[QuiverError] = []
        """Errors that it got after all its client's retries."""

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                if self._plan.is_pushed:
                    self._take_pushed(is_over)
                else:
                    self._take_one_poll()
            except QuiverError as error:
                self.failures.append(error)
                time.sleep(_LOOK_AGAIN_S)
        self._leave()

    def _leave(self) -> None:
        self._recorder.record_leave(self._plan.name, time.monotonic_ns())

    def _take_one_poll(self) -> None:
        messages = self.poll()
        # A consumer that is stopped while it waits for a word leaves its messages unsettled.
        if messages and (not self._plan.waits_for_word or self._wait_for_word()):
            self.settle(messages)

    def _take_pushed(self, is_over: Callable[[], bool]) -> None:
        plan = self._plan
        began = time.monotonic_ns()
        with self._client.subscribe(
            plan.topic, group=plan.group, prefetch=plan.max_messages, visibility=plan.visibility
        ) as pushed:

            def close_when_over() -> None:
                while not is_over():
                    time.sleep(_LOOK_AGAIN_S)
                self._leave()
                pushed.close()

            threading.Thread(target=close_when_over, daemon=True).start()
            for message in pushed:
                at, wall_ms = time.monotonic_ns(), self._wall_ms()
                # The poll that brought it is hidden: it may be as old as the subscription.
                self._recorder.record_deliveries(
                    [make_delivery(message, plan.name, began, at, wall_ms)]
                )
                self._say(SettleAction.ACK, [message], lambda found: found[0].ack())

    def poll(self) -> list[LeasedMessage]:
        plan = self._plan
        began = time.monotonic_ns()
        found: list[LeasedMessage] = self._client.poll(
            plan.topic,
            group=plan.group,
            max_messages=plan.max_messages,
            wait=plan.wait,
            visibility=plan.visibility,
        )
        at, wall_ms = time.monotonic_ns(), self._wall_ms()
        if found:
            self._recorder.record_deliveries(
                [make_delivery(m, plan.name, began, at, wall_ms) for m in found],
            )
        crash = plan.crashes_on.encode()
        if crash and any(m.value.startswith(crash) for m in found):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def settle(self, messages: list[LeasedMessage]) -> None:
        """Settle at random; a habit that is not listed here lets the lease expire."""
        habits = self._plan.habits
        (habit,) = self._dice.choices(list(habits), list(habits.values()))
        acts = {
            "ack": self._ack,
            "ack_each": self._ack_each,
            "ack_some": self._ack_some,
            "nack": self._nack,
            "release": self._release,
            "extend": self._extend,
            "reject": self._reject,
        }
        if habit in acts:
            acts[habit](messages)

    def _ack(self, messages: list[LeasedMessage]) -> None:
        self._say(SettleAction.ACK, messages, self._client.ack)

    def _ack_each(self, messages: list[LeasedMessage]) -> None:
        self._dice.shuffle(messages)
        for message in messages:
            self._ack([message])

    def _ack_some(self, messages: list[LeasedMessage]) -> None:
        some = self._dice.sample(messages, self._dice.randint(1, len(messages)))
        self._ack(some)
        rest = [message for message in messages if message not in some]
        if rest:
            self._release(rest)

    def _nack(self, messages: list[LeasedMessage]) -> None:
        delay, client = self._plan.nack_delay, self._client
        self._say(
            SettleAction.NACK, messages, lambda found: client.nack(found, delay=delay), delay or 0.0
        )

    def _release(self, messages: list[LeasedMessage]) -> None:
        self._say(SettleAction.RELEASE, messages, self._client.release)

    def _extend(self, messages: list[LeasedMessage]) -> None:
        client, longer = self._client, self._plan.visibility
        self._say(SettleAction.EXTEND, messages, lambda found: client.extend(found, longer))
        self._ack(messages)

    def _reject(self, messages: list[LeasedMessage]) -> None:
        head, *rest = messages
        client = self._client
        self._say(
            SettleAction.REJECT, [head], lambda found: client.reject(found, "the dice said so")
        )
        if rest:
            self._ack(rest)

    def _say(
        self,
        act: SettleAction,
        messages: Sequence[LeasedMessage],
        call: Callable[[Sequence[LeasedMessage]], object],
        delay_s: float = 0.0,
    ) -> None:
        began, wall_ms = time.monotonic_ns(), self._wall_ms()
        said = [
            SettleCall(
                act,
                TopicPartition(message.topic, message.partition),
                message.offset,
                message.lease.token,
                self._plan.name,
                began,
                wall_ms,
                0,
                Fate.UNKNOWN,
                delay_s,
            )
            for message in messages
        ]
        self._recorder.begin_calls(self._plan.name, said)
        fate = Fate.DONE
        try:
            call(messages)
        except LeaseLost:
            # Of several messages, the error does not say which.
            fate = Fate.LOST if len(messages) == 1 else Fate.UNKNOWN
        except QuiverError as error:
            self.failures.append(error)
            fate = Fate.UNKNOWN
        at = time.monotonic_ns()
        ended = [one._replace(fate=fate, ended_ns=at) for one in said]
        self._recorder.end_calls(self._plan.name, ended)


def make_delivery(
    message: LeasedMessage, consumer: str, began_ns: int, at_ns: int, wall_ms: float
) -> Delivered:
    """Make the record of a delivery."""
    return Delivered(
        TopicPartition(message.topic, message.partition),
        message.offset,
        message.value,
        message.lease.token,
        message.delivery_count,
        consumer,
        began_ns,
        at_ns,
        wall_ms,
    )
