"""A machine and the server that runs on it: started, killed, stopped and started again."""

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from quivermq.errors import QuiverError
from quivermq.testing.simulated_disk import Faults
from quivermq.testing.virtual import Process, SimulatedMachine
from quivermq.testing.virtual.process import MachineState
from quivermq.transports import GatewayServer, Server

_STOP_MS: Final = 20_000
"""A server that has not stopped by then is killed."""

_S = TypeVar("_S", bound=Server | GatewayServer)


class ServedMachine(Generic[_S]):
    """A machine on which a broker or a gateway runs, in one life after another."""

    def __init__(self, name: str, machine: SimulatedMachine, make: Callable[[], _S]) -> None:
        self.name = name
        self.machine = machine
        self._make = make
        self.server: _S | None = None
        self.refusal: QuiverError | None = None
        """Why it did not start."""
        self.is_stopping = False
        self.is_retired = False
        machine.on_death = self._died

    def start(self) -> None:
        if self.machine.is_up or self.is_retired:
            return
        self.refusal = self.server = None
        self.is_stopping = False
        self.machine.world.story.tell(f"{self.name} starts")
        self.machine.run(self._run, self.name)

    async def _run(self) -> None:
        server = self.server = self._make()
        try:
            await server.start()
        except QuiverError as error:
            self.refusal = error
            self.machine.world.story.tell(f"{self.name} does not start: {error}")

    def _died(self) -> None:
        self._start_later(self.machine.dice.uniform(50, 2_000))

    def _start_later(self, down_ms: float) -> None:
        self.machine.world.time.after_ms(down_ms, self.start)

    def crash(self, *, power: bool, down_ms: float) -> None:
        """Killed, or without power; starts again after a while."""
        if self.machine.is_up:
            (self.machine.lose_power if power else self.machine.kill)()
            self._start_later(down_ms)

    def restart(self, down_ms: float) -> None:
        """Stopped as an operator would, and started again."""
        process = self.machine.process
        if process is None or self.is_stopping or self.server is None:
            return
        self.is_stopping = True
        process.loop.call_soon(self._begin_to_stop, process, self.server, down_ms)
        self.machine.world.time.after_ms(_STOP_MS, partial(self._end, process, down_ms))

    def _begin_to_stop(self, process: Process, server: _S, down_ms: float) -> None:
        stopping = process.loop.create_task(server.stop())
        stopping.add_done_callback(lambda _: self._end_soon(process, down_ms))

    def _end_soon(self, process: Process, down_ms: float) -> None:
        self.machine.world.time.after_ms(0.1, partial(self._end, process, down_ms))

    def _end(self, process: Process, down_ms: float) -> None:
        if self.machine.process is process:
            self.machine.kill()
            self._start_later(down_ms)

    @property
    def is_serving(self) -> bool:
        """Its listener for clients is open."""
        return (
            self.machine.is_up
            and not self.is_stopping
            and self.server is not None
            and self.server.client_connections is not None
        )

    def heal(self) -> None:
        """End all faults of the machine."""
        machine, now_us = self.machine, self.machine.world.time.now_us
        machine.disk.faults = Faults()
        machine.state = MachineState()
        machine.paused_until_us = min(machine.paused_until_us, now_us)
        machine.clock.set_right()
        if machine.process is not None:
            machine.process.plan_turn()
