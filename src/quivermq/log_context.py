"""Says for which request, of which connection, the present task works: for records of the log.

A transport notes it when a request begins and ends it with the request: a task that was started by
the request and lives on works for itself from then on. Nothing is formatted before a record is
written.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from secrets import token_hex
from typing import Final

_GIVEN: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")
"""The ids that clients may choose: nothing that has a meaning in a header, a log or a terminal."""
_START: Final = token_hex(4)
_numbers: Final = count(1)


class Work:
    """One request that is being worked on."""

    __slots__ = ("connection", "is_over", "request_id")

    def __init__(self, request_id: int | str, connection: str) -> None:
        self.request_id = request_id
        self.connection = connection
        self.is_over = False


_work: ContextVar[Work | None] = ContextVar("work", default=None)


def begin_work(request_id: int | str, connection: str) -> Work | None:
    """Note it for this task and its children, unless it works for a request already. The caller
    ends it by `is_over`."""
    current = _work.get()
    if current is not None and not current.is_over:
        return None
    work = Work(request_id, connection)
    _work.set(work)
    return work


@contextmanager
def working_on(request_id: str, connection: str) -> Iterator[None]:
    """The same, ended with the block."""
    work = begin_work(request_id, connection)
    try:
        yield
    finally:
        if work is not None:
            work.is_over = True


def current_work() -> Work | None:
    """The request that this task works for; None: it works for itself."""
    work = _work.get()
    return None if work is None or work.is_over else work


def current_request_id() -> str:
    """The id of that request; "" if there is none."""
    work = current_work()
    return "" if work is None else str(work.request_id)


def choose_request_id(given: str) -> str:
    """The id that a client gave its request, if it is harmless; else a new one."""
    return given if _GIVEN.fullmatch(given) else f"{_START}-{next(_numbers)}"


def new_connection(door: str) -> str:
    """The name of a connection in the log."""
    return f"{door}-{next(_numbers)}"
