"""Key to partition: the CRC-32C of the key, modulo the number of partitions.

Part of what users rely on, and the same in every language: see `docs/formats.md`, with examples.
"""

from collections.abc import Iterable

from crc32c import crc32c

from quivermq.errors import InvalidRequest


def partition_of(key: bytes, partitions: int) -> int:
    """Where messages with this key go."""
    return crc32c(key) % partitions


def check_partition(topic: str, partition: int, partitions: int) -> None:
    """Raise `InvalidRequest` unless a topic of so many partitions has this one."""
    if type(partition) is not int or not 0 <= partition < partitions:
        raise InvalidRequest(
            f"topic {topic!r} has the partitions 0 to {partitions - 1}: {partition!r}"
        )


def rows_by_partition(keys: Iterable[bytes | None], partitions: int) -> dict[int, list[int]]:
    """The rows for each partition, in order, of those that have a key; the others under -1."""
    rows: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        partition = -1 if key is None else crc32c(key) % partitions
        found = rows.get(partition)
        if found is None:
            rows[partition] = [row]
        else:
            found.append(row)
    return rows
