"""A thousand partitions on three brokers: what they cost to make, to keep, to open again, and to
lead on when a broker dies.

    python -m benchmarks.partitions [--partitions 1000] [--idle 30] [--json]

Real processes on one machine, replication 3, fsync=always. Idle CPU is measured once the groups
have fallen asleep, and again once one broker is dead and the others have its partitions; CPU also
stands beside times, which say little on a machine that others use. Memory and disk are what the
partitions add to those of empty brokers.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import quivermq
from benchmarks.quiver import Brokers, cpu_seconds, resident, wait_for_brokers
from quivermq.cli.local_brokers import LocalBroker

IS_LONG = True
NODES = 3
SLEEP_SECONDS_MAX = 120.0
IDLE_CORE_TARGET = 0.05
TOPIC = "wide"


@dataclass(slots=True)
class Report:
    """All figures; sizes are in bytes, per node where they are lists."""

    partitions: int
    create_seconds: float = 0.0
    create_cpu: list[float] | None = None
    leaders_seconds: float = 0.0
    asleep_seconds: float = 0.0
    idle_cores: list[float] | None = None
    partition_memory: float = 0.0
    partition_disk: float = 0.0
    restart_seconds: float = 0.0
    restart_ready_seconds: float = 0.0
    failover_partitions: int = 0
    failover_seconds: float = 0.0
    failover_cpu: list[float] | None = None
    one_dead_asleep_seconds: float = 0.0
    one_dead_idle_cores: list[float] | None = None

    @property
    def settlement(self) -> str:
        idle = [*(self.idle_cores or [1.0]), *(self.one_dead_idle_cores or [1.0])]
        return "met" if max(idle) < IDLE_CORE_TARGET else "MISSED"


def disk_used(folder: Path) -> int:
    """What the files occupy, reserved space included."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """How long it took."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > SLEEP_SECONDS_MAX:
            raise TimeoutError(what)
        time.sleep(0.1)
    return time.perf_counter() - began


def is_led(client: quivermq.Client) -> bool:
    return all(partition.leader for partition in client.topic(TOPIC).partitions)


def awake(client: quivermq.Client, brokers: list[LocalBroker]) -> float:
    return sum(client.stats(broker.place.listen)["partitions_awake"] for broker in brokers)


def idle_cores(brokers: list[LocalBroker], seconds: float) -> list[float]:
    before = [cpu_seconds(broker) for broker in brokers]
    began = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    after = [cpu_seconds(broker) for broker in brokers]
    return [(end - start) / passed for start, end in zip(before, after, strict=True)]


def cpu_since(before: list[float], brokers: list[LocalBroker]) -> list[float]:
    return [cpu_seconds(broker) - spent for broker, spent in zip(brokers, before, strict=True)]


def measure(folder: Path, partitions: int, idle_seconds: float) -> Report:
    report = Report(partitions)
    with Brokers(folder, NODES) as brokers:
        each = brokers.each
        with quivermq.connect(brokers.servers, timeout=120.0) as client:
            wait_for_brokers(client, NODES)
            memory, disk = sum(map(resident, each)), disk_used(folder)
            spent = [cpu_seconds(broker) for broker in each]
            began = time.perf_counter()
            client.create_topic(TOPIC, partitions=partitions, replication=NODES)
            report.create_seconds = time.perf_counter() - began
            report.leaders_seconds = report.create_seconds + wait_until(
                lambda: is_led(client), "not every partition has a leader"
            )
            report.create_cpu = cpu_since(spent, each)
            # The metadata group may be awake: it is one.
            report.asleep_seconds = wait_until(
                lambda: awake(client, each) <= NODES, "the partitions do not fall asleep"
            )
            replicas = partitions * NODES
            report.partition_memory = (sum(map(resident, each)) - memory) / replicas
            report.partition_disk = (disk_used(folder) - disk) / replicas
        report.idle_cores = idle_cores(each, idle_seconds)
        restart(brokers, report)
        fail_over(brokers, report, idle_seconds)
    return report


def restart(brokers: Brokers, report: Report) -> None:
    """Stop one broker and start it again: until it serves, and until it knows every leader."""
    broker = brokers.each[-1]
    broker.terminate()
    broker.end(time.monotonic() + 30.0)
    began = time.perf_counter()
    brokers.start_again(broker)
    wait_until(lambda: broker.ready() is not None, "the broker does not start")
    report.restart_seconds = time.perf_counter() - began
    with quivermq.connect(broker.place.listen, timeout=60.0) as client:
        wait_until(lambda: is_led(client), "not every partition has a leader")
    report.restart_ready_seconds = time.perf_counter() - began


def leaders(client: quivermq.Client) -> set[int]:
    return {partition.leader for partition in client.topic(TOPIC).partitions}


def fail_over(brokers: Brokers, report: Report, idle_seconds: float) -> None:
    """Kill a broker while all sleep: until others lead its partitions, and what they cost then."""
    # Not the one that was started again: that one leads few.
    dead, *others = brokers.each
    with quivermq.connect(",".join(b.place.listen for b in others), timeout=120.0) as client:
        wait_until(lambda: awake(client, brokers.each) <= NODES, "the partitions stay awake")
        report.failover_partitions = [p.leader for p in client.topic(TOPIC).partitions].count(
            dead.place.node_id
        )
        spent = [cpu_seconds(broker) for broker in others]
        dead.process.kill()
        dead.process.wait()
        alive = {broker.place.node_id for broker in others}
        report.failover_seconds = wait_until(
            lambda: leaders(client) <= alive, "not every partition has a new leader"
        )
        report.failover_cpu = cpu_since(spent, others)
        report.one_dead_asleep_seconds = wait_until(
            lambda: awake(client, others) <= NODES, "the partitions do not fall asleep"
        )
    report.one_dead_idle_cores = idle_cores(others, idle_seconds)


def percents(cores: list[float] | None) -> str:
    return ", ".join(f"{each:.1%}" for each in cores or [])


def seconds(spent: list[float] | None) -> str:
    return ", ".join(f"{each:.1f} s" for each in spent or [])


def show(report: Report) -> None:
    idle = percents(report.idle_cores)
    print(f"{report.partitions:,} partitions, 3 brokers, replication 3, fsync=always")
    print(f"  created                          {report.create_seconds:8.2f} s")
    print(f"  CPU of each broker for it        {seconds(report.create_cpu)}")
    print(f"  all have leaders                 {report.leaders_seconds:8.2f} s")
    print(f"  all asleep, after that           {report.asleep_seconds:8.2f} s")
    print(f"  idle CPU of each broker          {idle} of a core; target < 5%: {report.settlement}")
    print(f"  memory of a replica              {report.partition_memory / 1024:8.1f} KiB")
    print(f"  disk of an empty replica         {report.partition_disk / 1024:8.1f} KiB")
    print(f"  a broker serves after a restart  {report.restart_seconds:8.2f} s")
    print(f"  and knows every leader           {report.restart_ready_seconds:8.2f} s")
    print(f"  a broker dies that led           {report.failover_partitions:8,} partitions")
    print(f"  all are led again                {report.failover_seconds:8.2f} s")
    print(f"  CPU of each other for it         {seconds(report.failover_cpu)}")
    print(f"  all asleep, after that           {report.one_dead_asleep_seconds:8.2f} s")
    print(f"  idle CPU of the others           {percents(report.one_dead_idle_cores)} of a core")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--partitions", type=int, default=1000)
    arguments.add_argument("--idle", type=float, default=30.0, help="seconds")
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-partitions-"))
    try:
        report = measure(folder, options.partitions, options.idle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(
            json.dumps({"benchmark": "partitions", **asdict(report), "verdict": report.settlement})
        )
    else:
        show(report)


if __name__ == "__main__":
    main()
