"""The simulated network: connections between processes, which carry bytes late, or never.

As TCP does it: bytes arrive in order and once, or the connection is lost. Loss and reordering of
packets show as delays. A link that is cut holds back what is sent over it, in that direction, until
it is restored; a host that ends in the middle resets its connections, or says nothing at all if
its power is gone. A link may also flip bits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from quivermq.batches import Buffer
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import US_PER_MS, VirtualTime

if TYPE_CHECKING:
    from quivermq.testing.virtual.process import Process

Link = tuple[str, str]
"""From a host to a host."""

_SOCKET_BYTES: Final = 128 << 10
"""The bytes that the system takes from a writer before it has to wait."""
_HIGH_BYTES: Final = 64 << 10
_FIRST_PORT: Final = 40_000
_SAYING_US: Final = 50
"""The time until a writer knows that the other end has read something."""
_GIVEN_UP_MS: Final = 20_000
"""A host gives up a connection whose other end acknowledges nothing for so long."""


@dataclass(slots=True)
class Weather:
    """The delays, losses and wrong bits of all links."""

    delay_ms: tuple[float, float] = (0.05, 0.6)
    loss: float = 0.0
    """The share of writes that have to be sent again, which takes a while."""
    flips: float = 0.0
    """The share of writes that arrive with a wrong bit, which no checksum of TCP noticed."""


class VirtualNetwork:
    """All listeners and connections."""

    def __init__(self, time: VirtualTime, dice: Random, story: Story) -> None:
        self.time = time
        self.dice = dice
        self.story = story
        self.weather = Weather()
        self.sound_ports: frozenset[int] = frozenset()
        """Of listeners without checksums of their own: no bit is flipped on the way there."""
        self._listeners: dict[tuple[str, int], VirtualListener] = {}
        self._connections: dict[VirtualConnection, None] = {}
        self._cut: frozenset[Link] = frozenset()
        self._ports = _FIRST_PORT
        self._off: set[str] = set()

    # Processes.

    def listen(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> "VirtualListener":
        """Accept connections at a port of the process's host."""
        place = process.machine.host, port or self._next_port()
        if place in self._listeners:
            raise OSError(f"{place} is in use")
        listener = VirtualListener(self, process, factory, place)
        self._listeners[place] = listener
        return listener

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    def close_listener(self, listener: "VirtualListener") -> None:
        if self._listeners.get(listener.place) is listener:
            del self._listeners[listener.place]

    async def dial(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect. Waits for as long as the caller likes while the link is cut."""
        near = process.machine.host
        while not self.passes(near, host) or not self.passes(host, near):  # noqa: ASYNC110
            await asyncio.sleep(self.dice.uniform(0.2, 1.0))
        arrived: asyncio.Future[VirtualTransport | None] = process.loop.create_future()
        self.time.after_ms(
            self.delay_ms(), lambda: self._accept(process, factory, (host, port), arrived)
        )
        transport = await arrived
        if transport is None:
            raise ConnectionRefusedError(111, f"no process listens at {host}:{port}")
        return transport, transport.protocol

    def _accept(
        self,
        process: "Process",
        factory: Callable[[], asyncio.BaseProtocol],
        place: tuple[str, int],
        arrived: "asyncio.Future[VirtualTransport | None]",
    ) -> None:
        """A call has come to a host: its answer takes as long again."""
        listener = self._listeners.get(place)
        if listener is not None:
            connection = VirtualConnection(self, process, listener.process)
            is_sound = place[1] in self.sound_ports
            connection.near.is_sound = connection.far.is_sound = is_sound
            self._connections[connection] = None
            listener.process.loop.call_soon(connection.far.begin, listener.factory)
            answer = partial(self._connected, connection, factory, arrived)
        elif self.is_off(place[0]):
            return
        else:
            answer = partial(_refused, arrived)
        self.time.after_ms(self.delay_ms(), partial(process.call, answer))

    def _connected(
        self,
        connection: "VirtualConnection",
        factory: Callable[[], asyncio.BaseProtocol],
        arrived: "asyncio.Future[VirtualTransport | None]",
    ) -> None:
        if arrived.done():
            connection.near.abort()
        else:
            connection.near.begin(factory)
            arrived.set_result(connection.near)

    # Hosts.

    def host_on(self, host: str) -> None:
        """A host has power again."""
        self._off.discard(host)

    def is_off(self, host: str) -> bool:
        return host in self._off

    def host_ended(self, host: str, *, is_told: bool) -> None:
        """A process is gone; its system resets the connections, unless that is gone as well."""
        for place in [place for place in self._listeners if place[0] == host]:
            del self._listeners[place]
        if not is_told:
            self._off.add(host)
        for connection in list(self._connections):
            for end in (connection.near, connection.far):
                if end.host == host:
                    end.vanish(is_told=is_told)

    # Links.

    def passes(self, sender: str, to: str) -> bool:
        return (sender, to) not in self._cut

    def cut(self, links: Iterable[Link]) -> None:
        """Let nothing pass over these links, and everything over all others."""
        restored = self._cut - frozenset(links)
        self._cut = frozenset(links)
        for connection in list(self._connections):
            for end in (connection.near, connection.far):
                if (end.host, end.other.host) in restored:
                    end.release()

    def heal(self) -> None:
        self.weather = Weather()
        self.cut(())

    def delay_ms(self) -> float:
        weather = self.weather
        shortest_ms, longest_ms = weather.delay_ms
        delay_ms = shortest_ms + (longest_ms - shortest_ms) * self.dice.random()
        while weather.loss and self.dice.random() < weather.loss:
            delay_ms += self.dice.choice((200, 400, 800))
        return delay_ms

    def due_us(self, not_before_us: int) -> int:
        """When something that is sent now arrives, on a connection that is busy until then."""
        return max(self.time.now_us + round(self.delay_ms() * US_PER_MS), not_before_us)

    def carried(self, data: bytes) -> bytes:
        """The bytes that arrive for those that are sent."""
        if data and self.weather.flips and self.dice.random() < self.weather.flips:
            flipped = bytearray(data)
            bit = self.dice.randrange(len(data) * 8)
            flipped[bit // 8] ^= 1 << bit % 8
            self.story.counts["flipped bits on links"] += 1
            return bytes(flipped)
        return data

    def forget(self, connection: "VirtualConnection") -> None:
        self._connections.pop(connection, None)


def _refused(arrived: "asyncio.Future[VirtualTransport | None]") -> None:
    if not arrived.done():
        arrived.set_result(None)


class VirtualListener:
    """A listening socket, and the `asyncio.Server` of it."""

    def __init__(
        self,
        network: VirtualNetwork,
        process: "Process",
        factory: Callable[[], asyncio.BaseProtocol],
        place: tuple[str, int],
    ) -> None:
        self.process = process
        self.factory = factory
        self.place = place
        self._network = network

    @property
    def sockets(self) -> "list[VirtualListener]":
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.place

    def close(self) -> None:
        self._network.close_listener(self)

    async def wait_closed(self) -> None:
        return


class VirtualConnection:
    """Two ends, each at a process."""

    def __init__(self, network: VirtualNetwork, near: "Process", far: "Process") -> None:
        self.near = VirtualTransport(network, self, near)
        self.far = VirtualTransport(network, self, far)
        self.near.join(self.far)
        self.far.join(self.near)


class VirtualTransport(asyncio.Transport):
    """One end of a connection."""

    other: "VirtualTransport"

    def __init__(
        self, network: VirtualNetwork, connection: VirtualConnection, process: "Process"
    ) -> None:
        super().__init__()
        self._network = network
        self._connection = connection
        self._process = process
        self.host = process.machine.host
        self.protocol: asyncio.BaseProtocol = asyncio.Protocol()
        # What is on its way to the other end: arrives in order, when the link lets it pass.
        self._held: deque[bytes | None] = deque()
        self._busy_until_us = 0
        # What the other end has not read, or not said so yet: when that will be known, and the
        # bytes. Looked at when it matters.
        self._unread_bytes = 0
        self._said_read: deque[tuple[int, int]] = deque()
        self._hears_reads = False
        # What has arrived here. None: the other end says no more.
        self._arrived: deque[memoryview | None] = deque()
        self._is_begun = False
        self._is_reading = True
        self._is_scheduled = False
        self._is_closing = False
        self._is_lost = False
        self._is_full = False
        self.is_sound = False
        """No bit is flipped on the way."""
        self._is_gone = False
        """Its process is gone, or the system forgot it: it takes nothing and says nothing."""
        self.set_write_buffer_limits()

    def join(self, other: "VirtualTransport") -> None:
        """Once: the end that this one talks to."""
        self.other = other
        self._way = f"{self.host} to {other.host}".encode()

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """On the process's own loop."""
        if self._is_gone:
            return
        self.protocol = factory()
        self._is_begun = True
        self.protocol.connection_made(self)
        self._schedule()

    # Writing.

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._is_gone or not len(data):
            return
        self._unread_bytes += len(data)
        self._send(bytes(data))
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._hear_reads()
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        self._count_reads()
        return max(0, self._unread_bytes - _SOCKET_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def _send(self, data: bytes | None) -> None:
        """None: this end says no more."""
        network = self._network
        if self._held or not network.passes(self.host, self.other.host):
            if not self._held:
                self._give_up_later()
            self._held.append(data)
            return
        self._carry(data)

    def _carry(self, data: bytes | None) -> None:
        network, other = self._network, self.other
        self._busy_until_us = network.due_us(self._busy_until_us)
        arriving = data if data is None or self.is_sound else network.carried(data)
        network.story.trace_bytes(self._way, arriving or b"")
        network.time.at_us(self._busy_until_us, partial(other.arrive, arriving))

    def release(self) -> None:
        """The link is restored."""
        held, self._held = self._held, deque()
        for data in held:
            self._carry(data)

    def _give_up_later(self) -> None:
        self._network.time.after_ms(_GIVEN_UP_MS, self._give_up)

    def _give_up(self) -> None:
        if self._held and not self._is_gone:
            self._held.clear()
            self._lose_soon(TimeoutError(110, "the other end acknowledges nothing"))

    def taken(self, size: int) -> None:
        """The other end reads something: this one knows a moment later."""
        known_us = self._network.time.now_us + _SAYING_US
        self._said_read.append((known_us, size))
        if self._hears_reads:
            self._network.time.at_us(known_us, self._heard_read)

    def _hear_reads(self) -> None:
        """From now on it matters at once what the other end has read."""
        if not self._hears_reads:
            self._hears_reads = True
            for known_us, _ in self._said_read:
                self._network.time.at_us(known_us, self._heard_read)

    def _count_reads(self) -> None:
        said, now_us = self._said_read, self._network.time.now_us
        while said and said[0][0] <= now_us:
            self._unread_bytes -= said.popleft()[1]

    def _heard_read(self) -> None:
        self._count_reads()
        if self._is_gone or self._is_lost:
            return
        if self._is_full and self.get_write_buffer_size() <= self._low:
            self._is_full = False
            self._hears_reads = self._is_closing
            self._process.loop.call_soon(self.protocol.resume_writing)
        if self._is_closing and not self._unread_bytes:
            self._lose_soon(None)

    # Reading.

    def arrive(self, data: bytes | None) -> None:
        if self._is_gone or self._is_lost:
            # Nobody is there; a system that is resets the connection.
            if not self._network.is_off(self.host):
                self.other.reset()
            return
        self._arrived.append(None if data is None else memoryview(data))
        self._schedule()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._schedule()

    def _schedule(self) -> None:
        if self._is_begun and not self._is_scheduled and self._arrived and not self._is_gone:
            self._is_scheduled = True
            self._process.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """One buffer in one turn of the loop, as sockets do."""
        self._is_scheduled = False
        if not self._arrived or not self.is_reading():
            return
        data = self._arrived[0]
        protocol: Any = self.protocol
        if data is None:
            self._arrived.popleft()
            if not protocol.eof_received():
                self.close()
            return
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._take(data, size)
            protocol.buffer_updated(size)
        else:
            self._take(data, len(data))
            protocol.data_received(bytes(data))
        self._schedule()

    def _take(self, data: memoryview, size: int) -> None:
        if size == len(data):
            self._arrived.popleft()
        else:
            self._arrived[0] = data[size:]
        self.other.taken(size)

    # The end.

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Once the other end has taken everything."""
        if self._is_closing or self._is_gone:
            return
        self._is_closing = True
        self._send(None)
        self._count_reads()
        if not self._unread_bytes:
            self._lose_soon(None)
        else:
            self._hear_reads()

    def abort(self) -> None:
        """At once: what is on its way is lost."""
        if self._is_gone or self._is_lost:
            return
        self._is_closing = True
        self._held.clear()
        self._reset_other()
        self._lose_soon(None)

    def _reset_other(self) -> None:
        other, network = self.other, self._network
        if network.passes(self.host, other.host):
            network.time.after_ms(self._network.delay_ms(), other.reset)

    def reset(self) -> None:
        """The other end is gone."""
        if not self._is_gone and not self._is_lost:
            self._is_closing = True
            self._held.clear()
            self._lose_soon(ConnectionResetError(104, "the other end is gone"))

    def vanish(self, *, is_told: bool) -> None:
        """The process is gone."""
        if not self._is_gone:
            self._is_gone = True
            self._held.clear()
            self._network.forget(self._connection)
            if is_told and not self._is_lost:
                self._reset_other()
            elif not self._is_lost:
                self.other.unheard()

    def unheard(self) -> None:
        """The other host is off: what is sent there is not acknowledged."""
        if not self._is_gone and not self._is_lost:
            self._network.time.after_ms(_GIVEN_UP_MS, self.reset)

    def _lose_soon(self, error: Exception | None) -> None:
        if not self._is_lost and not self._is_gone:
            self._is_lost = True
            self._is_closing = True
            self._network.forget(self._connection)
            if self._is_begun:
                self._process.loop.call_soon(self.protocol.connection_lost, error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self.other.host, 0)
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
