"""Watches the event loop of a broker: logs the stack of what holds it for too long.

All other clients wait while the loop works for one. A timer on the
loop notes each of its beats; a thread sees that one is overdue, and looks what the loop's thread is
doing. Two clocks tell whose fault it is. What counts against the budget is the processor time of
the loop's own thread: on a busy machine the loop may be late and do nothing wrong. A thread that
uses no processor and is not waiting for one is blocked, by a disk or a lock; the budget for that is
larger, since a thread may also wait for its turn in the interpreter.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from quivermq.garbage_pause import GARBAGE_PAUSE

logger = logging.getLogger("quivermq.stalls")

BLOCKED_FACTOR: Final = 5
"""How much longer than work on the processor the loop may wait for something."""
HELD: Final = "the event loop was held for"
"""How every line in the log begins that tells of a stall."""
_BEATS: Final = 4
"""In the time of the budget: how exact it is, and what it costs."""
_LOOKS: Final = 2
"""In the time of the budget: how often the thread looks whether a beat is overdue."""
_LOG_AGAIN_S: Final = 10.0
_CALLS_TOLD: Final = 25
_UNSEEN: Final = "(no stack: the thread did not let go of the interpreter meanwhile)"


Calls = list[tuple[FrameType, int]]
"""Of a thread, from the inside out, each with its line."""


def calls_of(thread: int, calls_max: int) -> Calls:
    """Where another thread is. Source lines are looked up only when it is told: files take turns of
    the interpreter, and the thread may have gone on by then.

    Nothing is collected meanwhile: Python 3.11 may collect garbage while it makes the object for a
    call, what runs then may let the other thread go on and return from that call, and the object
    would be one of memory that is used for something else.
    """
    calls: Calls = []
    with GARBAGE_PAUSE:
        frame = sys._current_frames().get(thread)  # noqa: SLF001  (there is no other way)
        while frame is not None and len(calls) < calls_max:
            calls.append((frame, frame.f_lineno))
            frame = frame.f_back
    return calls


@dataclass(slots=True)
class Stalls:
    """Stalls since the broker started."""

    count: int = 0
    seconds_max: float = 0.0


def waited_s() -> float:
    """How long threads of this process were ready to run while others had the processor: all of
    them, since one that has the interpreter and no processor keeps the others waiting.

    Where the system does not tell, it grows with time: nothing counts as blocked then.
    """
    total = 0
    try:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                total += int((thread / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    return total / 1e9


class _Beat(NamedTuple):
    number: int
    cpu_s: float
    due_s: float


class LoopWatch:
    """Started and stopped on the loop that it watches."""

    def __init__(self, budget_s: float, stalls: Stalls) -> None:
        self._budget_s = budget_s
        self._interval_s = budget_s / _BEATS
        self._stalls = stalls
        self._ended = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._beat = _Beat(0, 0.0, 0.0)
        # The beat that is late because of a stall that was counted already, or is meant to be.
        self._told = 0
        self._log_again_s = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._note_beat()
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self._ident)
            self._thread = threading.Thread(target=self._watch, name="quiver-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def excuse(self) -> None:
        """Whatever holds the loop until its next beat is meant to."""
        self._told = self._beat.number

    # On the loop.

    def _note_beat(self) -> None:
        now_s, cpu_s, beat = time.monotonic(), time.thread_time(), self._beat
        if beat.number and now_s - beat.due_s > self._budget_s:
            # What was worked between the last beat and the time of this one is not counted.
            held_s = cpu_s - beat.cpu_s - self._interval_s
            if held_s > self._budget_s:
                self._tell(beat, held_s, "busy", [])
                self._stalls.seconds_max = max(self._stalls.seconds_max, held_s)
        self._beat = _Beat(beat.number + 1, cpu_s, now_s + self._interval_s)
        self._timer = self._loop.call_later(self._interval_s, self._note_beat)

    # In the thread.

    def _watch(self) -> None:
        pause_s = self._budget_s / _LOOKS
        suspected, idle_s, looked_at = 0, 0.0, time.monotonic()
        worked_s, used_s = 0.0, -1.0
        while not self._ended.wait(pause_s):
            beat, before_s, looked_at = self._beat, looked_at, time.monotonic()
            worked_before_s, worked_s = worked_s, time.clock_gettime(self._clock)
            if looked_at - beat.due_s <= self._interval_s or beat.number == self._told:
                continue
            held_s = worked_s - beat.cpu_s - self._interval_s
            if held_s > self._budget_s:
                self._tell(beat, held_s, "busy", self._calls())
                continue
            if worked_s - worked_before_s > (looked_at - before_s) / 4:
                # It works, and is not blocked. Reading what the system says takes turns of the
                # interpreter, which a busy loop gives late: the next look would be too late.
                used_s = -1.0
                continue
            used_before_s, used_s = used_s, worked_s + waited_s()
            if beat.number != suspected or used_before_s < 0:
                suspected, idle_s = beat.number, 0.0
            else:
                # Not longer than this thread meant to sleep: if it slept longer, so did all others.
                passed_s = min(looked_at - before_s, 2 * pause_s)
                idle_s += max(0.0, passed_s - (used_s - used_before_s))
            if idle_s > BLOCKED_FACTOR * self._budget_s:
                self._tell(beat, idle_s, "blocked", self._calls())

    def _calls(self) -> Calls:
        return calls_of(self._ident, _CALLS_TOLD)

    # In either.

    def _tell(self, beat: _Beat, held_s: float, how: str, calls: Calls) -> None:
        if beat.number == self._told:
            return
        self._told = beat.number
        self._stalls.count += 1
        self._stalls.seconds_max = max(self._stalls.seconds_max, held_s)
        now_s = time.monotonic()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_AGAIN_S
            logger.warning(
                HELD + " %.2f s or more (%s); the last %d of its calls:\n%s",
                held_s,
                how,
                _CALLS_TOLD,
                "".join(traceback.StackSummary.extract(reversed(calls)).format()) or _UNSEEN,
                extra={"loop": type(self._loop).__module__},
            )
