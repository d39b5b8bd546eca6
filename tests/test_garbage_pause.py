"""Several threads pause the collector at a time, and it goes on when the last of them is done."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from quivermq.garbage_pause import GARBAGE_PAUSE, GarbagePause


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as tests have it."""
    gc.enable()
    yield
    gc.enable()


def test_the_collector_goes_on_when_the_last_is_done() -> None:
    pause = GarbagePause()
    pause.__enter__()
    pause.__enter__()
    assert not gc.isenabled()
    pause.__exit__(None, None, None)
    assert not gc.isenabled()
    pause.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with suppress(KeyError), GarbagePause():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_a_program_has_turned_off_stays_off() -> None:
    gc.disable()
    with GarbagePause():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_child_of_a_fork_collects_though_another_thread_had_paused_it() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with GARBAGE_PAUSE:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        with GARBAGE_PAUSE:
            was_paused = not gc.isenabled()
        os._exit(0 if was_paused and gc.isenabled() else 1)
    leave.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
