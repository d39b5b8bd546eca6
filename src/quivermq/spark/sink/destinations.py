"""Finds the topic, partition and priority of each row, for whole Arrow batches."""

from collections.abc import Callable, Iterator
from random import randrange
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quivermq.client import partition_of
from quivermq.errors import InvalidRequest
from quivermq.spark.sink.columns import MessageColumns

PRIORITY_MAX: Final = 7
TURN_BYTES: Final = 1_000_000
"""Rows without a key go to one partition until it has so many, then to the next."""

_BY_TURNS: Final = -1


class Destination(NamedTuple):
    """The topic, partition and priority that all messages of a stored batch share."""

    topic: str
    partition: int
    priority: int


class Dispatcher:
    """Splits the rows of one task by destination. Rows for one destination keep their order."""

    def __init__(
        self, columns: MessageColumns, partitions_of: Callable[[str], int], task: int = 0
    ) -> None:
        self._columns = columns
        self._partitions_of = partitions_of
        self._sizes: dict[str, int] = {}
        self._turns: dict[str, tuple[int, int]] = {}
        """By topic, the partition for rows without a key, and the bytes that it got."""
        self._task = task
        self._rows = 0

    def dispatch(self, batch: Any) -> Iterator[tuple[Destination, Any]]:
        """The messages of a batch, by destination."""
        self._check_values(batch)
        messages = self._columns.messages(batch)
        for topic, rows in self._topics(batch):
            part, inputs = _take(messages, rows), _take(batch, rows)
            places = self._partitions(topic, part, inputs)
            yield from self._groups(topic, part, places, self._priorities(inputs))
        self._rows += batch.num_rows

    def _check_values(self, batch: Any) -> None:
        values = self._columns.column("value", batch)
        if values.null_count:
            first = pc.index(pc.is_null(values), value=True).as_py()
            raise InvalidRequest(
                f"row {self._rows + first:,} of task {self._task} has no value (NULL), and a "
                "message needs one: filter such rows, or use coalesce(value, '')"
            )

    def _topics(self, batch: Any) -> list[tuple[str, Any]]:
        """Topics, each with its rows; None: all."""
        named, default = self._columns.column("topic", batch), self._columns.topic
        if named is None:
            return [(default or "", None)]
        if named.null_count:
            if default is None:
                first = pc.index(pc.is_null(named), value=True).as_py()
                raise InvalidRequest(
                    f"row {self._rows + first:,} of task {self._task} names no topic (NULL): set "
                    "the option 'topic' for such rows"
                )
            named = pc.fill_null(named, default)
        coded = pc.dictionary_encode(named)
        names = coded.dictionary.to_pylist()
        if len(names) == 1:
            return [(names[0], None)]
        codes = coded.indices.to_numpy()
        return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]

    def _partitions(self, topic: str, messages: Any, batch: Any) -> Any:
        """The partition of each row, `_BY_TURNS` for rows without a key; or one for all."""
        count = self._sizes.get(topic)
        if count is None:
            count = self._sizes[topic] = self._partitions_of(topic)
        given = self._columns.column("partition", batch)
        has_keys = "key" in messages.schema.names
        if given is None or given.null_count == len(given):
            if not has_keys:
                return _BY_TURNS
            return _by_key(messages.column("key"), count) if count > 1 else 0
        rest = _by_key(messages.column("key"), count) if has_keys else _BY_TURNS
        places = pc.fill_null(given.cast(pa.int64()), -2).to_numpy(zero_copy_only=False)
        wrong = places[(places >= count) | ((places < 0) & (places != -2))]
        if len(wrong) or _has(given, -2):
            shown = int(wrong[0]) if len(wrong) else -2
            raise InvalidRequest(
                f"topic {topic!r} has the partitions 0 to {count - 1}; a row wants {shown}"
            )
        return np.where(places == -2, rest, places)

    def _priorities(self, batch: Any) -> Any:
        """The priority of each row, or one for all."""
        given = self._columns.column("priority", batch)
        if given is None:
            return 0
        found = pc.fill_null(given.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        wrong = found[(found < 0) | (found > PRIORITY_MAX)]
        if len(wrong):
            raise InvalidRequest(f"a priority is 0 to {PRIORITY_MAX}; a row has {int(wrong[0])}")
        return found

    def _groups(
        self, topic: str, messages: Any, places: Any, priorities: Any
    ) -> Iterator[tuple[Destination, Any]]:
        if not messages.num_rows:
            return
        codes = places * (PRIORITY_MAX + 1) + priorities
        if isinstance(codes, int):
            kinds, order, bounds = [codes], None, [0, messages.num_rows]
        else:
            codes = np.broadcast_to(codes, messages.num_rows)
            order = np.argsort(codes, kind="stable")
            found, starts = np.unique(codes[order], return_index=True)
            kinds, bounds = found.tolist(), [*starts.tolist(), messages.num_rows]
        for number, code in enumerate(kinds):
            partition, priority = divmod(code, PRIORITY_MAX + 1)
            rows = order if order is None else order[bounds[number] : bounds[number + 1]]
            part = _take(messages, None if len(kinds) == 1 else rows)
            if partition == _BY_TURNS:
                partition = self._turn(topic, part.nbytes)
            yield Destination(topic, partition, priority), part

    def _turn(self, topic: str, size: int) -> int:
        """The partition for the next `size` bytes without a key."""
        count = self._sizes[topic]
        # A random first partition: many small tasks must not all fill the same one.
        turn, had = self._turns.get(topic) or (randrange(count), 0)  # noqa: S311
        if had >= TURN_BYTES:
            turn, had = (turn + 1) % count, 0
        self._turns[topic] = (turn, had + size)
        return turn


def _take(batch: Any, rows: Any) -> Any:
    return batch if rows is None else batch.take(pa.array(rows))


def _has(column: Any, value: int) -> bool:
    return bool(pc.any(pc.equal(column, value)).as_py())


def _by_key(keys: Any, count: int) -> Any:
    """The partition of each key, `_BY_TURNS` where there is none."""
    coded = pc.dictionary_encode(keys)
    places = [partition_of(key, count) for key in coded.dictionary.to_pylist()]
    codes = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
    return np.array([*places, _BY_TURNS], np.int64)[codes]
