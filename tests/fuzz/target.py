"""A target: something that reads bytes or texts from outside, and the limits that it is held to."""

import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quivermq.errors import QuiverError

SECONDS_MAX = 1.0
"""The processor time that one input may take."""
MEMORY_BYTES_MAX = 100 << 20
"""The memory that one input may ask the system for, used or not."""
INPUT_BYTES_MAX = 1 << 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stalled(BaseException):
    """An input took too long. Not an `Exception`: no handler may survive it."""


def _unchanged(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """Something that reads what comes from outside."""

    samples: Callable[[], list[bytes]]
    """Inputs that are right; read without limits first, so that what is made once is there."""
    read: Callable[[bytes], None]
    seal: Callable[[bytes], bytes] = _unchanged
    """Makes the checksums of a changed input right, so that it gets behind them."""
    errors: tuple[type[Exception], ...] = (QuiverError,)
    """What it may raise."""


def trouble(target: Target, data: bytes) -> str:
    """What is wrong with how a target takes this; empty if nothing is."""
    began = time.process_time()
    try:
        with _limits():
            target.read(data)
    except target.errors as error:
        # A refusal that was made of an allocation that failed still tried to allocate.
        if _has_memory_error(error):
            return traceback.format_exc()
    except (Exception, Stalled):
        return traceback.format_exc()
    took = time.process_time() - began
    return f"it took {took:.1f} s" if took > SECONDS_MAX else ""


def _has_memory_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _limits() -> Iterator[None]:
    """Raise `Stalled` or `MemoryError` where the limits are passed. Only in the main thread."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + MEMORY_BYTES_MAX, hard))
    before = signal.signal(signal.SIGVTALRM, _stall)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123  (half the price)
        return int(file.read().split(maxsplit=1)[0]) * _PAGE_BYTES


def _stall(*_: object) -> None:
    raise Stalled(f"more than {SECONDS_MAX:g} s of processor time")
