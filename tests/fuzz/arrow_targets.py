"""Arrow IPC streams that programs send, as gRPC and HTTP read them: Arrow's own reader is C++."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from quivermq.batches import DEFAULT_LIMITS, Origin, encode_batches
from quivermq.errors import InvalidRequest
from quivermq.transports.grpc.arrow_streams import batches_of, frames_of_batch
from quivermq.transports.http.arrow_body import read_arrow
from tests.fuzz.target import Target

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ORIGIN = Origin()


def _stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table, max_chunksize=3)
    return bytes(sink.getvalue().to_pybytes())


def streams() -> list[bytes]:
    """Streams of all kinds, also of those that a door refuses."""
    values = pa.array([b"one", b"", b"three" * 9, b"4"], pa.binary())
    headers = pa.array([[("a", b"b")], [], [("c", b"d"), ("e", b"")], None], _HEADERS)
    tables = [
        pa.table({"value": values}),
        pa.table({"value": values, "key": pa.array([b"k", None, b"l", b""], pa.binary())}),
        pa.table({"value": values, "headers": headers}),
        pa.table({"value": values.cast(pa.large_string()), "key": values.cast(pa.string())}),
        pa.table({"value": values, "timestamp": pa.array([1, 2, 3, 4], pa.timestamp("ms"))}),
        pa.table({"value": values.dictionary_encode()}),
        pa.table({"value": values.cast(pa.string_view())}),
    ]
    return [_stream(table) for table in tables] + [_stream(tables[1], compression="zstd")]


def _read_grpc(data: bytes) -> None:
    for batch in batches_of(data, DEFAULT_LIMITS):
        frames_of_batch(batch, _ORIGIN, DEFAULT_LIMITS)


def _read_http(data: bytes) -> None:
    for _ in encode_batches(read_arrow(data), origin=_ORIGIN, limits=DEFAULT_LIMITS):
        pass


def _accepted(read: Callable[[bytes], None]) -> list[bytes]:
    found = []
    for stream in streams():
        with suppress(InvalidRequest):
            read(stream)
            found.append(stream)
    return found


ARROW_TARGETS = {
    "arrow_grpc": Target(partial(_accepted, _read_grpc), _read_grpc),
    "arrow_http": Target(partial(_accepted, _read_http), _read_http),
}
