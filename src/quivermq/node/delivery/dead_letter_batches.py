"""Encodes messages that move to another partition: into the dead letters, and back out of them.

The same source gives the same batches, byte for byte, on every leader: a target that has stored
them before recognises them by their producer and number. So batches follow those of the source's
log, whose bounds never change.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from quivermq.batches import (
    EXPIRES,
    Flag,
    Frame,
    Limits,
    Message,
    Origin,
    cut,
    decode_messages,
    encode_batches,
)
from quivermq.log import STORED_LIMITS
from quivermq.queue import DyingMessages, Interval
from quivermq.wire import (
    DELIVERIES_HEADER,
    GROUP_HEADER,
    LETTER_HEADERS,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TIME_HEADER,
    TOPIC_HEADER,
    LetterFilter,
)


class BatchSource(NamedTuple):
    """Where messages leave."""

    partition_id: bytes
    topic: str
    partition: int
    group: str


class Home(NamedTuple):
    """Where a dead letter came from."""

    topic: str
    partition: int


def producer_of(source: BatchSource, number: int | None = None) -> int:
    """The id under which a partition and group sends its dead letters; with a number, a redrive."""
    text = source.group if number is None else f"{source.group} {number}"
    digest = blake2b(source.partition_id + text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


class DeadLetterBatches:
    """The batches of a record in the dead-letter topic, batch by batch of the source."""

    def __init__(
        self, source: BatchSource, record: DyingMessages, target: str, epoch: int, limits: Limits
    ) -> None:
        self._source = source
        self._record = record
        self._home = Home(target, source.partition)
        self._epoch = epoch
        self._limits = limits
        self._producer = producer_of(source)

    def all_of(self, frame: Frame) -> list[tuple[Home, Frame]]:
        messages = _of_record(frame, self._record, self._limits)
        return list(self._letters(frame, messages, has_story=True)) if messages else []

    def one_by_one(self, frame: Frame) -> Iterator[tuple[Home, list[Frame]]]:
        """For a target that finds something too large: each message with its story, or else, if
        that is what makes it too large, without."""
        for message in _of_record(frame, self._record, self._limits):
            told, bare = (
                [letter for _, letter in self._letters(frame, [message], has_story=has_story)]
                for has_story in (True, False)
            )
            yield self._home, told + bare

    def _letters(
        self, frame: Frame, messages: list[Message], *, has_story: bool
    ) -> Iterator[tuple[Home, Frame]]:
        record = self._record
        origin = Origin(
            producer_id=self._producer,
            producer_epoch=self._epoch,
            sequence=record.number + messages[0].offset - record.start,
            priority=frame.header.priority,
        )
        headers = [
            _with_story(message, self._source, record) if has_story else message.headers
            for message in messages
        ]
        for letter in _encoded(frame, messages, headers, origin, self._limits):
            yield self._home, letter


class RedrivenBatches:
    """The batches of a record where its messages came from, or in the topic that they are to go
    to, batch by batch of the source.

    No home: the message does not say where it came from.
    """

    def __init__(self, source: BatchSource, record: DyingMessages, limits: Limits) -> None:
        self._source = source
        self._record = record
        self._limits = limits
        self._producer = producer_of(source, record.number)
        self._sent: dict[Home | None, int] = {}

    def all_of(self, frame: Frame) -> list[tuple[Home | None, Interval, Frame]]:
        """Each with the offsets that its messages have in the source."""
        return list(self._of(frame))

    def _of(self, frame: Frame) -> Iterator[tuple[Home | None, Interval, Frame]]:
        messages = _of_record(frame, self._record, self._limits)
        for home, group in groupby(messages, key=self._home_of):
            part = list(group)
            first = self._sent.get(home, 0)
            self._sent[home] = first + len(part)
            origin = Origin(
                producer_id=self._producer, sequence=first, priority=frame.header.priority
            )
            headers = [_without_story(message.headers) for message in part]
            at = int(part[0].offset)
            for batch in _encoded(frame, part, headers, origin, self._limits):
                yield home, (at, at + batch.header.count), batch
                at += batch.header.count

    def _home_of(self, message: Message) -> Home | None:
        home, target = home_of(message), self._record.reason
        if not target:
            return home
        return Home(target, self._source.partition if home is None else home.partition)


class StoredLetter(NamedTuple):
    """The origin of a dead letter."""

    place: int
    """Its own offset."""
    home: Home
    group: str
    offset: int
    """Of the original."""
    priority: int
    producer: int
    """The partition and the group that sent it, as a number."""

    def is_of(self, partition_id: bytes) -> bool:
        """Whether that partition sent it, and not one of an earlier topic of the same name, nor
        a client that writes what it likes."""
        source = BatchSource(partition_id, self.home.topic, self.home.partition, self.group)
        return self.producer == producer_of(source)


def letters_of(frame: Frame, record: DyingMessages, limits: Limits) -> list[StoredLetter]:
    """The letters of a record that say where they came from."""
    found: list[StoredLetter] = []
    header = frame.header
    for message in _of_record(frame, record, limits):
        home, group = home_of(message), message.headers.get(GROUP_HEADER)
        offset = message.headers.get(OFFSET_HEADER, b"")
        if home is not None and group is not None and offset.isdigit() and len(offset) < 19:
            found.append(
                StoredLetter(
                    int(message.offset),
                    home,
                    group.decode(errors="replace"),
                    int(offset),
                    header.priority,
                    header.producer_id,
                )
            )
    return found


def offsets_wanted(letters: LetterFilter, frames: Sequence[Frame], within: Interval) -> list[int]:
    """The offsets of letters that a filter wants, of those in an interval."""
    part = DyingMessages(0, *within, 0, "", 0)
    return [
        int(message.offset)
        for frame in frames
        for message in _of_record(frame, part, STORED_LIMITS)
        if letters.wants(message.headers, message.key, message.timestamp)
    ]


def home_of(message: Message) -> Home | None:
    """Where a dead letter says that it came from."""
    topic, partition = message.headers.get(TOPIC_HEADER), message.headers.get(PARTITION_HEADER)
    if topic is None or partition is None or not partition.isdigit() or len(partition) > 9:
        return None
    return Home(topic.decode(errors="replace"), int(partition))


def _of_record(frame: Frame, record: DyingMessages, limits: Limits) -> list[Message]:
    low = max(record.start, frame.header.base_offset)
    high = min(record.end, frame.header.next_offset)
    # Only these: others of a large batch would cost time for nothing.
    return decode_messages(cut(frame, low, high, limits), limits) if low < high else []


def _encoded(
    frame: Frame,
    messages: Sequence[Message],
    headers: Sequence[Mapping[str, bytes]],
    origin: Origin,
    limits: Limits,
) -> Iterator[Frame]:
    """Encode messages; what is too large for one batch with its headers becomes several."""
    has_times = frame.header.flags & int(Flag.TIMESTAMP)
    has_keys = frame.header.flags & int(Flag.KEY)
    return encode_batches(
        [message.value for message in messages],
        keys=[message.key for message in messages] if has_keys else None,
        headers=headers if any(headers) else None,
        timestamps=[message.timestamp for message in messages] if has_times else None,
        origin=origin,
        limits=limits,
    )


def _with_story(message: Message, source: BatchSource, record: DyingMessages) -> dict[str, bytes]:
    story = {
        REASON_HEADER: record.reason,
        GROUP_HEADER: source.group,
        TOPIC_HEADER: source.topic,
        PARTITION_HEADER: str(source.partition),
        OFFSET_HEADER: str(message.offset),
        DELIVERIES_HEADER: str(record.failures),
        TIME_HEADER: str(record.at_ms),
    }
    told = {name: text.encode(errors="replace") for name, text in story.items()}
    # A dead letter waits for as long as it takes.
    own = {name: value for name, value in message.headers.items() if name != EXPIRES}
    return {**own, **told}


def _without_story(headers: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in headers.items() if not name.startswith(LETTER_HEADERS)}
