"""Says for which request, of which connection, the present task works: for records of the log.

A door whose requests run in tasks of its own notes it (`working_on`), and the note ends with the
request: a task that was started by it and lives on works for itself from then on. The service,
which has a task for each request anyway, is asked only when a record is written
(`TaskTable`). Nothing is formatted before that.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from secrets import token_hex
from typing import Any, Final, Protocol
from weakref import WeakSet

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


class TaskTable(Protocol):
    """Knows the requests that tasks work on."""

    def work_of(self, task: "asyncio.Task[Any]") -> Work | None: ...


_tables: WeakSet[TaskTable] = WeakSet()


def add_table(table: TaskTable) -> None:
    """Ask this too."""
    _tables.add(table)


@contextmanager
def working_on(request_id: str, connection: str) -> Iterator[None]:
    """Work for a request in this block, and in the tasks that it starts until it ends."""
    work = Work(request_id, connection)
    before = _work.set(work)
    try:
        yield
    finally:
        work.is_over = True
        _work.reset(before)


def current_work() -> Work | None:
    """The request that this task works for; None: it works for itself."""
    work = _work.get()
    if work is not None and not work.is_over:
        return work
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    if task is None:
        return None
    return next((found for table in list(_tables) if (found := table.work_of(task))), None)


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
