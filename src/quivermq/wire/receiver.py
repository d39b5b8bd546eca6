"""Cuts received bytes into packets.

Two places to receive into. Small packets come many at a time into a chunk, and each is copied out
of it: a view would keep the whole chunk alive for as long as a few bytes of it are kept. A chunk is
borrowed for as long as it holds something: all connections of a process take turns with a few. A
large packet gets memory of its own, is received straight into it, and handed out as views of it.

Nothing is allocated on the word of a peer alone: memory for a large packet grows as its bytes
arrive, and a length past the limit is refused before any.

The first packet of a connection tells whether its packets have checksums: one that ends with the
right one comes from a build that sends them always, and then every packet needs one. A build of
protocol 1 sends none. What it passes on for others may hold the checksum of an earlier connection,
so its packets are not looked at.
"""

from typing import Final

from quivermq.batches import KIB, MIB, pa
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError, TooLarge
from quivermq.wire.packets import (
    CHECKED_PROTOCOL,
    CHECKSUM_BYTES,
    LENGTH_BYTES,
    PREFIX,
    Packet,
    is_intact,
)

STALLED_S: Final = 5.0
STALLED_BYTES_PER_S: Final = 16 * KIB
"""A packet that has not arrived after so long, and arrives more slowly than this, never will."""

ENVELOPE_BYTES_MAX: Final = 1 * MIB
"""The largest envelope that a client may send."""

HELLO_BYTES_MAX: Final = 64 * KIB
"""The largest packet of a peer that has not said hello."""

BROKER_ENVELOPE_BYTES_MAX: Final = 16 * MIB
"""The largest envelope that a broker may send: maps of large clusters, many letters at once."""

CHUNK_BYTES: Final = 128 * KIB
_FIRST_CHUNK_BYTES: Final = 2 * KIB
"""Of a connection that has begun its first packet: thousands may do that and nothing more."""
_FREE_CHUNKS_MAX: Final = 16
# A packet that would fill most of the chunk is not worth copying twice.
LARGE_BYTES: Final = CHUNK_BYTES // 2
# What one peer can make us allocate by a claim alone; what a batch of a usual size takes at once.
FIRST_BYTES: Final = 2 * MIB
# The same for a broker, in the eyes of its client: what the answer to a fetch takes at once.
BROKER_FIRST_BYTES: Final = 8 * MIB

_unpack = PREFIX.unpack_from


class Receiver:
    """Packets out of one connection's bytes. After it raised, the connection must be closed."""

    __slots__ = (
        "_chunk",
        "_end",
        "_envelope_bytes_max",
        "_first_bytes",
        "_is_checked",
        "_large",
        "_large_bytes",
        "_large_end",
        "_packet_bytes_max",
        "packets",
    )

    def __init__(
        self,
        packet_bytes_max: int,
        envelope_bytes_max: int = ENVELOPE_BYTES_MAX,
        first_bytes: int = FIRST_BYTES,
    ) -> None:
        self._packet_bytes_max = packet_bytes_max
        self._first_bytes = first_bytes
        self._envelope_bytes_max = envelope_bytes_max
        self.packets = 0
        """The number of packets that have arrived whole."""
        # Whether packets have checksums; None before the first one.
        self._is_checked: bool | None = None
        # Holds the start of at most one packet, from its first byte on; None between packets.
        self._chunk: memoryview | None = None
        self._end = 0
        # The packet that has memory of its own: what is allocated, how large it will be, how far
        # it has arrived.
        self._large: memoryview | None = None
        self._large_bytes = 0
        self._large_end = 0

    def allow(self, packet_bytes_max: int, envelope_bytes_max: int = ENVELOPE_BYTES_MAX) -> None:
        """Take larger packets from here on: the peer has said who it is."""
        self._packet_bytes_max = packet_bytes_max
        self._envelope_bytes_max = min(envelope_bytes_max, packet_bytes_max)

    def check_protocol(self, protocol: int) -> None:
        """The first packet says that the other side speaks up to `protocol`: if that has checksums,
        the packet must have had one. No single bit turns it into one that has none."""
        if protocol >= CHECKED_PROTOCOL and not self._is_checked:
            raise _damaged("has no checksum")

    @property
    def arrived_bytes(self) -> int:
        """Of a packet that is not whole yet."""
        return self._end if self._large is None else self._large_end

    def get_buffer(self) -> memoryview:
        """Where to receive into; never empty. Valid until `received` is called."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._chunk is None:
            self._chunk = _borrow_chunk()
        return self._chunk[self._end :]

    def peek(self, count: int) -> memoryview | None:
        """`count` bytes have arrived there: these, if nothing was before them. They may be taken as
        they are, instead of by `received`, if they are one packet and the peer's have checksums."""
        if self._end or self._chunk is None or not self._is_checked:
            return None
        return self._chunk[:count]

    def received(self, count: int) -> list[Packet]:
        """`count` bytes have arrived there: the packets that they complete."""
        if self._large is not None:
            return self._received_large(self._large, count)
        packets: list[Packet] = []
        chunk, at, end = self._chunk, 0, self._end + count
        if chunk is None:  # nothing was asked for, so nothing can have arrived
            return packets
        while end - at >= PREFIX.size:
            length, envelope_bytes = _unpack(chunk, at)
            if (
                length > self._packet_bytes_max
                or envelope_bytes > self._envelope_bytes_max
                or envelope_bytes + LENGTH_BYTES > length
            ):
                raise self._refusal(length, envelope_bytes)
            stop = at + LENGTH_BYTES + length
            if stop > end:
                if PREFIX.size + envelope_bytes <= end - at:
                    # Its checksum is that of the lengths, too: a damaged one would have what
                    # follows taken for a part of this packet, megabytes of it.
                    self._checked(chunk, at, envelope_bytes)
                if stop - at > LARGE_BYTES:
                    self._start_large(chunk[at:end], stop - at)
                    at = end
                break
            message_bytes = self._checked(chunk, at, envelope_bytes)
            content = memoryview(bytes(chunk[at + PREFIX.size : stop]))
            packets.append(Packet(content[:message_bytes], content[envelope_bytes:]))
            self.packets += 1
            at = stop
        self._keep(chunk, at, end)
        return packets

    def _keep(self, chunk: memoryview, at: int, end: int) -> None:
        """The rest of a chunk begins the next packet."""
        self._end = left = end - at
        if not left:
            self._chunk = None
            _return_chunk(chunk)
        elif not self.packets and left < _FIRST_CHUNK_BYTES:
            if len(chunk) == CHUNK_BYTES:
                self._chunk = memoryview(bytearray(_FIRST_CHUNK_BYTES))
                self._chunk[:left] = chunk[at:end]
                _return_chunk(chunk)
        elif end == len(chunk) < CHUNK_BYTES:
            self._chunk = _borrow_chunk()
            self._chunk[:left] = chunk[at:end]
        elif at:
            chunk[:left] = chunk[at:end]

    def _start_large(self, arrived: memoryview, size: int) -> None:
        self._large = _room(min(size, self._first_bytes))
        self._large[: len(arrived)] = arrived
        self._large_bytes = size
        self._large_end = len(arrived)

    def _received_large(self, large: memoryview, count: int) -> list[Packet]:
        end = self._large_end = self._large_end + count
        if end < len(large):
            return []
        if end < self._large_bytes:
            # As much again as has arrived: copies cost at most as much as one of the whole.
            self._large = _room(min(self._large_bytes, 2 * end))
            self._large[:end] = large
            return []
        self._large = None
        self.packets += 1
        envelope_bytes = _unpack(large)[1]
        message_end = PREFIX.size + self._checked(large, 0, envelope_bytes)
        return [Packet(large[PREFIX.size : message_end], large[PREFIX.size + envelope_bytes :])]

    def _checked(self, content: memoryview, at: int, envelope_bytes: int) -> int:
        """The bytes of the envelope of a whole packet, without its checksum, which is right."""
        if self._is_checked is False:
            return envelope_bytes
        is_right = is_intact(content, at, envelope_bytes)
        if is_right:
            self._is_checked = True
            return envelope_bytes - CHECKSUM_BYTES
        if is_right is None and self._is_checked is None:
            self._is_checked = False
            return envelope_bytes
        raise _damaged("has no checksum" if is_right is None else "fails its checksum")

    def _refusal(self, length: int, envelope_bytes: int) -> QuiverError:
        if length == _HTTP:
            return InvalidRequest("this is the port for HTTP: name the one for clients")
        if length > self._packet_bytes_max:
            return TooLarge(
                f"a packet of {length:,} bytes is above the limit of {self._packet_bytes_max:,} "
                "(packet_bytes_max): send fewer batches at once; or this is no QuiverMQ client"
            )
        if envelope_bytes + LENGTH_BYTES > length:
            return InvalidRequest(
                f"an envelope of {envelope_bytes:,} bytes in a packet of {length:,}: "
                "this is no QuiverMQ client"
            )
        return TooLarge(
            f"an envelope of {envelope_bytes:,} bytes is above the limit of "
            f"{self._envelope_bytes_max:,}: ask for less at once"
        )


# The first four bytes of an answer to a client that was given the wrong port.
_HTTP: Final = int.from_bytes(b"HTTP")


class StallWatch:
    """Tells whether a packet has stopped arriving.

    A length that was damaged on its way makes its receiver wait for bytes that are not coming. What
    comes instead, a heartbeat now and then, is taken for a part of the packet: the connection looks
    alive, and nothing on it is understood any more.
    """

    __slots__ = ("_arrived_bytes", "_packets", "_receiver", "_since_s")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._packets = -1
        self._arrived_bytes = 0
        self._since_s = 0.0

    def is_stalled(self, now_s: float) -> bool:
        """Whether the packet that was incomplete at an earlier call hardly goes on. Call it now and
        then, by a clock that never goes back."""
        receiver = self._receiver
        if not receiver.arrived_bytes or receiver.packets != self._packets:
            self.forget(now_s)
            return False
        waited_s = now_s - self._since_s
        if waited_s <= STALLED_S:
            return False
        arrived_bytes = receiver.arrived_bytes - self._arrived_bytes
        # From here on again: it may have gone on well, and stop now.
        self.forget(now_s)
        return arrived_bytes < waited_s * STALLED_BYTES_PER_S

    def forget(self, now_s: float) -> None:
        """Begin anew: nothing was received, because nothing was read."""
        self._packets = self._receiver.packets
        self._arrived_bytes = self._receiver.arrived_bytes
        self._since_s = now_s


_free_chunks: list[memoryview] = []


def _borrow_chunk() -> memoryview:
    """One that is free, by any thread."""
    try:
        return _free_chunks.pop()
    except IndexError:
        return memoryview(bytearray(CHUNK_BYTES))


def _return_chunk(chunk: memoryview) -> None:
    """Nobody looks at it any more."""
    if len(chunk) == CHUNK_BYTES and len(_free_chunks) < _FREE_CHUNKS_MAX:
        _free_chunks.append(chunk)


def _damaged(how: str) -> ConnectionFailed:
    """Another connection, and another attempt, help."""
    return ConnectionFailed(f"a packet {how}: it was damaged on its way, and is not read")


def _room(size: int) -> memoryview:
    """Memory with anything in it, to be received into.

    Arrow's pool gives out again what it got back. A bytearray would be cleared first, and of this
    size come from the system, page by page: ten times the price.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")
