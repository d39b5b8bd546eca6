"""The asyncio transport: one connection to each broker, shared by everything on one event loop.

Small requests that are made in one turn of the loop leave in one write: of a hundred subscriptions,
and of one that acknowledges and polls (decision 0068).
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from quivermq.addresses import split_address
from quivermq.batches import Buffer, Frame
from quivermq.busy_poll import LoopPoll
from quivermq.client import fork_safety
from quivermq.client.connect_options import FIRST_ID, HELLO_ID, hello, receiver, welcome_of
from quivermq.client.transport import Connection, Reply, run
from quivermq.errors import BrokenInvariant, ConnectionFailed, InvalidRequest, QuiverError, Timeout
from quivermq.tls import explain
from quivermq.wire import (
    Packet,
    StallWatch,
    cut_id,
    id_field,
    packet,
    parse_response,
    plain_packet,
    proto,
)

T = TypeVar("T")

# Past this, `post` waits until the socket has taken some.
WRITE_BUFFER_BYTES: Final = 4 << 20

_loop_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPoll] = WeakKeyDictionary()
"""One for all connections of an event loop."""


def _loop_poll(loop: asyncio.AbstractEventLoop) -> LoopPoll:
    found = _loop_polls.get(loop)
    if found is None:
        found = _loop_polls[loop] = LoopPoll(loop)
    return found


class Proof(Protocol):
    """Proves to a broker that this is one as well, and that it is talking to one."""

    nonce: bytes

    def answer(self, response: proto.Response) -> proto.Prove:
        """The answer to the broker's challenge; raises if it is none."""
        ...


class AsyncioConnection(asyncio.BufferedProtocol):
    """One socket, past its handshake. A failure closes it, and every call that waits raises it."""

    def __init__(self, address: str, *, busy_poll: bool = False) -> None:
        self.address = address
        self.welcome = proto.Welcome()
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._polling = _loop_poll(self._loop) if busy_poll else None
        self._transport: asyncio.WriteTransport | None = None
        self._receiver = receiver()
        self._stall = StallWatch(self._receiver)
        self._last_id = FIRST_ID
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        """For a `Reply`, or what a reader makes of it."""
        self._readers: dict[int, Callable[[bytes], object]] = {}
        """For plain answers."""
        self._deadlines: dict[int, float] = {}
        """Of those that are taken."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all of them."""
        self._due = 0.0
        """When it fires: at the first deadline, or before."""
        self._gathered: list[Buffer] = []
        """Written at the end of this turn of the loop."""
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def greet(
        self, token: str | None, client_name: str, deadline: float, proof: "Proof | None" = None
    ) -> None:
        """Say hello, and wait for the answer."""
        request = hello(token, client_name)
        if proof is not None:
            request.hello.nonce = proof.nonce
        response = await self._say_first(request, deadline)
        if proof is not None and response.WhichOneof("body") != "error":
            prove = proof.answer(response)
            response = await self._say_first(proto.Request(id=HELLO_ID, prove=prove), deadline)
        self.welcome = welcome_of(response, self.address, self._receiver)

    async def _say_first(self, request: proto.Request, deadline: float) -> proto.Response:
        self._waiting[HELLO_ID] = self._loop.create_future()
        self._write(request, ())
        return (await self.take(HELLO_ID, deadline)).response

    async def post(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> int:
        """Send a request; `take` fetches the answer."""
        if not self._may_write.is_set():
            await self._room_to_write(deadline)
        return self._begin(request, frames)

    async def take(self, request_id: int, deadline: float) -> Reply:
        """The answer to a posted request."""
        answer: asyncio.Future[Reply] = self._waiting[request_id]
        self._watch(request_id, deadline)
        try:
            return await answer
        finally:
            self.forget(request_id)

    async def ask(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> Reply:
        """Send a request, and wait for the answer."""
        if not self._may_write.is_set():
            await self._room_to_write(deadline)
        return await self.take(self._begin(request, frames), deadline)

    @property
    def takes_more(self) -> bool:
        """A request would be written without waiting."""
        return self.is_open and self._may_write.is_set()

    async def ask_plain(
        self, fields: bytes, frame: bytes, deadline: float, read: Callable[[bytes], T | None]
    ) -> T | Reply:
        """Send a request with these fields, but for its id, and at most one small batch. Returns
        what `read` makes of the fields of the answer; the answer itself, if that is None."""
        request_id = self._next_id()
        self._readers[request_id] = read
        self._gather([plain_packet(id_field(request_id), fields, frame)])
        self.expect_answer()
        return await self.take(request_id, deadline)

    def expect_answer(self) -> None:
        """To what was just asked, or is about to be, an answer comes at once."""
        if self._polling is not None:
            self._polling.expect()

    def _begin(self, request: proto.Request, frames: Sequence[Frame]) -> int:
        request.id = request_id = self._next_id()
        self._write(request, frames)
        return request_id

    def _next_id(self) -> int:
        if not self.is_open:
            raise ConnectionFailed(f"{self.address} closed the connection")
        self._last_id += 1
        self._waiting[self._last_id] = self._loop.create_future()
        return self._last_id

    def forget(self, request_id: int) -> None:
        """This answer will not be taken: tell the broker, if it still works on it."""
        answer = self._waiting.pop(request_id, None)
        self._deadlines.pop(request_id, None)
        self._readers.pop(request_id, None)
        if answer is None:
            return
        if answer.cancel() or answer.cancelled() or isinstance(answer.exception(), Timeout):
            self._cancel_at_broker(request_id)

    cancel = forget

    def when_answered(self, request_id: int, call: Callable[[], object]) -> None:
        """Call it when `take` would return at once."""
        self._waiting[request_id].add_done_callback(lambda _: call())

    def is_answered(self, request_id: int) -> bool:
        """`take` would return at once."""
        answer = self._waiting.get(request_id)
        return answer is None or answer.done()

    def close(self) -> None:
        """Close the socket."""
        self._fail(ConnectionFailed(f"the connection to {self.address} was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # Not every loop's transports are subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio calls it so)
        """Called by the event loop."""
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop."""
        if self._polling is not None:
            self._polling.came()
        try:
            for packed in self._receiver.received(nbytes):
                if self._readers and self._read_plain(packed):
                    continue
                response = parse_response(packed.envelope)
                # A response without an id is the broker's last, or its refusal of a hello.
                answer = self._waiting.get(response.id or HELLO_ID)
                if answer is None and not response.id:
                    raise ConnectionFailed(response.error.message)
                if answer is not None and not answer.done():
                    answer.set_result(Reply(response, packed))
        except QuiverError as error:
            self._fail(ConnectionFailed(f"{self.address}: {error}"))

    def _read_plain(self, packed: Packet) -> bool:
        """Whether it is a plain answer to one who knows how to read it."""
        cut = cut_id(bytes(packed.envelope))
        if cut is None or (reader := self._readers.get(cut[0])) is None:
            return False
        found, answer = reader(cut[1]), self._waiting[cut[0]]
        if found is not None and not answer.done():
            answer.set_result(found)
        return found is not None

    def eof_received(self) -> bool:
        """Called by the event loop; False: close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        reason = "closed the connection" if exc is None else f"is lost: {_reason(exc)}"
        self._fail(ConnectionFailed(f"{self.address} {reason}"))

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._may_write.set()

    def _write(self, request: proto.Request, frames: Sequence[Frame]) -> None:
        if self._transport is None:
            raise BrokenInvariant("a request was written before the connection was made")
        buffers = packet(request.SerializeToString(), frames)
        if len(buffers) > 1:
            self._write_gathered()
            self._transport.writelines(buffers)
            return
        self._gather(buffers)

    def _gather(self, buffers: Sequence[Buffer]) -> None:
        if not self._gathered:
            self._loop.call_soon(self._write_gathered)
        self._gathered += buffers

    def _write_gathered(self) -> None:
        if self._gathered and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
        self._gathered = []

    def _cancel_at_broker(self, request_id: int) -> None:
        if self.is_open and self._may_write.is_set():
            request = proto.Request()
            request.cancel.id = request_id
            self._write(request, ())

    async def _room_to_write(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._may_write.wait()
        except TimeoutError as error:
            raise Timeout(f"{self.address} takes nothing more for now") from error

    def _watch(self, request_id: int, deadline: float) -> None:
        """This answer is waited for until then."""
        self._deadlines[request_id] = deadline
        if self._timer is None or deadline < self._due:
            self._set_timer(deadline)

    def _set_timer(self, due: float) -> None:
        # A timer for each request would cost more than its answer: nearly all of them come in time.
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        """Some deadline may be over."""
        self._timer = None
        late = [number for number, deadline in self._deadlines.items() if deadline <= self._due]
        for number in late:
            del self._deadlines[number]
            answer = self._waiting.get(number)
            if answer is not None and not answer.done():
                answer.set_exception(Timeout(f"{self.address} did not answer in time"))
        if late and self._stall.is_stalled(self._loop.time()):
            self._fail(ConnectionFailed(f"{self.address}: an answer does not arrive"))
        if self._deadlines and self.is_open:
            self._set_timer(min(self._deadlines.values()))

    def _fail(self, error: ConnectionFailed) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._may_write.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: its caller may never take it


class AsyncioLimiter:
    """Tasks wait for a place."""

    def __init__(self, places: int) -> None:
        self._semaphore = asyncio.Semaphore(places)

    def try_enter(self) -> bool:
        """Take a place, if one is free."""
        return not self._semaphore.locked() and run(self._semaphore.acquire())

    async def enter(self, deadline: float) -> bool:
        """Wait for a place; False if none was free in time."""
        if self.try_enter():
            return True
        try:
            async with asyncio.timeout_at(deadline):
                return await self._semaphore.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Make the place free."""
        self._semaphore.release()


class AsyncioTransport:
    """Opens connections on the running event loop, one to each broker."""

    def __init__(
        self,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        client_name: str,
        busy_poll: bool = False,
        prove: Callable[[], Proof] | None = None,
    ) -> None:
        """`busy_poll`: look for answers that come at once. `prove` makes the proof for one
        connection, if this is a broker."""
        self._busy_poll = busy_poll
        self._token = token
        self._prove = prove
        self.tls = tls
        """Of connections that are opened from here on."""
        self._client_name = client_name
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._is_closed = False
        self._is_forked = False
        self._connections: dict[str, AsyncioConnection] = {}
        self._opening: dict[str, asyncio.Task[AsyncioConnection]] = {}
        fork_safety.watch(self)

    def open_connection(self, address: str) -> AsyncioConnection | None:
        """The connection to this broker, if it is open."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    async def connection(self, address: str, deadline: float) -> AsyncioConnection:
        """The connection to this broker; opened if there is none."""
        connection = self.open_connection(address)
        if connection is not None:
            return connection
        if self._is_forked:
            raise InvalidRequest(
                "this client was made before the process was forked: connect in the child"
            )
        if self._is_closed:
            raise InvalidRequest("the client is closed: connect again")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._loop.create_task(self._open(address, deadline))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._keep_open(address, task))
        # Shielded: others may wait for the same connection.
        return await asyncio.shield(opening)

    def release(self, connection: Connection) -> None:
        """Nothing to do: it is shared."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        """Wait until one of these requests is answered."""
        await first_answered(posted, deadline)

    def limiter(self, places: int) -> AsyncioLimiter:
        """Where at most `places` are in at a time."""
        return AsyncioLimiter(places)

    async def close(self) -> None:
        """Close every connection, and wait until the sockets are gone."""
        self._is_closed = True
        for opening in list(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
        # Transports close their sockets one turn of the loop later.
        await asyncio.sleep(0)

    def after_fork(self) -> None:
        """The event loop is the parent's."""
        self._is_forked = True
        self._connections = {}

    def _keep_open(self, address: str, opening: "asyncio.Task[AsyncioConnection]") -> None:
        del self._opening[address]
        if not opening.cancelled() and opening.exception() is None:
            self._connections[address] = opening.result()

    async def _open(self, address: str, deadline: float) -> AsyncioConnection:
        host, port = split_address(address)
        connection = AsyncioConnection(address, busy_poll=self._busy_poll)
        try:
            async with asyncio.timeout_at(deadline):
                await self._loop.create_connection(lambda: connection, host, port, ssl=self.tls)
            proof = self._prove() if self._prove is not None else None
            await connection.greet(self._token, self._client_name, deadline, proof)
        except (TimeoutError, Timeout) as error:
            connection.close()
            raise ConnectionFailed(f"{address}: no answer to connecting in time") from error
        except OSError as error:
            raise ConnectionFailed(f"{address}: {explain(error)}") from error
        except BaseException:
            connection.close()
            raise
        return connection


def _reason(error: Exception) -> str:
    return explain(error) if isinstance(error, OSError) else str(error)


async def first_answered(posted: Sequence[tuple[Connection, int]], deadline: float) -> None:
    """Wait until one of these requests is answered, or its connection lost; or the deadline."""
    answered = asyncio.Event()
    for connection, request_id in posted:
        if not isinstance(connection, AsyncioConnection):
            raise BrokenInvariant("a request was posted at a transport that did not open it")
        if connection.is_answered(request_id):
            return
        connection.when_answered(request_id, answered.set)
    timer = asyncio.get_running_loop().call_at(deadline, answered.set)
    try:
        await answered.wait()
    finally:
        timer.cancel()
