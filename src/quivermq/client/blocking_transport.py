"""The blocking transport: plain sockets, lent to one caller at a time.

A connection is never shared by two threads: a call takes one from those that are idle, or opens one
more. So a quick call never waits behind a long poll, no thread has to wake another, and
a call costs one write and one read. Within the call requests may be pipelined.

Its coroutines never suspend: see `transport.run`.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from selectors import EVENT_READ, DefaultSelector
from struct import pack
from typing import Final, NoReturn, TypeVar, cast
from weakref import WeakSet

from quivermq.addresses import split_address
from quivermq.batches import Buffer, Frame
from quivermq.busy_poll import WINDOW_S, LookPolicy, usable_cores
from quivermq.client import fork_safety
from quivermq.client.connect_options import FIRST_ID, HELLO_ID, hello, receiver, welcome_of
from quivermq.client.transport import Connection, Reply
from quivermq.errors import (
    BrokenInvariant,
    ConnectionFailed,
    InvalidRequest,
    QuiverError,
    Timeout,
)
from quivermq.tls import explain
from quivermq.wire import id_field, packet, parse_response, plain_fields, plain_packet, proto

T = TypeVar("T")

IDLE_MAX: Final = 16
"""Connections to one broker that are kept for later."""

# An idle connection that was used so recently is taken to be alive without asking the kernel.
_FRESH_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 1.0


_look_place: Final = threading.Lock()


class BlockingConnection:
    """One socket, past its handshake. After any failure it is closed."""

    __slots__ = (
        "__weakref__", "_answers", "_asks", "_last_id", "_limit_seconds", "_owed", "_plain_asks",
        "_receiver", "_socket", "_tls", "address", "is_open", "used_at", "welcome",
    )  # fmt: skip

    def __init__(self, address: str, sock: socket.socket, *, busy_poll: bool = False) -> None:
        """`busy_poll`: look for answers that come at once, which TLS does not allow."""
        looks = busy_poll and not isinstance(sock, ssl.SSLSocket)
        # Of some requests, polls above all, the answers may be long in coming.
        self._plain_asks = LookPolicy() if looks else None
        self._asks = LookPolicy() if looks else None
        self.address = address
        self.welcome = proto.Welcome()
        self.is_open = True
        self.used_at = 0.0
        self._socket = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._receiver = receiver()
        self._limit_seconds = 0.0
        self._last_id = FIRST_ID
        self._owed: set[int] = set()
        self._answers: dict[int, Reply] = {}

    def greet(self, token: str | None, client_name: str, deadline: float) -> None:
        """Say hello, and wait for the answer."""
        self._owed.add(HELLO_ID)
        self._send(packet(hello(token, client_name).SerializeToString()), deadline)
        response = self._await_answer(HELLO_ID, deadline).response
        self.welcome = welcome_of(response, self.address, self._receiver)
        self._owed.discard(HELLO_ID)

    def ask(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> Reply:
        """Send a request, and return its answer: `post` and `take` in one step."""
        self._last_id = request_id = self._last_id + 1
        request.id = request_id
        self._owed.add(request_id)
        self._send(packet(request.SerializeToString(), frames), deadline)
        reply = self._await_answer(request_id, deadline, self._asks)
        self._owed.discard(request_id)
        return reply

    def ask_plain(
        self, fields: bytes, frame: bytes, deadline: float, read: Callable[[bytes], T | None]
    ) -> T | Reply:
        """Send a request with these fields, but for its id, and at most one small batch. Returns
        what `read` makes of the fields of the answer; the answer itself, if that is None."""
        self._last_id = request_id = self._last_id + 1
        field = id_field(request_id)
        sent = plain_packet(field, fields, frame)
        sock, receiver = self._socket, self._receiver
        self._owed.add(request_id)
        try:
            self._limit(deadline)
            sock.sendall(sent)
            self._limit(deadline)
            buffer = receiver.get_buffer()
            count = self._look(self._plain_asks, buffer) or sock.recv_into(buffer)
            arrived = receiver.peek(count)
            answered = None if arrived is None else plain_fields(arrived, field)
            found = None if answered is None else read(answered)
            if found is None:
                self._keep(count)
        except BaseException as error:
            self._fail(error)
        answer = self._await_answer(request_id, deadline) if found is None else found
        self._owed.discard(request_id)
        return answer

    def _look(self, policy: LookPolicy | None, buffer: Buffer) -> int:
        """Look for an answer that comes at once, instead of sleeping until it comes: how many bytes
        are there; 0: none, or there is no looking."""
        # One thread of the process at a time: others may have work to do.
        if policy is None or not policy.may_look() or not _look_place.acquire(blocking=False):
            return 0
        receive = self._socket.recv_into
        try:
            until = time.perf_counter() + WINDOW_S
            while time.perf_counter() < until:
                with suppress(BlockingIOError):
                    count = receive(buffer, 0, socket.MSG_DONTWAIT)
                    policy.paid()
                    return count
        finally:
            _look_place.release()
        policy.in_vain()
        return 0

    async def post(self, request: proto.Request, frames: Sequence[Frame], deadline: float) -> int:
        """Send a request; `take` fetches the answer."""
        self._last_id = request_id = self._last_id + 1
        request.id = request_id
        self._owed.add(request_id)
        self._send(packet(request.SerializeToString(), frames), deadline)
        return request_id

    async def take(self, request_id: int, deadline: float) -> Reply:
        """The answer to a posted request; answers to others that come first are kept for them."""
        reply = self._await_answer(request_id, deadline)
        self._owed.discard(request_id)
        return reply

    def is_answered(self, request_id: int) -> bool:
        """`take` would not wait."""
        return request_id in self._answers or not self.is_open

    def forget(self, request_id: int) -> None:
        """This answer will not be taken. While it is owed, the connection is not lent out
        again; see `is_quiet`."""
        if self._answers.pop(request_id, None) is not None:
            self._owed.discard(request_id)

    def cancel(self, request_id: int) -> None:
        """This answer will not be taken; if it comes all the same, it is dropped."""
        self._answers.pop(request_id, None)
        if request_id not in self._owed or not self.is_open:
            return
        self._owed.discard(request_id)
        request = proto.Request()
        request.cancel.id = request_id
        # A connection that cannot take so little is of no use: it is closed by this.
        with suppress(ConnectionFailed, Timeout):
            self._send(packet(request.SerializeToString()), time.monotonic() + _CANCEL_SECONDS)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def receive(self) -> None:
        """Keep what has arrived, without waiting for more. A failure closes the connection."""
        sock = self._socket
        # So that the next operation sets its own limit.
        self._limit_seconds = 0.0
        try:
            sock.settimeout(0)
            while self.is_open:
                self._keep(sock.recv_into(self._receiver.get_buffer()))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # that was all
        except (OSError, QuiverError):
            self.close()
        finally:
            if self.is_open:
                sock.settimeout(None)

    @property
    def is_quiet(self) -> bool:
        """Nothing is owed: the next caller finds it as after the handshake."""
        return self.is_open and not self._owed

    def is_alive(self, now: float) -> bool:
        """False once the broker has closed it."""
        if now - self.used_at < _FRESH_SECONDS:
            return self.is_open
        if self._tls:
            # There is no looking ahead into TLS: whatever has arrived counts.
            return self.is_open and not self._has_arrived()
        try:
            # Nothing is owed, so anything to read is the end, or nonsense.
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self.is_open
        except OSError:
            return False
        return False

    def _has_arrived(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """Wake the thread that waits for an answer: there will be none."""
        with suppress(OSError):  # closed already, on either side
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; a forked child may, without harm to its parent's connection."""
        self.is_open = False
        self._socket.close()

    def _await_answer(
        self, request_id: int, deadline: float, policy: LookPolicy | None = None
    ) -> Reply:
        """With a policy the answer may come at once."""
        answers = self._answers
        try:
            while request_id not in answers:
                if not self.is_open:
                    raise ConnectionFailed(f"{self.address} closed the connection")
                self._limit(deadline)
                buffer = self._receiver.get_buffer()
                self._keep(self._look(policy, buffer) or self._socket.recv_into(buffer))
        except BaseException as error:
            # Also an interrupt by the user: what the socket gives next would be half an answer.
            self._fail(error)
        return answers.pop(request_id)

    def _keep(self, count: int) -> None:
        """So many bytes were received: keep the answers in them that are owed."""
        if not count:
            raise ConnectionFailed(f"{self.address} closed the connection")
        for packed in self._receiver.received(count):
            response = parse_response(packed.envelope)
            # A response without an id is the broker's last, or its refusal of a hello.
            request_id = response.id or HELLO_ID
            if request_id in self._owed:
                self._answers[request_id] = Reply(response, packed)
            elif not response.id:
                raise ConnectionFailed(f"{self.address}: {response.error.message}")

    def _send(self, buffers: list[Buffer], deadline: float) -> None:
        try:
            self._limit(deadline)
            if len(buffers) == 1 or self._tls:
                for buffer in buffers:
                    self._socket.sendall(buffer)
            else:
                self._send_all(buffers)
        except BaseException as error:
            self._fail(error)

    def _send_all(self, buffers: list[Buffer]) -> None:
        left = sum(map(len, buffers))
        while left:
            sent = self._socket.sendmsg(buffers)
            left -= sent
            while left and sent >= len(buffers[0]):
                sent -= len(buffers.pop(0))
            if left and sent:
                buffers[0] = memoryview(buffers[0])[sent:]

    def _limit(self, deadline: float) -> None:
        """Let the next operation on the socket take until the deadline, roughly."""
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise Timeout(f"{self.address} did not answer in time")
        if 0.8 * self._limit_seconds <= seconds <= 1.25 * self._limit_seconds:
            return
        self._limit_seconds = seconds
        if self._tls:
            self._socket.settimeout(seconds)
            return
        # The kernel's own timeout: Python's would ask it to poll before every single read.
        limit = pack("@ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _fail(self, error: BaseException) -> NoReturn:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            raise Timeout(f"{self.address} did not answer in time") from error
        if isinstance(error, OSError):
            raise ConnectionFailed(f"{self.address}: {explain(error)}") from error
        if isinstance(error, QuiverError) and not isinstance(error, ConnectionFailed | Timeout):
            raise ConnectionFailed(f"{self.address} sent nonsense: {error}") from error
        raise error


class BlockingLimiter:
    """Threads wait for a place."""

    def __init__(self, places: int) -> None:
        # A semaphore would do, at ten times the price: it is Python, and this is C.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(places):
            self._free.put(None)

    async def enter(self, deadline: float) -> bool:
        """Wait for a place; False if none was free in time."""
        return self.try_enter() or self._wait(max(0.0, deadline - time.monotonic()))

    def try_enter(self) -> bool:
        """Take a place, if one is free."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    def _wait(self, seconds: float) -> bool:
        try:
            self._free.get(timeout=seconds)
        except Empty:
            return False
        return True

    def leave(self) -> None:
        """Make the place free."""
        self._free.put(None)


class BlockingTransport:
    """Opens connections, and keeps idle ones. Any thread may use it."""

    def __init__(
        self,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        client_name: str,
        busy_poll: bool = False,
    ) -> None:
        """`busy_poll`: look for answers that come at once."""
        self._busy_poll = busy_poll and usable_cores() >= 2
        self._token = token
        self._tls = tls
        self._client_name = client_name
        self.now = time.monotonic
        self._is_closed = False
        # Lists, because taking from one and putting back are single steps that no thread sees half.
        self._idle: dict[str, list[BlockingConnection]] = {}
        self._all: WeakSet[BlockingConnection] = WeakSet()
        fork_safety.watch(self)

    async def connection(self, address: str, deadline: float) -> BlockingConnection:
        """An idle connection, the last used first; or one more."""
        return self.take_idle(address) or self._open(address, deadline)

    def take_idle(self, address: str) -> BlockingConnection | None:
        """The idle connection that was used last; None: there is none."""
        idle = self._idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:
                break  # another thread was faster
            if connection.is_alive(time.monotonic()):
                return connection
            connection.close()
        return None

    def release(self, connection: Connection) -> None:
        """Keep it for later, if it is as good as new."""
        if not isinstance(connection, BlockingConnection):
            raise BrokenInvariant("a connection was released at a transport that did not open it")
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle.setdefault(connection.address, [])
        if self._is_closed or not connection.is_quiet or len(idle) >= IDLE_MAX:
            connection.close()
            return
        connection.used_at = time.monotonic()
        idle.append(connection)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251  (blocking is what this transport is for)

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        """Wait until one of these requests is answered."""
        with DefaultSelector() as selector:
            # Several requests may be under way on one connection.
            for connection in dict.fromkeys(connection for connection, _ in posted):
                if isinstance(connection, BlockingConnection) and connection.is_open:
                    # What TLS has deciphered already shows on no socket.
                    connection.receive()
                    if connection.is_open:
                        selector.register(connection, EVENT_READ)
            while not any(connection.is_answered(number) for connection, number in posted):
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    return
                for key, _ in selector.select(seconds):
                    found = cast("BlockingConnection", key.fileobj)
                    found.receive()
                    if not found.is_open:
                        selector.unregister(found)

    def limiter(self, places: int) -> BlockingLimiter:
        """Where at most `places` are in at a time."""
        return BlockingLimiter(places)

    async def close(self) -> None:
        """Close idle connections, and shut down lent ones: their users notice, and close them."""
        self._is_closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()
        for connection in list(self._all):
            connection.end()

    def after_fork(self) -> None:
        """The sockets belong to the parent. A call that still has one finds it closed, and opens
        another as after any lost connection."""
        for connection in list(self._all):
            connection.close()
        self._idle = {}

    def _open(self, address: str, deadline: float) -> BlockingConnection:
        if self._is_closed:
            raise InvalidRequest("the client is closed: connect again")
        sock = self._socket(address, deadline)
        connection = BlockingConnection(address, sock, busy_poll=self._busy_poll)
        self._all.add(connection)
        try:
            connection.greet(self._token, self._client_name, deadline)
        except Timeout as error:
            raise ConnectionFailed(f"{address}: no answer to connecting in time") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _socket(self, address: str, deadline: float) -> socket.socket:
        host, port = split_address(address)
        sock = None
        try:
            seconds = max(0.001, deadline - time.monotonic())
            sock = socket.create_connection((host, port), seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(sock, server_hostname=host)
            sock.settimeout(None)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise ConnectionFailed(f"{address}: {_reason(error)}") from error
        return sock


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer to connecting in time"
    return explain(error)
