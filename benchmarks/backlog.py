"""What a poll costs, and a broker's memory, however many messages wait. See `consuming`."""

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.table import Table

import quivermq
from benchmarks.quiver import Brokers

SIZES = (1_000, 1_000_000, 10_000_000)
BATCH_MESSAGES = 1_000
VALUE = b"8 bytes."
POLLED_MESSAGES = 10
POLLS = 20
"""In a row, before the next broker has its turn; all of them are served out of 1,000 messages."""
TURNS = 4
ROUNDS = 5
TOPIC, GROUP = "backlog", "workers"
TARGET = 1.5


@dataclass(slots=True)
class Backlog:
    """Of one broker with so many messages waiting."""

    waiting: int
    poll_us: float = 0.0
    """A lease and its acknowledgement, on the wall, as a client sees it."""
    cpu_us: float = 0.0
    """The broker's part of it, in processor time."""
    memory_mb: float = 0.0


@dataclass(slots=True)
class Report:
    found: list[Backlog] = field(default_factory=list)

    def spread(self, name: str) -> float:
        counters = [getattr(each, name) for each in self.found]
        return max(counters) / min(counters)

    def table(self) -> Table:
        table = Table(
            title=f"a poll of {POLLED_MESSAGES} messages and its ack", title_justify="left"
        )
        for name in ("waiting", "poll + ack", "broker's CPU", "broker's memory"):
            table.add_column(name, justify="right")
        for each in self.found:
            table.add_row(
                f"{each.waiting:,}",
                f"{each.poll_us:,.0f} µs",
                f"{each.cpu_us:,.0f} µs",
                f"{each.memory_mb:,.0f} MB",
            )
        names = ("poll_us", "cpu_us", "memory_mb")
        table.add_row(f"largest / smallest, ≤ {TARGET}", *(self._judged(name) for name in names))
        return table

    def _judged(self, name: str) -> str:
        spread = self.spread(name)
        return f"{spread:.2f} {'met' if spread <= TARGET else 'MISSED'}"


class _Broker:
    """One with a backlog."""

    def __init__(self, size: int, opened: ExitStack) -> None:
        self.size = size
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bench-backlog-")))
        brokers = opened.enter_context(Brokers(folder, 1, "--fsync", "interval"))
        self._client = opened.enter_context(quivermq.connect(brokers.servers, timeout=30.0))
        self._process = psutil.Process(brokers.each[0].process.pid)
        self.poll_us: list[float] = []
        self.cpu_us: list[float] = []
        self._client.create_topic(TOPIC)
        self._fill(size)

    def _fill(self, count: int) -> None:
        values = [VALUE] * BATCH_MESSAGES
        for _ in range(count // BATCH_MESSAGES):
            self._client.produce_many(TOPIC, values)

    def poll(self) -> None:
        """Some polls; as many messages are put back behind."""
        cpu = sum(self._process.cpu_times()[:2])
        began = time.perf_counter()
        for _ in range(POLLS * TURNS):
            self._client.ack(self._client.poll(TOPIC, GROUP, POLLED_MESSAGES))
        polls = POLLS * TURNS
        self.poll_us.append((time.perf_counter() - began) / polls * 1e6)
        self.cpu_us.append((sum(self._process.cpu_times()[:2]) - cpu) / polls * 1e6)
        self._fill(BATCH_MESSAGES)

    @property
    def waiting(self) -> int:
        """As the broker counts them."""
        return self._client.group(TOPIC, GROUP).lag

    @property
    def memory_mb(self) -> float:
        return self._process.memory_info().rss / 1e6


def measure() -> Report:
    with ExitStack() as opened:
        brokers = [_Broker(size, opened) for size in SIZES]
        for _ in range(ROUNDS + 1):
            for broker in brokers:
                broker.poll()
        # The first round makes the group.
        return Report(
            [
                Backlog(
                    broker.waiting,
                    statistics.median(broker.poll_us[1:]),
                    statistics.median(broker.cpu_us[1:]),
                    broker.memory_mb,
                )
                for broker in brokers
            ]
        )
