"""The memory of a broker while data passes through it: it must not grow with what has passed.

    python -m benchmarks.memory [--gigabytes 20] [--minutes 10] [--json]

One broker with fsync=interval and a topic that keeps 256 MB. A producer writes batches of 100-byte
messages as fast as they are acknowledged; a reader in another process follows. The broker's
resident memory is noted every few seconds; after a warm-up it must stay within 20 % of its median.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

import quivermq
from benchmarks.quiver import Brokers, random_values
from quivermq.errors import OffsetOutOfRange

IS_LONG = True
TOPIC = "passing"
KEPT_BYTES = 256 * 1024 * 1024
MESSAGE_BYTES = 100
CALL_MESSAGES = 50_000
TOLERANCE = 0.2
WARM_UP_SHARE = 0.2
LINES = 20


@dataclass(slots=True)
class Report:
    """Resident bytes over time, and what had passed by then."""

    seconds: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    written: int = 0
    read: int = 0

    @property
    def warm(self) -> list[int]:
        """Without the warm-up."""
        return self.resident[int(len(self.resident) * WARM_UP_SHARE) :]

    @property
    def spread(self) -> float:
        """The furthest from the median, as a share of it."""
        median = statistics.median(self.warm)
        return max(abs(one - median) for one in self.warm) / median

    @property
    def settlement(self) -> str:
        return "met" if self.spread <= TOLERANCE else "MISSED"


def follow(servers: str, read: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    """Read everything as it comes, until this process is ended; what was dropped is skipped."""
    with quivermq.connect(servers, timeout=60.0) as client:
        start: int | str = "earliest"
        while True:
            try:
                for batch in client.read(TOPIC, start=start, follow=True).batches():
                    read.value += batch.num_rows
                    start = batch.column("offset")[-1].as_py() + 1
            except OffsetOutOfRange:
                start = "earliest"


def measure(folder: Path, bytes_max: int, seconds_max: float) -> Report:
    report = Report()
    every = max(0.5, seconds_max / 300)
    values = random_values(CALL_MESSAGES, MESSAGE_BYTES)
    flags = ("--fsync", "interval", "--retention-interval-ms", "1000")
    read = multiprocessing.Value("q", 0)
    with Brokers(folder, 1, *flags) as brokers:
        process = psutil.Process(brokers.each[0].process.pid)
        with quivermq.connect(brokers.servers, timeout=60.0) as client:
            retention = quivermq.Retention(max_bytes=KEPT_BYTES)
            client.create_topic(TOPIC, retention=retention)
            reader = multiprocessing.Process(target=follow, args=(brokers.servers, read))
            reader.start()
            began = noted = time.perf_counter()
            passed = 0
            try:
                while passed < bytes_max and time.perf_counter() - began < seconds_max:
                    client.produce_many(TOPIC, values)
                    passed += CALL_MESSAGES * MESSAGE_BYTES
                    if time.perf_counter() - noted >= every or passed >= bytes_max:
                        noted = time.perf_counter()
                        report.seconds.append(noted - began)
                        report.resident.append(process.memory_info().rss)
                        report.passed.append(passed)
                        report.disk.append(disk_used(folder))
            finally:
                reader.terminate()
                reader.join()
    report.written, report.read = passed, read.value * MESSAGE_BYTES
    return report


def disk_used(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # retention was faster
    return total


def show(report: Report) -> None:
    print(f"a broker that keeps {KEPT_BYTES / 1e6:.0f} MB, while messages of 100 B pass through")
    print("   seconds   passed   memory     disk")
    step = max(1, len(report.seconds) // LINES)
    for number in range(0, len(report.seconds), step):
        print(
            f"  {report.seconds[number]:8.0f} {report.passed[number] / 1e9:5.1f} GB "
            f"{report.resident[number] / 1e6:5.0f} MB {report.disk[number] / 1e6:5.0f} MB"
        )
    warm = report.warm
    written, read = report.written / 1e9, report.read / 1e9
    print(f"  {written:.1f} GB written, {read:.1f} GB read by a follower")
    print(
        f"  after warm-up {min(warm) / 1e6:.0f} to {max(warm) / 1e6:.0f} MB, "
        f"{report.spread:.1%} from the median; target ± 20%: {report.settlement}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--gigabytes", type=float, default=20.0)
    arguments.add_argument("--minutes", type=float, default=10.0)
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-memory-"))
    try:
        report = measure(folder, int(options.gigabytes * 1e9), options.minutes * 60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        found = asdict(report) | {"spread": report.spread, "verdict": report.settlement}
        print(json.dumps({"benchmark": "memory", **found}))
    else:
        show(report)


if __name__ == "__main__":
    main()
