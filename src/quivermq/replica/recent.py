"""Keeps entries from their write until they are applied, so that applying reads no disk.

An entry is handed out to be written, and applied a moment later. One that is not kept here, for
lack of room or after a restart, is read from the log.
"""

from collections.abc import Sequence

from quivermq.raft import Entry, entry_bytes


class Recent:
    """The newest entries of a log that are not applied, up to a number of bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_last")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # The last entry that was added; there may have been no room for it.
        self._last = 0
        # By index, each with its size.
        self._entries: dict[int, tuple[Entry, int]] = {}

    def add(self, entries: Sequence[Entry]) -> None:
        """Entries are handed out to be written, in place of all that was there from the first on.

        Where there is no room for more, the oldest stay: they are applied first.
        """
        first = entries[0].index
        if first <= self._last:
            self.forget([index for index in self._entries if index >= first])
        self._last = entries[-1].index
        for entry in entries:
            size = entry_bytes(entry)
            if self._bytes + size <= self._bytes_max:
                self._entries[entry.index] = (entry, size)
                self._bytes += size

    def run(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries from `low` on, before `high`, as long as they are here and fit; at least one."""
        found: list[Entry] = []
        known = self._entries
        for index in range(low, high):
            entry, size = known.get(index, (None, 0))
            bytes_max -= size
            if entry is None or (bytes_max < 0 and found):
                break
            found.append(entry)
        return found

    def forget(self, indexes: Sequence[int]) -> None:
        """These are applied, or replaced."""
        for index in indexes:
            _, size = self._entries.pop(index, (None, 0))
            self._bytes -= size

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)
