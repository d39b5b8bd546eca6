"""What a replica that catches up costs everybody else.

    python -m benchmarks.catch_up [--megabytes 1000] [--rounds 3] [--json]

Three brokers, replication 3, fsync=always. One of them is killed, a topic is filled, and the broker
is started again: it misses so much. Meanwhile single messages are produced to another topic, one
after the other; their latency stands beside that of the same messages before and after, with all
brokers up and nothing else to do.
"""

import argparse
import json
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import quivermq
from benchmarks.quiver import Brokers, random_values, wait_for_brokers

IS_LONG = True
NODES = 3
FILLED, USED = "filled", "used"
MESSAGE_BYTES = 10_000
CALL_MESSAGES = 400
SECONDS_MAX = 300.0
CALM_SECONDS = 10.0
PACE_SECONDS = 0.005
TARGET = 2.0


@dataclass(slots=True)
class Report:
    """Milliseconds, but for `seconds`, which is how long it took to catch up."""

    megabytes: int
    calm_p50: list[float] = field(default_factory=list)
    calm_p99: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the medians of the rounds' p99."""
        return statistics.median(self.p99) / statistics.median(self.calm_p99)

    @property
    def settlement(self) -> str:
        return "met" if self.ratio <= TARGET else "MISSED"


def latencies(client: quivermq.Client, is_over: Callable[[], bool]) -> list[float]:
    """Of single messages with a pause between them, in milliseconds, until it is over."""
    found = []
    while not is_over():
        began = time.perf_counter()
        client.produce(USED, b"x" * 100, partition=0)
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(PACE_SECONDS)
    return found


def percentiles(found: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(found, n=100)
    return cuts[49], cuts[98]


def fill(client: quivermq.Client, megabytes: int) -> None:
    values = random_values(CALL_MESSAGES, MESSAGE_BYTES)
    for _ in range(max(1, megabytes * 1_000_000 // (CALL_MESSAGES * MESSAGE_BYTES))):
        client.produce_many(FILLED, values, partition=0)


def has_caught_up(client: quivermq.Client) -> bool:
    """Whether all replicas of the filled topic have what is committed."""
    (partition,) = client.topic(FILLED).partitions
    return len(partition.in_sync or ()) == NODES


def calm(client: quivermq.Client) -> tuple[float, float]:
    until = time.perf_counter() + CALM_SECONDS
    return percentiles(latencies(client, lambda: time.perf_counter() > until))


def one_round(brokers: Brokers, client: quivermq.Client, report: Report) -> None:
    wait_for_brokers(client, NODES)
    client.create_topic(FILLED, partitions=1, replication=NODES)
    p50, p99 = calm(client)
    report.calm_p50.append(p50)
    report.calm_p99.append(p99)
    leaders = {client.topic(name).partitions[0].leader for name in (FILLED, USED)}
    victim = next(broker for broker in brokers.each if broker.place.node_id not in leaders)
    victim.process.send_signal(signal.SIGKILL)
    victim.process.wait()
    fill(client, report.megabytes)
    done = threading.Event()

    def watch() -> None:
        began = time.perf_counter()
        with quivermq.connect(brokers.servers, timeout=60.0) as other:
            while not has_caught_up(other) and time.perf_counter() - began < SECONDS_MAX:
                time.sleep(0.2)
        report.seconds.append(time.perf_counter() - began)
        done.set()

    brokers.start_again(victim)
    watcher = threading.Thread(target=watch)
    watcher.start()
    p50, p99 = percentiles(latencies(client, done.is_set))
    watcher.join()
    report.p50.append(p50)
    report.p99.append(p99)
    client.delete_topic(FILLED)


def measure(folder: Path, megabytes: int, rounds: int) -> Report:
    report = Report(megabytes)
    with (
        Brokers(folder, NODES) as brokers,
        quivermq.connect(brokers.servers, timeout=60.0) as client,
    ):
        wait_for_brokers(client, NODES)
        client.create_topic(USED, partitions=1, replication=NODES)
        for _ in range(rounds):
            one_round(brokers, client, report)
    return report


def show(report: Report) -> None:
    middle = statistics.median
    print(f"a replica that missed {report.megabytes:,} MB; medians of {len(report.p99)} rounds")
    print(f"  it has caught up after       {middle(report.seconds):8.1f} s")
    print("  a produce to another topic        p50        p99")
    for name, p50, p99 in (
        ("undisturbed", report.calm_p50, report.calm_p99), ("meanwhile", report.p50, report.p99),
    ):  # fmt: skip
        print(f"    {name:<25}{middle(p50):7.2f} ms {middle(p99):7.2f} ms")
    print(f"  p99: {report.ratio:.2f} x; target {TARGET:g} x: {report.settlement}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.megabytes, options.rounds)
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        show(report)


if __name__ == "__main__":
    main()
