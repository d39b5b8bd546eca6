"""This checkout beside another one of QuiverMQ: the same work through the public client, in turns.

    git worktree add ../before SOME_COMMIT
    python -m benchmarks.versions --before ../before [--nodes 3]

Each round starts a broker and a program of one version and then of the other, so that whatever else
the machine does meets both. Figures are medians of the rounds, as a ratio to the other version.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

IS_LONG = True

ROOT: Final = Path(__file__).parents[1]
SINGLES: Final = 1_500


def measure(fsync: str, seconds: float, nodes: int) -> dict[str, float]:
    """The figures of the version that is imported."""
    import quivermq  # noqa: PLC0415  (of the version that is asked for)
    from quivermq.cli.local_brokers import LocalBrokers, plan  # noqa: PLC0415

    value = b"x" * 100
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        places = plan(nodes, Path(folder), any_ports=True)
        flags = ("--log-level", "warning", "--fsync", fsync)
        with LocalBrokers(places, Path(folder), flags) as brokers:
            brokers.wait_until_serving(30.0)
            pids = [broker.process.pid for broker in brokers.brokers]
            with quivermq.connect(brokers.servers, timeout=30.0) as client:
                client.create_topic("t", replication=nodes)
                client.produce("t", value)
                laps, cpu = [], cpu_s(pids)
                for _ in range(SINGLES):
                    began = time.perf_counter()
                    client.produce("t", value)
                    laps.append(time.perf_counter() - began)
                found["lone produce p50 us"] = statistics.median(laps) * 1e6
                found["lone produce, brokers' CPU us"] = (cpu_s(pids) - cpu) / SINGLES * 1e6
                values = [value] * 100_000
                found["produce_many messages/s"] = rate(
                    seconds, lambda: client.produce_many("t", values) and len(values)
                )
                for size in (10, 1_000):
                    cpu, began = cpu_s(pids), time.perf_counter()
                    polls = 0
                    while time.perf_counter() - began < seconds:
                        client.ack(client.poll("t", group="g", max_messages=size, wait=0.0))
                        polls += 1
                    took = time.perf_counter() - began
                    found[f"poll of {size} + ack us"] = took / polls * 1e6
                    found[f"poll of {size} + ack, brokers' CPU us"] = (
                        (cpu_s(pids) - cpu) / polls * 1e6
                    )
                with client.subscribe("t", group="pushed") as pushed:
                    began, count = time.perf_counter(), 0
                    for message in pushed:
                        message.ack()
                        count += 1
                        if count % 1_000 == 0 and time.perf_counter() - began > seconds:
                            break
                    found["subscribe messages/s"] = count / (time.perf_counter() - began)
                began, count = time.perf_counter(), 0
                for batch in client.read("t", 0).batches():
                    count += batch.num_rows
                found["read messages/s"] = count / (time.perf_counter() - began)
    return found


def cpu_s(pids: list[int]) -> float:
    """The processor time of some processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rate(seconds: float, step: object) -> float:
    began, messages = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        messages += step()  # type: ignore[operator]
    return messages / (time.perf_counter() - began)


def run(checkout: Path, fsync: str, seconds: float, nodes: int) -> dict[str, float]:
    """The figures of a version, from a process of its own."""
    command = [
        sys.executable, str(Path(__file__)),
        "--fsync", fsync, "--seconds", str(seconds), "--nodes", str(nodes),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return figures


def compare(before: Path, rounds: int, seconds: float, kinds: list[str], nodes: int) -> None:
    for fsync in kinds:
        told: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for _ in range(rounds):
            told["before"].append(run(before, fsync, seconds, nodes))
            told["now"].append(run(ROOT, fsync, seconds, nodes))
        print(f"fsync {fsync}, medians of {rounds} rounds in turns")
        for name in told["now"][0]:
            was, now = (statistics.median(one[name] for one in told[when]) for when in told)
            print(f"  {name:<36} {was:>12,.0f} {now:>12,.0f}   x {now / was:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--kinds", default="interval,always", help="values of --fsync of brokers")
    parser.add_argument("--fsync", default="", help="measure what is imported, and print JSON")
    parser.add_argument("--nodes", type=int, default=1, help="brokers, and replicas of the topic")
    options = parser.parse_args()
    if options.fsync:
        print(json.dumps(measure(options.fsync, options.seconds, options.nodes)))
    elif options.before:
        compare(
            options.before.absolute(),
            options.rounds,
            options.seconds,
            options.kinds.split(","),
            options.nodes,
        )
    else:
        parser.error("name another checkout with --before")


if __name__ == "__main__":
    main()
