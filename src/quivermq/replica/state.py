"""The checkpoint of a replica: its configuration, and the state of its partition.

    u16 version | u32 length | configuration as JSON | the partition's own checkpoint

The same bytes on every replica at the same index, so a transfer may go on from another one.
"""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, Final, NamedTuple

from quivermq.batches import Index
from quivermq.errors import BrokenInvariant, Corrupt, UnsupportedFormat
from quivermq.log import Checkpoint, Edge
from quivermq.queue import Partition, PartitionSnapshot
from quivermq.raft import Configuration

_VERSION: Final = 1
_HEADER: Final = Struct("<HI")
_MEMBERS_BYTES_MAX: Final = 1 << 20
_MISREAD: Final = (
    struct.error,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    BrokenInvariant,
)
"""Errors of the readers of parts at bytes that are none of theirs."""


class ReplicaState(NamedTuple):
    """The configuration and the partition's state at some index."""

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

    def snapshot(self) -> "StateSnapshot":
        """The state as it is now, to be packed later."""
        members = json.dumps(self.configuration._asdict(), sort_keys=True).encode()
        return StateSnapshot(
            _HEADER.pack(_VERSION, len(members)) + members, self.partition.snapshot()
        )

    def pack(self) -> bytes:
        return self.snapshot().pack()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.edge, self.pack())

    @classmethod
    def unpack(cls, data: bytes) -> "ReplicaState":
        """The state that `pack` wrote; raises `Corrupt` for anything else."""
        with _understood():
            configuration, rest = _members(data)
            return cls(configuration, Partition.restore(rest))


class StateSnapshot:
    """A state to be written to disk: `pack` may run in another thread."""

    def __init__(self, head: bytes, partition: PartitionSnapshot) -> None:
        self._head = head
        self._partition: PartitionSnapshot | None = partition
        self._packed = b""
        self.size_bytes = partition.size_bytes
        """The size of it, more or less."""

    def pack(self) -> bytes:
        """All of it as bytes; made once."""
        if self._partition is not None:
            self._packed = self._head + self._partition.pack()
            self._partition = None
        return self._packed


class ArrivedState:
    """A state that came in whole from elsewhere. What is in it is restored where there is time."""

    def __init__(self, data: bytes) -> None:
        with _understood():
            self.configuration, rest = _members(data)
            self.edge = Edge(*Partition.edge_of(rest))
        self.data = data
        self._state: ReplicaState | None = None

    def restore(self) -> ReplicaState:
        """The state; made once. `Corrupt` if these bytes are none."""
        if self._state is None:
            self._state = ReplicaState.unpack(self.data)
        return self._state

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.edge, self.data)


def configuration_in(read: Callable[[int, int], bytes]) -> Configuration:
    """Only the configuration; `read(at, size)` gives a part of the checkpoint."""
    with _understood():
        size = _members_bytes(read(0, _HEADER.size))
        return _configuration(read(_HEADER.size, size))


def _members(data: bytes) -> tuple[Configuration, memoryview]:
    size = _members_bytes(data)
    view = memoryview(data)[_HEADER.size :]
    return _configuration(bytes(view[:size])), view[size:]


def _members_bytes(data: bytes) -> int:
    version, size = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise UnsupportedFormat(f"checkpoint version {version}; we read {_VERSION}")
    if size > _MEMBERS_BYTES_MAX:
        raise Corrupt(f"a list of members of {size:,} bytes")
    return int(size)


def _configuration(data: bytes) -> Configuration:
    found: dict[str, Any] = json.loads(data)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    configuration = Configuration(**values)
    *parts, auto_leave = configuration
    if type(auto_leave) is not bool or any(type(m) is not int for part in parts for m in part):
        raise Corrupt(f"no member can be in {configuration}")
    return configuration


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except _MISREAD as error:
        raise Corrupt(f"these bytes are no checkpoint of a replica: {error}") from error
