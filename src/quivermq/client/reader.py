"""Readers, as `read` returns them: messages or Arrow batches, blocking or awaitable."""

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from quivermq import batches
from quivermq.batches import Frame, Limits, pa
from quivermq.client.cursor import Cursor
from quivermq.client.decode import (
    MADE_AT_ONCE,
    PackedMessages,
    record_batch_of,
    rows_within,
    schema,
)
from quivermq.client.models import Message
from quivermq.client.router import Router
from quivermq.client.topic_cursor import TopicCursor
from quivermq.client.transport import run


class ReadChunk(NamedTuple):
    """The rows from `first` to before `end` of a stored batch."""

    frame: Frame
    first: int
    end: int
    limits: Limits

    @property
    def offset(self) -> int:
        """Of the first row."""
        return self.frame.header.base_offset + self.first

    @property
    def rows(self) -> int:
        """How many."""
        return self.end - self.first

    @property
    def lone_value(self) -> bytes | None:
        """The value, if this is a plain message that was stored by itself: for far less than
        decoding takes."""
        header = self.frame.header
        if header.count != 1 or header.flags or header.body_bytes > self.limits.message_bytes_max:
            return None
        return batches.lone_value(self.frame.body)

    def decoded(self) -> Any:
        """Its columns as a validated `pyarrow.RecordBatch`: value, and what else there is."""
        return batches.decode_batch(self.frame, self.limits, first=self.first, stop=self.end)


class Reader:
    """Messages of a partition, or of all of a topic; or, by `batches()`, the same as Arrow.

    >>> for message in client.read("orders", start="earliest"):
    ...     print(message.offset, message.value)
    >>> table = pyarrow.Table.from_batches(client.read("orders").batches())

    It reads on from where it is: a second loop over the same reader goes on behind the first. Use
    it as a context manager, or call `close()`, to give its connection back before it has come to
    its end.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        cursor: Cursor | TopicCursor,
        kind: type[Message] = Message,
    ) -> None:
        self._router = router
        self._cursor = cursor
        self._messages = _messages(router, topic, cursor, kind)

    def __iter__(self) -> Iterator[Message]:
        return self._messages

    def __next__(self) -> Message:
        return next(self._messages)

    def batches(self) -> Iterator[Any]:
        """The messages as `pyarrow.RecordBatch`: one for each batch as it is stored, cut to what
        was asked for, with the columns offset, timestamp, key, value, headers and priority."""
        cursor, router = self._cursor, self._router
        try:
            while (span := run(cursor.next_span())) is not None:
                for frame in span.frames:
                    batch = record_batch_of(frame, span.start, span.stop, router.limits)
                    if batch.num_rows:
                        yield batch
        finally:
            cursor.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The batches for any library that takes Arrow data, without a copy, and each of them read
        when that library asks for it: `polars.DataFrame(client.read("orders"))`."""
        stream = pa.RecordBatchReader.from_batches(schema(), self.batches())
        return stream.__arrow_c_stream__(requested_schema)

    def pieces(self) -> Iterator[ReadChunk]:
        """The batches as they are stored and checked, but not decoded: for those who decode them
        in a way of their own."""
        cursor, router = self._cursor, self._router
        try:
            while (span := run(cursor.next_span())) is not None:
                for frame in span.frames:
                    first, end = rows_within(frame, span.start, span.stop)
                    if first < end:
                        yield ReadChunk(frame, first, end, router.limits)
        finally:
            cursor.close()

    def close(self) -> None:
        """Give the connection back."""
        self._cursor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncReader:
    """Messages of a partition, or of all of a topic; or, by `batches()`, the same as Arrow.

    >>> async for message in client.read("orders", follow=True):
    ...     print(message.offset, message.value)
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        cursor: Cursor | TopicCursor,
        kind: type[Message] = Message,
    ) -> None:
        self._router = router
        self._cursor = cursor
        self._messages = _async_messages(router, topic, cursor, kind)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages

    async def __anext__(self) -> Message:
        return await anext(self._messages)

    async def batches(self) -> AsyncIterator[Any]:
        """The messages as `pyarrow.RecordBatch`: see `quivermq.client.Reader.batches`."""
        cursor, router = self._cursor, self._router
        try:
            while (span := await cursor.next_span()) is not None:
                for frame in span.frames:
                    batch = record_batch_of(frame, span.start, span.stop, router.limits)
                    if batch.num_rows:
                        yield batch
        finally:
            cursor.close()

    async def pieces(self) -> AsyncIterator[ReadChunk]:
        """The batches as they are stored and checked, but not decoded."""
        cursor, router = self._cursor, self._router
        try:
            while (span := await cursor.next_span()) is not None:
                for frame in span.frames:
                    first, end = rows_within(frame, span.start, span.stop)
                    if first < end:
                        yield ReadChunk(frame, first, end, router.limits)
        finally:
            cursor.close()

    async def close(self) -> None:
        """No more fetches."""
        self._cursor.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


# Functions and not methods: a generator that held its reader would be freed by the garbage
# collector only, and its connection with it.


def _messages(
    router: Router, topic: str, cursor: Cursor | TopicCursor, kind: type[Message]
) -> Iterator[Message]:
    try:
        while (span := run(cursor.next_span())) is not None:
            for frame in span.frames:
                packed = PackedMessages(
                    frame, topic, span.partition, span.start, span.stop, router.limits, kind
                )
                while not packed.is_empty:
                    yield from packed.take(MADE_AT_ONCE)
    finally:
        cursor.close()


async def _async_messages(
    router: Router, topic: str, cursor: Cursor | TopicCursor, kind: type[Message]
) -> AsyncIterator[Message]:
    try:
        while (span := await cursor.next_span()) is not None:
            for frame in span.frames:
                packed = PackedMessages(
                    frame, topic, span.partition, span.start, span.stop, router.limits, kind
                )
                while not packed.is_empty:
                    for message in packed.take(MADE_AT_ONCE):
                        yield message
    finally:
        cursor.close()
