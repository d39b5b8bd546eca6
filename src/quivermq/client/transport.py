"""The interface through which the client's logic reaches brokers, waits and tells time.

All logic of the client is written once, as coroutines over this interface. There are two
transports:

    AsyncioTransport     connections on an event loop; a coroutine that waits lets others run
    BlockingTransport    plain blocking sockets; nothing ever suspends, so `run` takes a coroutine
    from
                    its start to its end in one go, with no event loop and no thread

Times are seconds of a clock that never goes back; a deadline is a point on it.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from quivermq.batches import Frame
from quivermq.errors import BrokenInvariant
from quivermq.wire import Packet, proto

T = TypeVar("T")


class Reply(NamedTuple):
    """A broker's answer: the response, and the packet that its batches are in."""

    response: proto.Response
    packet: Packet


class Connection(Protocol):
    """A connection to one broker, past its handshake. Requests on it are pipelined."""

    address: str
    welcome: proto.Welcome
    is_open: bool

    async def post(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> int:
        """Send a request under an id of its own, and return that id: `take` fetches the answer.

        Raises `ConnectionFailed`; then it is unknown whether the request arrived.
        """

    async def take(self, request_id: int, deadline: float) -> Reply:
        """The answer to a posted request; `ConnectionFailed` or `Timeout` if there is none."""

    def is_answered(self, request_id: int) -> bool:
        """`take` would not wait."""

    def forget(self, request_id: int) -> None:
        """This answer will not be taken."""

    def cancel(self, request_id: int) -> None:
        """This answer will not be taken: tell the broker so. The connection stays good."""


class Limiter(Protocol):
    """Lets in only so many at a time."""

    async def enter(self, deadline: float) -> bool:
        """Wait for a place; False if none was free in time."""

    def leave(self) -> None:
        """Make the place free."""


class Transport(Protocol):
    """A way to the brokers."""

    async def connection(self, address: str, deadline: float) -> Connection:
        """A connection to use until it is released; raises `ConnectionFailed`, or what the broker
        refused the handshake with."""

    def release(self, connection: Connection) -> None:
        """Done with it. A blocking transport lends a connection to one user at a time."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        """Wait until one of these requests is answered, or its connection lost; or the deadline."""

    @property
    def now(self) -> Callable[[], float]:
        """The time, when called."""

    def limiter(self, places: int) -> Limiter:
        """Where at most `places` are in at a time."""

    async def close(self) -> None:
        """Close every connection."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over a blocking transport, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what a coroutine returns
    coroutine.close()
    raise BrokenInvariant("a coroutine over a blocking transport was suspended")
