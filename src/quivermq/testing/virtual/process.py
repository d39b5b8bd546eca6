"""Simulated machines and the processes that run on them.

A machine has a disk, clocks and a place in the network, and outlives its processes. A process has
an event loop; it runs, is paused, ends or is killed. Each turn of its loop takes a little time, so
that code which never waits uses up time as it does on a real machine.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from quivermq.busy_poll import LoopPoll
from quivermq.log import Disk
from quivermq.node import DiskThread, LoopWatch, Machine
from quivermq.testing.simulated_disk import Killed, SimulatedDisk
from quivermq.testing.virtual.clock import MachineClock
from quivermq.testing.virtual.loop import VirtualLoop
from quivermq.testing.virtual.network import VirtualListener, VirtualNetwork
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import US_PER_MS, VirtualTime

if TYPE_CHECKING:
    from quivermq.node import Stalls

_S = TypeVar("_S")
_T = TypeVar("_T")

_US: Final = 1_000_000
_TURN_US: Final = range(5, 61)
"""The time that a turn of an event loop takes."""
_WORK_US: Final = 20
"""The time that passes with a look at the clock: long work looks between two pieces."""
_ASIDE_MS: Final = (0.05, 3.0)


class MachineState:
    """The faults of a machine that are in force; healing makes a new one."""

    def __init__(self) -> None:
        self.disk_ms = (0.05, 2.0)
        self.lag_ms = 0.0
        """The delay of everything that it does."""


class World(NamedTuple):
    """Time, story and network, which all machines share."""

    time: VirtualTime
    story: Story
    network: VirtualNetwork
    ended: "list[Process]"
    """Processes that are gone: their tasks are kept, so that none of them runs to its end."""


class SimulatedMachine(Machine):
    """A host with a disk, clocks and an address."""

    def __init__(self, world: World, host: str, dice: Random) -> None:
        self.world = world
        self.host = host
        self.dice = dice
        self.disk = SimulatedDisk(Random(dice.random()))
        self.clock = MachineClock(world.time)
        self.state = MachineState()
        self.paused_until_us = 0
        self.process: Process | None = None
        self.lives = 0
        self.is_dying = False
        """Its process died in this step, in the middle of disk work."""
        self.on_death: Callable[[], None] = lambda: None
        """Called when a process died by itself."""

    # Processes.

    def run(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> "Process":
        """Start a process."""
        self.lives += 1
        self.world.network.host_on(self.host)
        self.process = Process(self, name, Random(self.dice.random()))
        self.process.start(main)
        return self.process

    def kill(self) -> None:
        """The process ends without a word; the system closes its connections."""
        self._end(is_told=True)
        self.disk.kill()

    def lose_power(self) -> None:
        """All that was not synced may be lost, and nothing is said to anyone."""
        self._end(is_told=False)
        self.disk.lose_power()

    def die_at(self, operation: int) -> None:
        """The process dies in the middle of what it does to its disk."""
        self.disk.faults.failure = self._dying
        self.disk.faults.fail_operation = operation

    def _dying(self, text: str) -> Killed:
        self.is_dying = True
        return Killed(text)

    def bury(self) -> None:
        """After a step: a process that died in it is gone."""
        if self.is_dying:
            self.world.story.tell(f"{self.host} dies in the middle of disk work")
            self.kill()
            self.on_death()

    def _end(self, *, is_told: bool) -> None:
        process, self.process = self.process, None
        self.paused_until_us = 0
        self.is_dying = False
        if process is not None:
            process.end()
            self.world.ended.append(process)
            self.world.network.host_ended(self.host, is_told=is_told)

    def pause_ms(self, duration_ms: float) -> None:
        """The process stands still for a while."""
        until_us = self.world.time.now_us + round(duration_ms * US_PER_MS)
        self.paused_until_us = max(self.paused_until_us, until_us)

    @property
    def is_up(self) -> bool:
        return self.process is not None

    # What a broker asks of its machine.

    def open_disk(self, data_dir: str) -> Disk:  # noqa: ARG002
        return _DiskOfLife(self.disk)

    def lock(self, data_dir: str) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None

    def start_disk_thread(self) -> DiskThread:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise TypeError("a simulated machine runs processes on virtual time")
        return VirtualDiskThread(loop)

    def poll_busily(self, window_s: float) -> LoopPoll:  # noqa: ARG002
        # Not at all: virtual time stands still while anything is due.
        return LoopPoll(asyncio.get_running_loop(), 0.0)

    def watch_loop(self, budget_s: float, stalls: "Stalls") -> LoopWatch | None:  # noqa: ARG002
        return None


class _DiskOfLife:
    """The disk as one process uses it: a process that was killed does nothing more."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._life = disk.life

    def __getattr__(self, name: str) -> Any:
        if self._life != self._disk.life:
            raise Killed("the disk of a process that is gone")
        return getattr(self._disk, name)


class Process:
    """A process of a simulated machine."""

    def __init__(self, machine: SimulatedMachine, name: str, dice: Random) -> None:
        self.machine = machine
        self.name = name
        self.dice = dice
        self.number = 1000 + machine.lives
        self.time = machine.world.time
        self.loop = VirtualLoop(self)  # type: ignore[abstract]
        self.is_over = False
        self.main: asyncio.Task[None] | None = None
        self.failures: list[BaseException] = []
        """Errors that no task took care of."""
        self._clock = machine.clock
        self._busy_until_us = 0
        self._worked_us = 0
        # The next turn is at this time; turns that were planned for other times are left out.
        self._turn_at_us: int | None = None
        self._planned_us: set[int] = set()
        self._is_in_turn = False

    # Its clocks.

    def steady_s(self) -> float:
        return (self._clock.read_us() + self._worked_us) / _US

    def wall_s(self) -> float:
        return self._clock.wall_us / _US

    def count_work_s(self) -> float:
        """The clock by which long work is cut into slices: looking at it counts as work."""
        self._worked_us += _WORK_US
        return (self._clock.read_us() + self._worked_us) / _US

    # Its turns.

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.call_soon(self._begin, main)

    def _begin(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.main = self.loop.create_task(main(), name=self.name)
        self.main.add_done_callback(self._ended)

    def _ended(self, main: "asyncio.Task[None]") -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self.unhandled({"exception": error})

    def plan_turn(self) -> None:
        """See that the loop runs when it has something to do."""
        if self.is_over or self._is_in_turn:
            return
        at_us = self._next_turn_us()
        if at_us is not None and (self._turn_at_us is None or at_us < self._turn_at_us):
            self._turn_at_us = at_us
            if at_us not in self._planned_us:
                self._planned_us.add(at_us)
                self.time.at_us(at_us, self._turn)

    def _next_turn_us(self) -> int | None:
        now_us = due_us = self.time.now_us
        if not self.loop.ready:
            timer = self.loop.next_timer()
            if timer is None:
                return None
            due_us += self._clock.real_us((timer - self.steady_s()) * _US)
        return max(due_us, now_us, self._busy_until_us, self.machine.paused_until_us)

    def _turn(self) -> None:
        now_us, machine = self.time.now_us, self.machine
        self._planned_us.discard(now_us)
        if self.is_over or self._turn_at_us != now_us:
            return
        self._turn_at_us = None
        if machine.paused_until_us > now_us:
            self.plan_turn()
            return
        self._is_in_turn = True
        self._worked_us = 0
        try:
            self.loop.run_turn()
        finally:
            self._is_in_turn = False
        if machine.is_dying:
            machine.bury()
        # Not `randint`, which takes several times as long: this is drawn in every turn.
        took_us = _TURN_US[int(self.dice.random() * len(_TURN_US))] + self._worked_us
        if machine.state.lag_ms:
            took_us += round(self.dice.random() * machine.state.lag_ms * US_PER_MS)
        self._worked_us = 0
        self._busy_until_us = now_us + took_us
        self.plan_turn()

    def call(self, action: Callable[[], None]) -> None:
        """Call something on the loop, if there still is one."""
        if not self.is_over:
            self.loop.call_soon(action)

    def unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed):
            return
        self.failures.append(error or RuntimeError(str(context.get("message"))))

    def end(self) -> None:
        self.is_over = True
        self.loop.close()

    # Work of its threads.

    def work_aside(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do work beside the event loop, and tell it the outcome."""
        self.do_after_ms(self.dice.uniform(*_ASIDE_MS), work, done)

    def do_after_ms(
        self,
        delay_ms: float,
        work: Callable[[], object],
        done: Callable[[object], None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        def do() -> None:
            if self.is_over:
                return
            if self.machine.paused_until_us > self.time.now_us:
                self.time.at_us(self.machine.paused_until_us, do)
                return
            try:
                outcome: object = work()
            except Killed:
                self.machine.bury()
                return
            except Exception as error:
                outcome = error
            then()
            self.loop.call_soon(done, outcome)

        self.time.after_ms(delay_ms, do)

    # Its connections.

    async def dial(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.machine.world.network.dial(self, factory, host, port)

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], port: int) -> VirtualListener:
        return self.machine.world.network.listen(self, factory, port)


class _DiskJob(NamedTuple):
    work: Callable[[], object]
    done: Callable[[object], None]
    key: Hashable | None


class VirtualDiskThread(DiskThread):
    """The disk thread as work at seeded times: one job after another; of neighbours with different
    keys, any may come first."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, "quiver-disk")
        self._process = loop.process
        self._waiting: deque[_DiskJob] = deque()
        self._is_busy = False

    def submit(
        self,
        work: Callable[[], object],
        done: Callable[[object], None],
        key: Hashable | None = None,
    ) -> None:
        self._waiting.append(_DiskJob(work, done, key))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._waiting:
            return
        keys: list[Hashable] = []
        for job in self._waiting:
            if job.key is None or job.key in keys:
                break
            keys.append(job.key)
        chosen = self._process.dice.randrange(len(keys)) if keys else 0
        job = self._waiting[chosen]
        del self._waiting[chosen]
        took_ms = self._process.dice.uniform(*self._process.machine.state.disk_ms)
        self._process.do_after_ms(took_ms, job.work, job.done, self._next)

    def together(self, work: Callable[[_S], _T], items: Sequence[_S]) -> list[_T]:
        return [work(item) for item in items]

    async def aside(self, work: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(None, work)

    def submit_aside(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._process.work_aside(work, done)

    async def close(self) -> None:
        await self.run(lambda: None)
