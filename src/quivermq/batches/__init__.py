"""Batches: the frame, its header, and messages to and from Arrow bodies.

The values that every other room passes around. Imports nothing of ours but `errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from quivermq.batches.arrow import load_arrow, pa, pc
from quivermq.batches.envelope import check_envelope, is_plain, read_envelope
from quivermq.batches.frame import Frame
from quivermq.batches.header import (
    HEADER_BYTES,
    MARK_PREFIX,
    Buffer,
    Compression,
    Flag,
    FrameKind,
    Header,
    Index,
    Offset,
)
from quivermq.batches.limits import (
    COUNTER_MAX,
    DEFAULT_LIMITS,
    KIB,
    MIB,
    PRIORITY_MAX,
    TIMESTAMP_MS_MAX,
    Limits,
)
from quivermq.batches.properties import (
    CONTENT_TYPE,
    EXPIRES,
    content_type_of,
    expired_offsets,
    expires_ms_of,
    may_expire,
    repeat_headers,
)

if TYPE_CHECKING:
    from quivermq.batches.columns import prepare_arrays
    from quivermq.batches.cut import cut
    from quivermq.batches.decode import (
        NO_HEADERS,
        Message,
        check_batch,
        check_sizes,
        columns_of,
        decode_batch,
        decode_columns,
        decode_lone,
        decode_messages,
    )
    from quivermq.batches.encode import Origin, encode_batch, encode_batches
    from quivermq.batches.lone import KEYED_BYTES, lone_bytes_max, lone_frame, lone_value
    from quivermq.batches.schema import (
        HEADERS_TYPE,
        TIMESTAMP_TYPE,
        check_stream_schema,
        schema_of,
    )

__all__ = [
    "CONTENT_TYPE",
    "COUNTER_MAX",
    "DEFAULT_LIMITS",
    "EXPIRES",
    "HEADERS_TYPE",
    "HEADER_BYTES",
    "KEYED_BYTES",
    "KIB",
    "MARK_PREFIX",
    "MIB",
    "NO_HEADERS",
    "PRIORITY_MAX",
    "TIMESTAMP_MS_MAX",
    "TIMESTAMP_TYPE",
    "Buffer",
    "Compression",
    "Flag",
    "Frame",
    "FrameKind",
    "Header",
    "Index",
    "Limits",
    "Message",
    "Offset",
    "Origin",
    "check_batch",
    "check_envelope",
    "check_sizes",
    "check_stream_schema",
    "columns_of",
    "content_type_of",
    "cut",
    "decode_batch",
    "decode_columns",
    "decode_lone",
    "decode_messages",
    "encode_batch",
    "encode_batches",
    "expired_offsets",
    "expires_ms_of",
    "is_plain",
    "load_arrow",
    "lone_bytes_max",
    "lone_frame",
    "lone_value",
    "may_expire",
    "pa",
    "pc",
    "prepare_arrays",
    "read_envelope",
    "repeat_headers",
    "schema_of",
]

# The names whose modules import Arrow: see `batches.arrow`.
_PLACES: Final = {
    "HEADERS_TYPE": "schema",
    "TIMESTAMP_TYPE": "schema",
    "NO_HEADERS": "decode",
    "Message": "decode",
    "Origin": "encode",
    "check_batch": "decode",
    "check_sizes": "decode",
    "check_stream_schema": "schema",
    "columns_of": "decode",
    "cut": "cut",
    "decode_batch": "decode",
    "decode_columns": "decode",
    "decode_lone": "decode",
    "decode_messages": "decode",
    "encode_batch": "encode",
    "encode_batches": "encode",
    "KEYED_BYTES": "lone",
    "lone_bytes_max": "lone",
    "lone_frame": "lone",
    "lone_value": "lone",
    "prepare_arrays": "columns",
    "schema_of": "schema",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
