"""Counts what a backup or a restore copies, and keeps it within a rate."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quivermq.errors import InvalidRequest
from quivermq.token_bucket import Overdraft


class CopyProgress(NamedTuple):
    """A moment of a backup or restore, for who watches it."""

    stage: str
    """The work under way, for people."""
    messages: int
    messages_total: int
    bytes: int
    """Of messages that were copied so far."""


@dataclass(slots=True)
class CopyThrottle:
    """Counts what is copied, reports it, and waits where a limit on bytes a second says so."""

    report: Callable[[CopyProgress], None] = lambda _: None
    bytes_per_second: int = 0
    """0: no limit."""
    stage: str = ""
    messages: int = 0
    messages_total: int = 0
    bytes: int = 0
    _account: Overdraft | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_second < 0:
            raise InvalidRequest(f"bytes a second cannot be {self.bytes_per_second}")
        if self.bytes_per_second:
            self._account = Overdraft(self.bytes_per_second, 0, time.monotonic())

    def begin(self, stage: str, messages_total: int = 0) -> None:
        """The next stage begins."""
        self.stage, self.messages, self.messages_total = stage, 0, messages_total
        self._tell()

    def advance(self, messages: int, size: int) -> None:
        """So much was copied."""
        self.messages += messages
        self.bytes += size
        self._tell()
        if self._account is not None:
            now_s = time.monotonic()
            self._account.take(size, now_s)
            time.sleep(self._account.owed_s(now_s))

    def _tell(self) -> None:
        self.report(CopyProgress(self.stage, self.messages, self.messages_total, self.bytes))
