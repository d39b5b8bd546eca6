"""A transport without brokers: time passes only when a caller sleeps."""

from collections.abc import Sequence
from typing import NoReturn

from quivermq.client.transport import Connection
from quivermq.errors import ConnectionFailed


class VirtualTransport:
    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    async def connection(self, address: str, deadline: float) -> Connection:
        raise ConnectionFailed(f"{address}: nothing is there")

    def release(self, connection: Connection) -> None: ...

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        self.time = max(self.time, deadline)

    def now(self) -> float:
        return self.time

    def limiter(self, places: int) -> NoReturn:
        raise NotImplementedError

    async def close(self) -> None: ...
