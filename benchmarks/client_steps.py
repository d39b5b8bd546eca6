"""The client's own steps for a lone produce, without a network: of this checkout and of another.

    python -m benchmarks.client_steps [--before CHECKOUT] [--rounds 5]

A socket that answers by itself stands in for the broker, and its time is left out. So caches stay
warm and no other process has a part in it: the figures are the same on a busy machine. What a
program sees is more, since it waits, and its caches are cold when it goes on: `client_cost`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
ADDRESS: Final = "127.0.0.1:1"
VALUE: Final = b"x" * 100
CALLS: Final = 2_000


def measure() -> dict[str, float]:
    """Median µs of a call, by what is produced."""
    import quivermq  # noqa: PLC0415  (of the version that is asked for)
    from quivermq.client.blocking_transport import BlockingTransport  # noqa: PLC0415
    from quivermq.wire import Receiver, packet, parse_request, proto  # noqa: PLC0415

    class Broker:
        """A socket, and what is behind it."""

        spent_ns = 0
        answers: dict[str, Callable[[], Any]] = {  # noqa: RUF012
            "hello": lambda: proto.Response(welcome=proto.Welcome(protocol=2)),
            "ping": lambda: proto.Response(done=proto.Done()),
            "map": lambda: proto.Response(
                map=proto.ClusterMap(
                    brokers=[proto.Broker(id=1, address=ADDRESS, alive=True)],
                    topics=[
                        proto.TopicMap(
                            name="t",
                            id=b"0123456789abcdef",
                            replication=1,
                            partitions=[proto.PartitionMap(partition=0, leader=1, replicas=[1])],
                        )
                    ],
                    node=1,
                    leader=1,
                    version=1,
                )
            ),
            "new_producer": lambda: proto.Response(
                producer_granted=proto.ProducerGranted(producer_id=7)
            ),
            "produce": lambda: proto.Response(
                produced=proto.Produced(
                    batches=[
                        proto.Stored(first_offset=70_000, count=1, timestamp_ms=1_700_000_000_000)
                    ]
                )
            ),
        }

        def __init__(self) -> None:
            self._receiver = Receiver(1 << 20)
            self._answer = b""

        def sendall(self, sent: bytes) -> None:
            began = time.perf_counter_ns()
            self._receiver.get_buffer()[: len(sent)] = sent
            for found in self._receiver.received(len(sent)):
                request = parse_request(found.envelope)
                response = self.answers[request.WhichOneof("body") or ""]()
                response.id = request.id
                self._answer += b"".join(packet(response.SerializeToString()))
            Broker.spent_ns += time.perf_counter_ns() - began

        def recv_into(self, buffer: memoryview) -> int:
            answer, self._answer = self._answer, b""
            buffer[: len(answer)] = answer
            return len(answer)

        def recv(self, *_: object) -> bytes:
            raise BlockingIOError  # nothing has come

        def nothing(self, *_: object) -> None: ...

        setsockopt = settimeout = shutdown = close = nothing

    setattr(BlockingTransport, "_socket", lambda *_: Broker())  # noqa: B010  (of any version)
    client = quivermq.connect(ADDRESS)

    def median_us(call: Callable[[], object]) -> float:
        laps = []
        for _ in range(CALLS):
            Broker.spent_ns, began = 0, time.perf_counter_ns()
            call()
            laps.append(time.perf_counter_ns() - began - Broker.spent_ns)
        return statistics.median(laps[CALLS // 4 :]) / 1e3

    return {
        "lone produce": median_us(lambda: client.produce("t", VALUE)),
        "with a key": median_us(lambda: client.produce("t", VALUE, key=b"k")),
        "with headers": median_us(lambda: client.produce("t", VALUE, headers={"a": b"1"})),
    }


def run(checkout: Path) -> dict[str, float]:
    """The figures of a version, from a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(Path(__file__)), "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help="what is imported, as JSON")
    parser.add_argument("--json", action="store_true", help="one JSON line for programs")
    options, _ = parser.parse_known_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    checkouts = [options.before.absolute(), ROOT] if options.before else [ROOT]
    figures = [[run(checkout) for checkout in checkouts] for _ in range(options.rounds)]
    found = {
        name: [
            statistics.median(turn[number][name] for turn in figures)
            for number in range(len(checkouts))
        ]
        for name in figures[0][0]
    }
    if options.json:
        print(json.dumps({"benchmark": "client_steps", "us": found}))
        return
    print(f"steps of the client without a network, µs, medians of {options.rounds} rounds in turns")
    for name, medians in found.items():
        print(f"  {name:<20}" + "".join(f"{each:>8.1f}" for each in medians))


if __name__ == "__main__":
    main()
