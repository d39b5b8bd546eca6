"""A replica's checkpoint: who the members were, and the state of the partition.

    u16 version | u32 length | configuration as JSON | the partition's own checkpoint

The same bytes on every replica at the same index, so a transfer may go on from another one.
"""

import json
import struct
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from quivermq.batches import Index
from quivermq.errors import BrokenInvariant, Corrupt, UnsupportedFormat
from quivermq.log import Checkpoint, Edge
from quivermq.queue import Partition
from quivermq.raft import Configuration

_VERSION: Final = 1
_HEADER: Final = Struct("<HI")
_MEMBERS_BYTES_MAX: Final = 1 << 20


class ReplicaState(NamedTuple):
    """What the entries up to some index have led to."""

    configuration: Configuration
    partition: Partition

    @property
    def edge(self) -> Edge:
        """The edge behind the last applied entry."""
        partition = self.partition
        return Edge(
            Index(partition.applied_index + 1),
            partition.next_offset,
            partition.term,
            partition.timestamp_ms,
        )

    def pack(self) -> bytes:
        members = json.dumps(self.configuration._asdict(), sort_keys=True).encode()
        return _HEADER.pack(_VERSION, len(members)) + members + self.partition.checkpoint()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.edge, self.pack())

    @staticmethod
    def configuration_in(read: Callable[[int, int], bytes]) -> Configuration:
        """Only who the members were; `read(at, size)` gives a part of the checkpoint."""
        try:
            version, size = _HEADER.unpack(read(0, _HEADER.size))
            if version != _VERSION:
                raise UnsupportedFormat(f"checkpoint version {version}; we read {_VERSION}")
            if size > _MEMBERS_BYTES_MAX:
                raise Corrupt(f"a list of members of {size:,} bytes")
            return _configuration(read(_HEADER.size, size))
        except (struct.error, ValueError, TypeError, AttributeError) as error:
            raise Corrupt(f"these bytes are no checkpoint of a replica: {error}") from error

    @classmethod
    def unpack(cls, data: bytes) -> "ReplicaState":
        """What `pack` wrote; raises `Corrupt` for anything else."""
        try:
            version, size = _HEADER.unpack_from(data)
            if version != _VERSION:
                raise UnsupportedFormat(f"checkpoint version {version}; we read {_VERSION}")
            view = memoryview(data)[_HEADER.size :]
            return cls(_configuration(bytes(view[:size])), Partition.restore(view[size:]))
        except (struct.error, ValueError, TypeError, AttributeError, BrokenInvariant) as error:
            raise Corrupt(f"these bytes are no checkpoint of a replica: {error}") from error


def _configuration(data: bytes) -> Configuration:
    found: dict[str, Any] = json.loads(data)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    return Configuration(**values)
