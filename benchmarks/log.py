"""The log on a real disk, each figure beside a reference from the same run.

    python -m benchmarks.log [--quick] [--messages 10000000] [--json]

append   groups of frames with one fsync each, against the same bytes through bare `pwrite` and
         `fdatasync` into a preallocated file. The two take turns group by group, because the speed
         of a shared disk changes from second to second; compared are the sums of the two.
open     a partition of 1,000-message batches: time to open it, and memory, in a fresh process.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from quivermq.batches import Frame, encode_batch
from quivermq.log import Log, RealDisk

FOLDER = "log/bench/0"
SHARE_TARGET = 0.8
OPEN_SECONDS_TARGET = 1.0

# Messages per batch, batches per group, groups.
SHAPES = ((1, 1, 1500), (100, 1, 1500), (1000, 1, 1000), (1000, 10, 200))


class BareDisk:
    """What the disk itself does: sequential writes into reserved space, an fsync each."""

    def __init__(self, root: Path, group: int, groups: int) -> None:
        self.data = os.urandom(group)
        self.descriptor = os.open(root / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self.descriptor, 0, group * groups)
        os.fsync(self.descriptor)
        self.at = 0

    def append(self) -> None:
        os.pwrite(self.descriptor, self.data, self.at)
        os.fdatasync(self.descriptor)
        self.at += len(self.data)


class OurLog:
    """The same through a log; stamping included, as a leader does it."""

    def __init__(self, log: Log, batch: Frame, batches: int) -> None:
        self.log, self.batch, self.batches = log, batch, batches

    def fill_first_segment(self) -> None:
        """Get past the first segment, which grows in steps: the next ones are whole at once."""
        filler = OurLog(self.log, batch_of(1000), 100)
        while len(self.log.segment_starts) == 1:
            filler.append()

    def append(self) -> None:
        edge, frames = self.log.edge, []
        for _ in range(self.batches):
            frame = self.batch.stamped(
                term=1,
                index=edge.next_index,
                base_offset=edge.next_offset,
                timestamp_ms=1_700_000_000_000,
            )
            edge = edge.after(frame.header)
            frames.append(frame)
        self.log.append(frames)
        self.log.sync()


def new_log(root: Path) -> Log:
    return Log.create(RealDisk(root), FOLDER, os.urandom(16))


def batch_of(messages: int, size: int = 100) -> Frame:
    return encode_batch([os.urandom(size) for _ in range(messages)])


def measure_append(root: Path, messages: int, batches: int, groups: int) -> dict[str, float]:
    batch = batch_of(messages)
    ours, bare = OurLog(new_log(root), batch, batches), BareDisk(root, len(batch) * batches, groups)
    ours.fill_first_segment()
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(groups):
        pair = [("ours", ours), ("bare", bare)]
        for name, subject in pair if number % 2 else reversed(pair):
            start = time.perf_counter()
            subject.append()
            times[name].append(time.perf_counter() - start)
    os.close(bare.descriptor)
    for path in (root / "bare", root / "log"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    seconds = {name: sum(taken) for name, taken in times.items()}
    total = len(batch) * batches * groups
    return {
        "messages": messages * batches,
        "group_bytes": len(batch) * batches,
        "ours_mb_per_s": total / seconds["ours"] / 1e6,
        "bare_mb_per_s": total / seconds["bare"] / 1e6,
        "ours_p50_us": statistics.median(times["ours"]) * 1e6,
        "bare_p50_us": statistics.median(times["bare"]) * 1e6,
        "messages_per_s": messages * batches * groups / seconds["ours"],
        "share": seconds["bare"] / seconds["ours"],
        "share_p50": statistics.median(times["bare"]) / statistics.median(times["ours"]),
    }


OPENER = """
import json, resource, sys, time
from quivermq.batches import Index, Offset
from quivermq.log import Log, RealDisk
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, start = resident(), time.perf_counter()
log = Log.open(RealDisk(sys.argv[1]), "log/bench/0")
opened, after_open = time.perf_counter() - start, resident()
end, times = log.edge.next_offset, []
for number in range(200):
    start = time.perf_counter()
    log.read(log.index_of_offset(Offset(number * 7919 * 1013 % end)), bytes_max=1)
    times.append(time.perf_counter() - start)
for footer in log._sealed.footers: log._sealed.segment(footer).index.term_at(footer.first_index)
print(json.dumps({"open_s": opened, "open_mb": (after_open - before) / 1e6,
    "touched_mb": (resident() - before) / 1e6, "messages": end, "segments": len(log.segment_starts),
    "lookup_p50_us": sorted(times)[100] * 1e6}))
"""


def measure_open(root: Path, messages: int, size: int) -> dict[str, float]:
    """Write a partition, then open it in a process that has done nothing else."""
    subject = OurLog(new_log(root), batch_of(1000, size), 100)
    for _ in range(messages // 100_000):
        subject.append()
    stored = subject.log.size_bytes
    command = [sys.executable, "-c", OPENER, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(root / "log")
    return {**json.loads(done.stdout), "size": size, "stored_mb": stored / 1e6}


def show_append(rows: list[dict[str, float]], console: Console) -> None:
    table = Table(title="append + fsync, 100-byte messages (ours / bare disk, taking turns)")
    for name in (
        "messages a group",
        "group",
        "ours",
        "bare",
        "p50",
        "messages/s",
        "share",
        "target",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['messages']:,}",
            f"{row['group_bytes']:,} B",
            f"{row['ours_mb_per_s']:,.1f} MB/s",
            f"{row['bare_mb_per_s']:,.1f} MB/s",
            f"{row['ours_p50_us']:,.0f} / {row['bare_p50_us']:,.0f} µs",
            f"{row['messages_per_s']:,.0f}",
            f"{row['share']:.0%} (p50 {row['share_p50']:.0%})",
            f"{SHARE_TARGET:.0%}",
        )
    console.print(table)


def show_open(rows: list[dict[str, float]], console: Console) -> None:
    table = Table(title="opening a partition of 1,000-message batches, in a fresh process")
    for name in (
        "messages",
        "of",
        "stored",
        "segments",
        "open",
        "target",
        "memory",
        "all indexes",
        "lookup p50",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['messages']:,}",
            f"{row['size']} B",
            f"{row['stored_mb']:,.0f} MB",
            f"{row['segments']}",
            f"{row['open_s'] * 1000:,.1f} ms",
            f"{OPEN_SECONDS_TARGET:.0f} s",
            f"{row['open_mb']:.1f} MB",
            f"{row['touched_mb'] / (row['messages'] / 1e6):.2f} MB a million",
            f"{row['lookup_p50_us']:.0f} µs",
        )
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--messages", type=int, default=10_000_000, help="in the opened partition")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="quiver-bench-", dir="."))
    try:
        part = 10 if options.quick else 1
        appends = [measure_append(root, m, b, groups // part) for m, b, groups in SHAPES]
        opens = [
            measure_open(root, options.messages // part, 100),
            measure_open(root, options.messages * 10 // part, 1),
        ]
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps({"append": appends, "open": opens}, indent=2))
        return
    console = Console(width=140)
    show_append(appends, console)
    show_open(opens, console)


if __name__ == "__main__":
    main()
