"""Requests share one timer, and each ends at its own time."""

import asyncio

from quivermq.node.deadlines import Deadlines
from tests.transports.stage import on_loop, until


class Request:
    def __init__(self, name: str, deadline_s: float) -> None:
        self.name = name
        self.deadline_s = deadline_s


@on_loop
async def test_each_request_ends_once_at_its_time_and_none_before() -> None:
    loop = asyncio.get_running_loop()
    ended: list[tuple[str, float]] = []
    table: Deadlines[Request] = Deadlines(
        lambda request: ended.append((request.name, loop.time() - request.deadline_s)), 0.001
    )
    now = loop.time()
    for name, after_s in (("late", 0.06), ("soon", 0.02), ("soon too", 0.02), ("never", 60.0)):
        table.add(Request(name, now + after_s))
    await until(lambda: len(ended) == 3)
    assert [name for name, _ in ended] == ["soon", "soon too", "late"]
    assert all(late_s >= 0 for _, late_s in ended)
    assert len(table) == 1
    table.close()


@on_loop
async def test_what_is_taken_out_does_not_end_and_what_comes_meanwhile_does() -> None:
    loop = asyncio.get_running_loop()
    ended: list[str] = []

    def end(request: Request) -> None:
        ended.append(request.name)
        if request.name == "first":
            table.discard(gone)
            table.add(Request("meanwhile", loop.time()))

    table: Deadlines[Request] = Deadlines(end, 0.001)
    gone = Request("gone", loop.time() + 0.05)
    table.add(gone)
    table.add(Request("first", loop.time() + 0.01))
    await until(lambda: len(ended) == 2)
    await asyncio.sleep(0.06)
    assert ended == ["first", "meanwhile"]
    table.close()
