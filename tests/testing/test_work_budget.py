"""The budget of work finds callbacks of brokers that do too much, and counts the same each time."""

import asyncio
from random import Random

import pytest

from quivermq.testing import Violation
from quivermq.testing.simulation.work_budget import WorkBudget
from quivermq.testing.virtual import SimulatedMachine, VirtualNetwork, World, sandbox
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime

WORK_MAX = 20_000


def work(calls: int) -> None:
    for number in range(calls):
        abs(number)


async def in_one_go() -> None:
    work(WORK_MAX)


async def in_portions() -> None:
    for _ in range(10):
        work(WORK_MAX // 10)
        await asyncio.sleep(0)


def most_of(main, name: str) -> int:
    """The work of the busiest callback of a process."""
    time = VirtualTime()
    story = Story(time)
    world = World(time, story, VirtualNetwork(time, Random(1), story), [])
    with sandbox(), WorkBudget(WORK_MAX) as budget:
        SimulatedMachine(world, "host", Random(2)).run(main, name)
        time.run_for_ms(100)
        budget.check()
    return budget.most


def test_a_callback_of_a_broker_that_does_too_much_is_named() -> None:
    with pytest.raises(Violation, match=r"stall: in_one_go of broker 1 made 4\d,\d+ calls"):
        most_of(in_one_go, "broker 1")


def test_portions_of_work_are_within_the_budget_and_count_the_same_each_time() -> None:
    found = {most_of(in_portions, "broker 1") for _ in range(3)}
    assert len(found) == 1
    assert WORK_MAX // 5 < found.pop() < WORK_MAX // 4


def test_clients_may_work_as_long_as_they_like() -> None:
    assert most_of(in_one_go, "client 1") == 0


def test_the_budget_takes_itself_out_of_the_way() -> None:
    before = asyncio.Handle._run
    with WorkBudget():
        assert asyncio.Handle._run is not before
    assert asyncio.Handle._run is before
