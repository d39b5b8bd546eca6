"""Long work takes turns, and lets everybody else go on."""

import asyncio
import time
from pathlib import Path

import pytest

from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.time_slices import SLICE_S, Slices
from quivermq.wire import proto
from tests.transports.stage import Talker, make_topic, on_loop, serving

STEP_S = 0.002


class Gaps:
    """How long somebody else on the loop has to wait."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.worst_s = max(self.worst_s, time.thread_time() - before)

    async def end(self) -> float:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.worst_s


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def long_work(slices: Slices, steps: int, log: list[str] | None = None) -> int:
    done = 0
    async with slices.turn() as turn:
        for _ in range(steps):
            work(STEP_S)
            done += 1
            if log is not None:
                log.append("step")
            await turn.rest()
    return done


@on_loop
async def test_however_many_work_long_the_loop_goes_on_after_one_slice() -> None:
    slices, log = Slices(), [""]

    async def turns() -> None:
        while True:
            log.append("turn")
            await asyncio.sleep(0)

    other = asyncio.create_task(turns())
    done = await asyncio.gather(*(long_work(slices, 50, log) for _ in range(10)))
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert done == [50] * 10
    # Counted, not timed: a busy machine makes slices short, and never lets two follow each other.
    runs = "".join("s" if each == "step" else " " for each in log).split()
    assert max(map(len, runs)) <= SLICE_S / STEP_S + 1


@on_loop
async def test_all_get_their_turns() -> None:
    slices = Slices()
    long = asyncio.create_task(long_work(slices, 500))
    await asyncio.sleep(0)
    assert await long_work(slices, 20) == 20
    assert not long.done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)


@on_loop
async def test_cancelled_or_failed_work_gives_its_turn_back() -> None:
    slices = Slices()
    works = [asyncio.create_task(long_work(slices, 100)) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in works:
        task.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    with pytest.raises(ZeroDivisionError):
        async with slices.turn():
            _ = 1 / 0
    async with asyncio.timeout(5):
        assert await long_work(slices, 20) == 20


@on_loop
async def test_many_groups_that_go_on_together_do_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, tick_ms=500) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=60)
        advance = HostedReplica.advance

        def slowly(group: HostedReplica) -> None:
            work(0.005)
            advance(group)

        monkeypatch.setattr(HostedReplica, "advance", slowly)
        gaps = Gaps()
        # Each of them has to confirm that it leads.
        positions = [proto.Position(partition=n) for n in range(60)]
        body = proto.ListOffsets(topic="orders", positions=positions)
        answer = await talker.ask(proto.Request(id=5, list_offsets=body))
        assert len(answer.offsets_listed.partitions) == 60
        assert await gaps.end() < 0.2
        talker.close()
