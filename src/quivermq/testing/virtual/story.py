"""Records the events of a run: the last ones as text, and a digest of all of them.

Two runs are the same run exactly if their digests are equal.
"""

from collections import Counter, deque
from hashlib import blake2b
from typing import Final

from quivermq.testing.virtual.virtual_time import US_PER_MS, VirtualTime

LINES_KEPT: Final = 400


class Story:
    """The events of one run."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._digest = blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.faults: Counter[str] = Counter()
        """How often each fault struck."""
        self.counts: Counter[str] = Counter()
        """How often anything else worth counting happened."""

    @property
    def now_us(self) -> int:
        return self._time.now_us

    def tell(self, text: str) -> None:
        """An event that a reader of a failure wants to see."""
        seconds = self._time.now_us / (1000 * US_PER_MS)
        self.lines.append(f"{seconds:9.3f} s  {text}")
        self.trace(text)

    def trace(self, text: str) -> None:
        """An event that counts for the digest, and is too frequent to be shown."""
        self.trace_bytes(text.encode(), b"")

    def trace_bytes(self, what: bytes, data: bytes) -> None:
        """The same with bytes."""
        self._digest.update(b"%d %s\n%s" % (self._time.now_us, what, data))

    def strike(self, fault: str, text: str) -> None:
        """A fault, under the name by which it is counted."""
        self.faults[fault] += 1
        self.tell(f"fault {fault}: {text}")

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def last(self, lines: int) -> str:
        """The end of the story."""
        return "\n".join(list(self.lines)[-lines:])
