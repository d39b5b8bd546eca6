"""Reads the messages that a page shows, and no others: by offset, forward and back, filtered."""

import time
from dataclasses import dataclass, field
from typing import Final

from quivermq.aio import AsyncClient
from quivermq.client import Message

PAGE: Final = 50
_PAGE_BYTES: Final = 8 << 20
_CHUNK: Final = 1_000
_CHUNK_BYTES: Final = 1 << 20
_SCANNED: Final = 50_000
_SCAN_SECONDS: Final = 2.0
FIELDS: Final = ("anywhere", "value", "key", "headers")


@dataclass(frozen=True, slots=True)
class Filter:
    """A text that messages have in their value, key or headers; large and small letters alike."""

    text: str = ""
    field: str = "anywhere"

    def matches(self, message: Message) -> bool:
        wanted = self.text.lower().encode()
        if self.field in {"anywhere", "value"} and wanted in message.value.lower():
            return True
        if self.field in {"anywhere", "key"} and wanted in (message.key or b"").lower():
            return True
        return self.field in {"anywhere", "headers"} and any(
            wanted in f"{name}: ".lower().encode() + value.lower()
            for name, value in message.headers.items()
        )


@dataclass(slots=True)
class Page:
    """Messages in the order of their offsets, and where reading stopped."""

    start: int
    """The first offset that the partition keeps."""
    end: int
    """One past the last."""
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    """The offsets that were looked at: from here to before `last`."""
    last: int = 0

    @property
    def has_older(self) -> bool:
        return self.first > self.start

    @property
    def has_newer(self) -> bool:
        return self.last < self.end


async def read_forward(
    client: AsyncClient, topic: str, partition: int, offset: int, wanted: Filter
) -> Page:
    """The messages from an offset on."""
    page = await _page(client, topic, partition)
    place = page.first = page.last = min(max(offset, page.start), page.end)
    search = _Search(page, wanted)
    stop = min(page.end, place + (_SCANNED if wanted.text else PAGE))
    async with client.read(topic, partition, place, stop) as reader:
        async for message in reader:
            page.last = message.offset + 1
            if search.take(message, len(page.messages)) or search.is_late:
                break
    return page


async def read_back(
    client: AsyncClient, topic: str, partition: int, offset: int, wanted: Filter
) -> Page:
    """The messages before an offset, the nearest to it."""
    page = await _page(client, topic, partition)
    place = page.first = page.last = min(max(offset, page.start), page.end)
    search, step = _Search(page, wanted), PAGE
    while page.first > page.start and place - page.first < _SCANNED and not search.is_late:
        begin = max(page.start, page.first - step)
        chunk = await _read(client, topic, partition, begin, page.first)
        for message in reversed(chunk):
            page.first = message.offset
            if search.take(message, 0):
                return page
        page.first = begin
        # Large messages are read a few at a time: a chunk is in memory as a whole.
        if sum(len(message.value) for message in chunk) < _CHUNK_BYTES:
            step = min(2 * step, _CHUNK)
    return page


class _Search:
    """Puts the messages that are wanted on a page, until it is full or the time is over."""

    def __init__(self, page: Page, wanted: Filter) -> None:
        self._page = page
        self._wanted = wanted
        self._size = 0
        self._deadline = time.monotonic() + _SCAN_SECONDS

    def take(self, message: Message, place: int) -> bool:
        """Put it at this place, if it is wanted; returns whether the page is full."""
        if not self._wanted.text or self._wanted.matches(message):
            self._page.messages.insert(place, message)
            self._size += len(message.value)
        return len(self._page.messages) >= PAGE or self._size > _PAGE_BYTES

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._deadline


async def read_one(client: AsyncClient, topic: str, partition: int, offset: int) -> Message:
    """One message; raises `OffsetOutOfRange`."""
    async with client.read_range(topic, partition, offset, offset + 1) as reader:
        return await anext(aiter(reader))


async def _page(client: AsyncClient, topic: str, partition: int) -> Page:
    held = (await client.offsets(topic, [partition])).partitions[partition]
    return Page(held.start, held.end)


async def _read(
    client: AsyncClient, topic: str, partition: int, start: int, stop: int
) -> list[Message]:
    async with client.read(topic, partition, start, stop) as reader:
        return [message async for message in reader]
