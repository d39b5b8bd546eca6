"""A thousand partitions on three brokers: what they cost to make, to keep, to open again, and to
lead on when a broker dies.

    python -m benchmarks.partitions [--partitions 1000] [--idle 30] [--topics 0] [--brief] [--json]

Real processes on one machine, replication 3, fsync=always. One client produces a message at a time
to another topic all along: what it waits for is what users of other topics wait for. Idle CPU is
measured once the groups have fallen asleep, and again once one broker is dead and the others have
its partitions; CPU also stands beside times, which say little on a machine that others use. Memory
and disk are what the partitions add to those of empty brokers. `--brief` leaves the restart out.
"""

import argparse
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import quivermq
from benchmarks.quiver import Brokers, cpu_seconds, resident, wait_for_brokers
from quivermq.cli.local_brokers import LocalBroker

IS_LONG = True
NODES = 3
SLEEP_SECONDS_MAX = 300.0
CREATE_SECONDS_MAX = 600.0
IDLE_CORE_TARGET = 0.05
TOPIC = "wide"
OTHER_TOPIC = "other"
OTHER_PARTITIONS = 3
OTHER_PAUSE_SECONDS = 0.02
UNDISTURBED_SECONDS = 5.0
# Those of the metadata and of the other topic.
STILL_AWAKE_MAX = NODES + NODES * OTHER_PARTITIONS


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
    undisturbed_ms: tuple[float, float] = (0.0, 0.0)
    """A produce to another topic: median, and the longest."""
    creating_ms: tuple[float, float] = (0.0, 0.0)
    topics: int = 0
    topic_cpu_ms: list[float] | None = None
    """Of each broker, for each topic of one partition that is made by itself."""
    failing_over_ms: tuple[float, float] = (0.0, 0.0)
    one_dead_ms: tuple[float, float] = (0.0, 0.0)

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


class OtherUser:
    """Produces to another topic, and notes how long each message takes."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._took: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "OtherUser":
        with quivermq.connect(self._servers, timeout=120.0) as client:
            client.create_topic(OTHER_TOPIC, partitions=OTHER_PARTITIONS, replication=NODES)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with quivermq.connect(self._servers, timeout=120.0) as client:
            while not self._is_over.wait(OTHER_PAUSE_SECONDS):
                began = time.perf_counter()
                client.produce(OTHER_TOPIC, b"x" * 100, partition=number % OTHER_PARTITIONS)
                self._took.append(time.perf_counter() - began)
                number += 1

    def take(self) -> tuple[float, float]:
        """Median and longest since this was last asked, in milliseconds."""
        while not self._took:
            time.sleep(OTHER_PAUSE_SECONDS)
        took, self._took = self._took, []
        return median(took) * 1000, max(took) * 1000


def measure(
    folder: Path, partitions: int, idle_seconds: float, *, topics: int, brief: bool
) -> Report:
    report = Report(partitions, topics=topics)
    with Brokers(folder, NODES) as brokers:
        each = brokers.each
        with quivermq.connect(brokers.servers, timeout=CREATE_SECONDS_MAX) as client:
            wait_for_brokers(client, NODES)
            memory, disk = sum(map(resident, each)), disk_used(folder)
            with OtherUser(brokers.servers) as other:
                create(client, each, other, report)
            # The metadata group may be awake: it is one.
            report.asleep_seconds = wait_until(
                lambda: awake(client, each) <= STILL_AWAKE_MAX, "the partitions do not fall asleep"
            )
            replicas = partitions * NODES
            report.partition_memory = (sum(map(resident, each)) - memory) / replicas
            report.partition_disk = (disk_used(folder) - disk) / replicas
            create_topics(client, each, report)
        report.idle_cores = idle_cores(each, idle_seconds)
        if not brief:
            restart(brokers, report)
        fail_over(brokers, report, idle_seconds)
    return report


def create(
    client: quivermq.Client, each: list[LocalBroker], other: OtherUser, report: Report
) -> None:
    time.sleep(UNDISTURBED_SECONDS)
    report.undisturbed_ms = other.take()
    spent = [cpu_seconds(broker) for broker in each]
    began = time.perf_counter()
    client.create_topic(TOPIC, partitions=report.partitions, replication=NODES)
    report.create_seconds = time.perf_counter() - began
    report.leaders_seconds = report.create_seconds + wait_until(
        lambda: is_led(client), "not every partition has a leader"
    )
    report.create_cpu = cpu_since(spent, each)
    report.creating_ms = other.take()


def create_topics(client: quivermq.Client, each: list[LocalBroker], report: Report) -> None:
    """One after the other, beside what is there already."""
    spent = [cpu_seconds(broker) for broker in each]
    for number in range(report.topics):
        client.create_topic(f"topic-{number}", partitions=1, replication=NODES)
    if report.topics:
        cpu = cpu_since(spent, each)
        report.topic_cpu_ms = [seconds * 1000 / report.topics for seconds in cpu]
        wait_until(lambda: awake(client, each) <= STILL_AWAKE_MAX, "topics do not fall asleep")


def restart(brokers: Brokers, report: Report) -> None:
    """Stop one broker and start it again: until it serves, and until it knows every leader."""
    broker = brokers.each[-1]
    broker.send(signal.SIGTERM)
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
    servers = ",".join(broker.place.listen for broker in others)
    with quivermq.connect(servers, timeout=120.0) as client:
        wait_until(
            lambda: awake(client, brokers.each) <= STILL_AWAKE_MAX, "the partitions stay awake"
        )
        report.failover_partitions = [p.leader for p in client.topic(TOPIC).partitions].count(
            dead.place.node_id
        )
        with OtherUser(servers) as other:
            time.sleep(UNDISTURBED_SECONDS)
            other.take()
            lose(dead, others, client, report)
            # The message that met the death of its leader counts too.
            time.sleep(UNDISTURBED_SECONDS / 5)
            report.failing_over_ms = other.take()
            time.sleep(UNDISTURBED_SECONDS)
            report.one_dead_ms = other.take()
        report.one_dead_asleep_seconds = wait_until(
            lambda: awake(client, others) <= STILL_AWAKE_MAX, "the partitions do not fall asleep"
        )
    report.one_dead_idle_cores = idle_cores(others, idle_seconds)


def lose(
    dead: LocalBroker, others: list[LocalBroker], client: quivermq.Client, report: Report
) -> None:
    spent = [cpu_seconds(broker) for broker in others]
    dead.send(signal.SIGKILL)
    dead.end(time.monotonic() + 30.0)
    alive = {broker.place.node_id for broker in others}
    report.failover_seconds = wait_until(
        lambda: leaders(client) <= alive, "not every partition has a new leader"
    )
    report.failover_cpu = cpu_since(spent, others)


def percents(cores: list[float] | None) -> str:
    return ", ".join(f"{each:.1%}" for each in cores or [])


def seconds(spent: list[float] | None) -> str:
    return ", ".join(f"{each:.1f} s" for each in spent or [])


def milliseconds(took: tuple[float, float]) -> str:
    return f"p50 {took[0]:.1f} ms, longest {took[1]:,.0f} ms"


def show(report: Report) -> None:
    idle = percents(report.idle_cores)
    print(f"{report.partitions:,} partitions, 3 brokers, replication 3, fsync=always")
    print(f"  created                          {report.create_seconds:8.2f} s")
    print(f"  CPU of each broker for it        {seconds(report.create_cpu)}")
    print(f"  all have leaders                 {report.leaders_seconds:8.2f} s")
    print(f"  all asleep, after that           {report.asleep_seconds:8.2f} s")
    print(f"  idle CPU of each broker          {idle} of a core; target < 5%: {report.settlement}")
    print(f"  produce to another topic         {milliseconds(report.undisturbed_ms)}")
    print(f"  the same while they are created  {milliseconds(report.creating_ms)}")
    if report.topic_cpu_ms:
        each = ", ".join(f"{spent:.1f} ms" for spent in report.topic_cpu_ms)
        print(f"  CPU for one more topic           {each}; {report.topics} were made one by one")
    print(f"  memory of a replica              {report.partition_memory / 1024:8.1f} KiB")
    print(f"  disk of an empty replica         {report.partition_disk / 1024:8.1f} KiB")
    if report.restart_seconds:
        print(f"  a broker serves after a restart  {report.restart_seconds:8.2f} s")
        print(f"  and knows every leader           {report.restart_ready_seconds:8.2f} s")
    print(f"  a broker dies that led           {report.failover_partitions:8,} partitions")
    print(f"  all are led again                {report.failover_seconds:8.2f} s")
    print(f"  CPU of each other for it         {seconds(report.failover_cpu)}")
    print(f"  produce to another topic then    {milliseconds(report.failing_over_ms)}")
    print(f"  and once all are led             {milliseconds(report.one_dead_ms)}")
    print(f"  all asleep, after that           {report.one_dead_asleep_seconds:8.2f} s")
    print(f"  idle CPU of the others           {percents(report.one_dead_idle_cores)} of a core")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--partitions", type=int, default=1000)
    arguments.add_argument("--idle", type=float, default=30.0, help="seconds")
    arguments.add_argument("--topics", type=int, default=0, help="made one by one, beside them")
    arguments.add_argument("--brief", action="store_true", help="without a restart")
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-partitions-"))
    try:
        report = measure(
            folder, options.partitions, options.idle, topics=options.topics, brief=options.brief
        )
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
