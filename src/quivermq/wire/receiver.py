"""Cuts received bytes into packets.

Two places to receive into. Small packets come many at a time into one chunk that is used again and
again, and each is copied out of it: a view would keep the whole chunk alive for as long as a few
bytes of it are kept. A large packet gets memory of its own, is received straight into it, and
handed out as views of it.

Nothing is allocated on the word of a peer alone: memory for a large packet grows as its bytes
arrive, and a length past the limit is refused before any.
"""

from typing import Final

import pyarrow as pa

from quivermq.batches import KIB, MIB
from quivermq.errors import InvalidRequest, QuiverError, TooLarge
from quivermq.wire.packets import LENGTH_BYTES, PREFIX, Packet

ENVELOPE_BYTES_MAX: Final = 1 * MIB
"""The largest envelope that a client may send."""

HELLO_BYTES_MAX: Final = 64 * KIB
"""The largest packet of a peer that has not said hello."""

BROKER_ENVELOPE_BYTES_MAX: Final = 16 * MIB
"""The largest envelope that a broker may send: maps of large clusters, many letters at once."""

CHUNK_BYTES: Final = 128 * KIB
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
        "_large",
        "_large_bytes",
        "_large_end",
        "_packet_bytes_max",
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
        # Holds the start of at most one packet, from its first byte on.
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
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

    def get_buffer(self) -> memoryview:
        """Where to receive into; never empty. Valid until `received` is called."""
        if self._large is not None:
            return self._large[self._large_end :]
        return self._chunk[self._end :]

    def received(self, count: int) -> list[Packet]:
        """`count` bytes have arrived there: the packets that they complete."""
        if self._large is not None:
            return self._received_large(self._large, count)
        packets: list[Packet] = []
        chunk, at, end = self._chunk, 0, self._end + count
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
                if stop - at > LARGE_BYTES:
                    self._start_large(chunk[at:end], stop - at)
                    at = end
                break
            content = memoryview(bytes(chunk[at + PREFIX.size : stop]))
            packets.append(Packet(content[:envelope_bytes], content[envelope_bytes:]))
            at = stop
        left = end - at
        if at and left:
            chunk[:left] = chunk[at:end]
        self._end = left
        return packets

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
        behind = PREFIX.size + _unpack(large)[1]
        return [Packet(large[PREFIX.size : behind], large[behind:])]

    def _refusal(self, length: int, envelope_bytes: int) -> QuiverError:
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


def _room(size: int) -> memoryview:
    """Memory with anything in it, to be received into.

    Arrow's pool gives out again what it got back. A bytearray would be cleared first, and of this
    size come from the system, page by page: ten times the price.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")
