"""What to subscribe to."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from quivermq.client.core import Core
from quivermq.client.infos import check_number
from quivermq.client.leases import Ruling
from quivermq.client.polling import Order
from quivermq.errors import InvalidRequest

PREFETCH_MAX: Final = 100_000
CONCURRENCY_MAX: Final = 1_000


class Wish(NamedTuple):
    """What to subscribe to."""

    topic: str
    group: str
    prefetch: int
    visibility: float
    ack: str
    concurrency: int
    start: str

    def check(self, handler: object) -> None:
        """Raise `InvalidRequest` unless it can be done."""
        for name, most in (("prefetch", PREFETCH_MAX), ("concurrency", CONCURRENCY_MAX)):
            check_number(name, getattr(self, name), least=1, whole=True)
            if getattr(self, name) > most:
                raise InvalidRequest(f"{name} must be at most {most:,}: {getattr(self, name)!r}")
        if handler is not None and not callable(handler):
            raise InvalidRequest(
                f"a handler is called with a message: {handler!r} cannot be called"
            )

    def order(self, core: Core, settle: Callable[[Sequence[Ruling]], Any]) -> Order:
        """The same as it is polled, checked."""
        return core.consuming.order(
            self.topic, self.group, self.prefetch, self.visibility, self.ack, self.start, settle
        )

    def __str__(self) -> str:
        return f"subscription of group {self.group!r} to {self.topic!r}"
