"""Processes, machines and the network on virtual time, without brokers."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from quivermq.errors import StorageFailed
from quivermq.testing.virtual import SimulatedMachine, VirtualNetwork, Weather, World, sandbox
from quivermq.testing.virtual.clock import EPOCH_US
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime


class Stage:
    """A world, and machines in it."""

    def __init__(self, seed: int = 1) -> None:
        self.dice = Random(seed)
        self.time = VirtualTime()
        story = Story(self.time)
        self.network = VirtualNetwork(self.time, Random(self.dice.random()), story)
        self.world = World(self.time, story, self.network, [])

    def machine(self, host: str) -> SimulatedMachine:
        return SimulatedMachine(self.world, host, Random(self.dice.random()))

    def run(
        self, main: Callable[[], Coroutine[Any, Any, None]], for_ms: int = 60_000
    ) -> SimulatedMachine:
        machine = self.machine("lone")
        process = machine.run(main, "main")
        self.time.run_for_ms(for_ms)
        if process.failures:
            raise process.failures[0]
        return machine


@pytest.fixture
def stage() -> Iterator[Stage]:
    with sandbox():
        yield Stage()


class Echo(asyncio.Protocol):
    """Sends back what comes in, and notes everything."""

    def __init__(self, is_server: bool = True) -> None:
        self.is_server = is_server
        self.received = b""
        self.lost: Exception | str | None = None
        self.told: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.is_server:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.told.append("wait")

    def resume_writing(self) -> None:
        self.told.append("go on")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc or "closed"


def serve(stage: Stage, host: str, ends: list[Echo]) -> SimulatedMachine:
    machine = stage.machine(host)

    def make() -> Echo:
        ends.append(Echo())
        return ends[-1]

    async def main() -> None:
        await asyncio.get_running_loop().create_server(make, host, 7600)

    machine.run(main, host)
    stage.time.run_for_ms(10)
    return machine


def dial(stage: Stage, host: str = "server") -> tuple[SimulatedMachine, Echo]:
    machine, end = stage.machine("client"), Echo(is_server=False)

    async def main() -> None:
        await asyncio.get_running_loop().create_connection(lambda: end, host, 7600)

    process = machine.run(main, "client")
    stage.time.run_for_ms(50)
    assert not process.failures
    return machine, end


def test_an_hour_passes_in_a_moment(stage: Stage) -> None:
    seen = []

    async def main() -> None:
        seen.append(time.monotonic())
        await asyncio.sleep(3_600)
        seen.append(time.monotonic())

    began = time.perf_counter()
    stage.run(main, for_ms=3_700_000)
    assert seen[1] - seen[0] == pytest.approx(3_600, abs=0.01)
    assert time.perf_counter() - began < 10


def test_clocks_and_chance_are_those_of_the_process_and_only_inside(stage: Stage) -> None:
    seen: list[Any] = []

    async def main() -> None:
        seen.extend((time.time(), os.urandom(4), secrets.token_hex(4), os.getpid()))

    stage.run(main)
    assert seen[0] == pytest.approx(EPOCH_US / 1e6, abs=1)
    assert time.time() > seen[0]
    assert os.getpid() != seen[3]
    again = Stage()
    before, seen = list(seen), []
    again.run(main)
    assert seen == before


def test_a_clock_drifts_jumps_and_stops(stage: Stage) -> None:
    clock = stage.machine("m").clock
    clock.drift(1.5)
    stage.time.run_for_ms(1_000)
    assert clock.steady_us == 1_500_000
    clock.jump(-7_000_000)
    assert (clock.steady_us, clock.wall_us) == (1_500_000, EPOCH_US - 5_500_000)
    clock.stop()
    stage.time.run_for_ms(1_000)
    assert (clock.steady_us, clock.wall_us) == (3_000_000, EPOCH_US - 5_500_000)
    clock.set_right()
    assert clock.wall_us == EPOCH_US + 2_000_000


def test_code_that_never_waits_uses_up_time(stage: Stage) -> None:
    turns = 0

    async def main() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    stage.run(main, for_ms=100)
    assert 100_000 / 60 <= turns <= 100_000 / 5


def test_a_paused_process_goes_on_as_if_nothing_had_happened(stage: Stage) -> None:
    seen = []

    async def main() -> None:
        while True:
            await asyncio.sleep(0.1)
            seen.append(stage.time.now_ms)

    machine = stage.run(main, for_ms=1_000)
    count = len(seen)
    machine.pause_ms(5_000)
    stage.time.run_for_ms(4_900)
    assert len(seen) == count
    stage.time.run_for_ms(1_100)
    assert seen[count] >= 6_000
    assert len(seen) > count + 5


def test_a_killed_process_does_nothing_more_not_even_at_its_end(stage: Stage) -> None:
    seen = []

    async def main() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            seen.append("finally")

    machine = stage.run(main, for_ms=1_000)
    machine.kill()
    stage.time.run_for_ms(2_000_000)
    assert not seen


def test_work_of_threads_is_done_later_and_tells_its_failure(stage: Stage) -> None:
    seen: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = stage.time.now_us
        seen.append(await loop.run_in_executor(None, lambda: 7))
        assert stage.time.now_us > began
        try:
            await loop.run_in_executor(None, lambda: 1 // 0)
        except ZeroDivisionError as error:
            seen.append(type(error))

    stage.run(main)
    assert seen == [7, ZeroDivisionError]


def test_what_the_disk_thread_does_is_lost_with_the_power_unless_it_was_synced(
    stage: Stage,
) -> None:
    machine = stage.machine("m")
    disk = machine.open_disk("data")
    for name in ("synced", "unsynced"):
        file = disk.create(name)
        file.write(0, [name.encode()])
        if name == "synced":
            file.sync()
            disk.sync_folder("")
    machine.lose_power()
    again = machine.open_disk("data")
    assert again.open("synced").read(0, 10) == b"synced"
    with pytest.raises(BaseException, match="gone"):
        disk.open("synced")
    machine.disk.faults.read_only = True
    with pytest.raises(StorageFailed):
        again.create("more")


def test_bytes_arrive_in_order_and_once_whatever_the_weather(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    stage.network.weather = Weather(delay_ms=(0.1, 300.0), loss=0.3)
    sent = b"".join(b"%d " % number for number in range(500))
    for start in range(0, len(sent), 100):
        near.transport.write(sent[start : start + 100])
    stage.time.run_for_ms(120_000)
    assert ends[0].received == sent
    assert near.received == sent


def test_a_cut_link_holds_bytes_back_in_one_direction(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    stage.network.cut({("server", "client")})
    near.transport.write(b"hello")
    stage.time.run_for_ms(5_000)
    assert (ends[0].received, near.received) == (b"hello", b"")
    stage.network.cut(())
    stage.time.run_for_ms(1_000)
    assert near.received == b"hello"


def test_a_killed_process_resets_its_connections(stage: Stage) -> None:
    ends: list[Echo] = []
    machine = serve(stage, "server", ends)
    _, near = dial(stage)
    machine.kill()
    stage.time.run_for_ms(100)
    assert isinstance(near.lost, ConnectionResetError)
    assert ends[0].lost is None


def test_a_machine_without_power_says_nothing_and_is_given_up_late(stage: Stage) -> None:
    ends: list[Echo] = []
    machine = serve(stage, "server", ends)
    _, near = dial(stage)
    machine.lose_power()
    near.transport.write(b"hello")
    stage.time.run_for_ms(10_000)
    assert near.lost is None
    stage.time.run_for_ms(20_000)
    assert near.lost is not None


def test_nobody_listens(stage: Stage) -> None:
    machine = stage.machine("client")

    async def main() -> None:
        await asyncio.get_running_loop().create_connection(Echo, "server", 1)

    process = machine.run(main, "client")
    stage.time.run_for_ms(100)
    assert isinstance(process.failures[0], ConnectionRefusedError)


def test_a_reader_that_pauses_makes_the_writer_wait(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    ends[0].transport.pause_reading()
    near.transport.write(bytes(1 << 20))
    stage.time.run_for_ms(1_000)
    assert near.transport.get_write_buffer_size() > 0
    assert not ends[0].received
    ends[0].transport.resume_reading()
    stage.time.run_for_ms(1_000)
    assert len(ends[0].received) == 1 << 20
    assert near.transport.get_write_buffer_size() == 0


def test_a_writer_is_told_to_wait_and_to_go_on_each_time(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    for _ in range(2):
        near.told.clear()
        ends[0].transport.pause_reading()
        near.transport.write(bytes(1 << 20))
        stage.time.run_for_ms(1_000)
        assert near.told == ["wait"]
        ends[0].transport.resume_reading()
        stage.time.run_for_ms(1_000)
        assert near.told == ["wait", "go on"]


def test_a_closed_connection_ends_once_everything_is_read(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    ends[0].transport.pause_reading()
    near.transport.write(b"the last words")
    near.transport.close()
    stage.time.run_for_ms(1_000)
    assert near.lost is None
    ends[0].transport.resume_reading()
    stage.time.run_for_ms(1_000)
    assert near.lost == "closed"
    assert ends[0].received == b"the last words"


def test_wrong_bits_are_one_bit_each(stage: Stage) -> None:
    ends: list[Echo] = []
    serve(stage, "server", ends)
    _, near = dial(stage)
    stage.network.weather = Weather(flips=1.0)
    near.transport.write(bytes(100))
    stage.time.run_for_ms(100)
    assert sum(byte.bit_count() for byte in ends[0].received) == 1
