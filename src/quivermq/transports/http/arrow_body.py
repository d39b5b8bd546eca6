"""Reads an Arrow stream that a client sent, after it is certain that it cannot harm.

A body must not stand for more bytes than it has. Compressed buffers do: pyarrow allocates what they
claim to become. So do dictionaries, views, run ends and nulls: a few bytes for any number of rows.
Such streams are refused before pyarrow makes arrays of them, and what is left is validated before
anything is read from it.
"""

from typing import Any, Final

import pyarrow as pa

from quivermq.batches import check_stream_schema, is_plain
from quivermq.errors import InvalidRequest, QuiverError, TooLarge

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
_BATCHES_MAX: Final = 10_000


def read_arrow(body: bytes) -> Any:
    """The stream as one table; raises `InvalidRequest` unless it is one."""
    try:
        _check_batches(body)
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        check_stream_schema(reader.schema)
        batches = []
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
    except InvalidRequest:
        raise
    except (QuiverError, pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InvalidRequest(f"the body is no Arrow stream of messages: {error}") from error
    if not table.num_rows:
        raise InvalidRequest("the Arrow stream has no messages: send at least one")
    return table


def _check_batches(body: bytes) -> None:
    """Refuse what stands for more than its bytes before pyarrow makes arrays of it."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    for number, message in enumerate(reader):
        if number > _BATCHES_MAX:
            raise TooLarge(f"an Arrow stream of more than {_BATCHES_MAX:,} batches: send fewer")
        if number and not is_plain(message.metadata):
            raise InvalidRequest("send Arrow batches without compression and dictionaries")
