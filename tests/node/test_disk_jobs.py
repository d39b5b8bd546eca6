"""Jobs for the disk: what keeps its order, what is done together, and that outcomes are told."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from quivermq.node.disk_thread import HELPERS_MAX, DiskThread

PATIENCE_S = 10.0


def with_thread(scene: Callable[[DiskThread], Awaitable[None]]) -> None:
    async def play() -> None:
        thread = DiskThread(asyncio.get_running_loop(), "test-disk")
        thread.start()
        try:
            await asyncio.wait_for(scene(thread), PATIENCE_S)
        finally:
            await thread.close()

    asyncio.run(play())


def test_jobs_without_a_key_keep_their_order() -> None:
    seen: list[int] = []

    async def scene(thread: DiskThread) -> None:
        for number in range(50):
            thread.submit(lambda number=number: seen.append(number), lambda _: None)
        await thread.run(lambda: None)
        assert seen == list(range(50))

    with_thread(scene)


def test_jobs_of_different_keys_that_wait_are_done_at_the_same_time() -> None:
    together = threading.Barrier(HELPERS_MAX)

    async def scene(thread: DiskThread) -> None:
        begun = threading.Event()
        thread.submit(begun.wait, lambda _: None)
        # None of these can end before all have begun.
        for key in range(HELPERS_MAX):
            thread.submit(lambda: together.wait(PATIENCE_S), lambda _: None, key)
        begun.set()
        await thread.run(lambda: None)
        assert not together.broken

    with_thread(scene)


def test_jobs_of_the_same_key_are_never_done_at_the_same_time_and_keep_their_order() -> None:
    seen: list[tuple[int, int]] = []
    busy: set[int] = set()
    clashes: list[int] = []

    def work(key: int, number: int) -> None:
        if key in busy:
            clashes.append(key)
        busy.add(key)
        seen.append((key, number))
        busy.discard(key)

    async def scene(thread: DiskThread) -> None:
        for number in range(40):
            for key in range(5):
                thread.submit(lambda key=key, number=number: work(key, number), lambda _: None, key)
        await thread.run(lambda: None)
        assert not clashes
        for key in range(5):
            assert [number for found, number in seen if found == key] == list(range(40))

    with_thread(scene)


def test_a_job_without_a_key_waits_for_all_before_it_and_holds_all_behind_it() -> None:
    seen: list[str] = []

    async def scene(thread: DiskThread) -> None:
        for key in range(10):
            thread.submit(lambda: seen.append("before"), lambda _: None, key)
        thread.submit(lambda: seen.append("between"), lambda _: None)
        for key in range(10):
            thread.submit(lambda: seen.append("behind"), lambda _: None, key)
        await thread.run(lambda: None)
        assert seen == ["before"] * 10 + ["between"] + ["behind"] * 10

    with_thread(scene)


def test_every_job_is_answered_once_with_its_result_or_its_failure() -> None:
    async def scene(thread: DiskThread) -> None:
        results: dict[int, object] = {}

        def told(key: int, result: object) -> None:
            assert key not in results
            results[key] = result

        def work(key: int) -> int:
            if key % 3 == 0:
                raise ValueError(key)
            return key

        for key in range(30):
            thread.submit(lambda key=key: work(key), lambda result, key=key: told(key, result), key)
        await thread.run(lambda: None)
        assert len(results) == 30
        for key, result in results.items():
            assert isinstance(result, ValueError) if key % 3 == 0 else result == key

    with_thread(scene)


def test_what_was_submitted_is_done_before_the_thread_ends() -> None:
    seen: list[int] = []

    async def scene(thread: DiskThread) -> None:
        for key in range(20):
            thread.submit(lambda key=key: seen.append(key), lambda _: None, key)
        await thread.close()
        assert sorted(seen) == list(range(20))

    with_thread(scene)
