"""Lets the client's logic run inside a broker: its requests go to the broker's `Service`.

A transport that translates another protocol (HTTP, say) needs all that a client knows: polls over
several leaders, batches, retries. It gets that from the client's `Core` over this way, instead of
writing it again. Whatever broker is asked for, the service of this one answers: it forwards what
others have to answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from quivermq.batches import Frame, Limits
from quivermq.client import AsyncioLimiter, Connection, Reply
from quivermq.errors import BrokenInvariant, ConnectionFailed, Timeout
from quivermq.node import Service
from quivermq.transports.signing_in import current_caller
from quivermq.wire import Packet, proto

_NOTHING = memoryview(b"")


class ServiceConnection:
    """The one connection; it is open as long as the broker runs."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.address = ""
        self.welcome = proto.Welcome(
            message_bytes_max=limits.message_bytes_max, batch_bytes_max=limits.batch_bytes_max
        )
        self.is_open = True
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def post(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> int:
        """Submit a request; `take` fetches the answer."""
        del deadline  # the service takes a request at once
        self._last_id = number = self._last_id + 1
        own = proto.Request()
        # The caller may use its request again while the service still works on it.
        own.CopyFrom(request)
        own.id = number
        # Who asks cannot follow leaders: it only knows this service.
        own.direct = False
        self._waiting[number] = self._loop.create_future()
        work = self._service.submit(own, list(frames), self._reply, caller=current_caller())
        if isinstance(work, asyncio.Task):
            self._tasks[number] = work
            work.add_done_callback(partial(self._ended, number))
        return number

    def _reply(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        answer = self._waiting.get(response.id)
        if response.WhichOneof("body") == "error":
            self._service.take_back(response)
        if answer is not None and not answer.done():
            batches = b"".join(
                part for frame in frames for part in (frame.packed_header, frame.body)
            )
            answer.set_result(Reply(response, Packet(_NOTHING, memoryview(batches))))

    def _ended(self, number: int, _: asyncio.Task[None]) -> None:
        """A task that was cancelled has made no reply: the broker stops."""
        self._tasks.pop(number, None)
        answer = self._waiting.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionFailed("this broker is stopping; ask another"))
            answer.exception()  # seen: its caller may never take it

    async def take(self, request_id: int, deadline: float) -> Reply:
        """The answer to a posted request."""
        answer = self._waiting[request_id]
        timer = self._loop.call_at(deadline, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self.forget(request_id)

    def is_answered(self, request_id: int) -> bool:
        """`take` would return at once."""
        answer = self._waiting.get(request_id)
        return answer is None or answer.done()

    def when_answered(self, request_id: int, call: Callable[[], object]) -> None:
        """Call it when `take` would return at once."""
        self._waiting[request_id].add_done_callback(lambda _: call())

    def forget(self, request_id: int) -> None:
        """This answer will not be taken: the service need not work on it."""
        answer = self._waiting.pop(request_id, None)
        if answer is not None:
            answer.cancel()
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()

    cancel = forget


def _expire(answer: "asyncio.Future[Reply]") -> None:
    if not answer.done():
        answer.set_exception(Timeout("the broker did not answer in time"))


class ServiceTransport:
    """The way of a client that lives in the broker."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connection = ServiceConnection(service, limits)

    async def connection(self, address: str, deadline: float) -> ServiceConnection:  # noqa: ARG002
        """The same one for all addresses."""
        return self._connection

    def release(self, connection: Connection) -> None:
        """Nothing to do: it is shared."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        """Wait until one of these requests is answered."""
        answered = asyncio.Event()
        for connection, request_id in posted:
            if not isinstance(connection, ServiceConnection):
                raise BrokenInvariant("a request was posted at a transport that did not open it")
            if connection.is_answered(request_id):
                return
            connection.when_answered(request_id, answered.set)
        timer = self._loop.call_at(deadline, answered.set)
        try:
            await answered.wait()
        finally:
            timer.cancel()

    def limiter(self, places: int) -> AsyncioLimiter:
        """Where at most `places` are in at a time."""
        return AsyncioLimiter(places)

    async def close(self) -> None:
        """Nothing to do: the service is the broker's."""
