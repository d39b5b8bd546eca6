"""Produce and push through each door, in turns: TCP, TCP through a gateway, gRPC with Arrow bytes.

    python -m benchmarks.doors [--messages 1000000] [--json]

One broker and one gateway in processes of their own, one client of each in this one. The same Arrow
batches of 10,000 messages of 100 bytes are produced by `produce_many` and by a session with a few
requests open, and consumed as Arrow with auto-ack. By TCP Arrow is polled, in answers of one batch;
by gRPC it is pushed, in answers of as much as there is credit for. Every batch is read by Arrow on
the way in and out. Single messages: the time of one produce after the other. Idle: the processor
time of a broker that does nothing, with and without gRPC.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
import psutil
import pyarrow as pa

import quivermq
from quivermq.testing import Cluster
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api

SIZE, BATCH, ROUNDS, OPEN = 100, 10_000, 5, 8
SINGLES = 500
IDLE_S = 5.0


class Session:
    """A session of a blocking client."""

    def __init__(self, channel: Any, group: str = "") -> None:
        self._requests: SimpleQueue[api.Request | None] = SimpleQueue()
        call = channel.stream_stream(
            "/quiver.v1.Quiver/Session",
            request_serializer=api.Request.SerializeToString,
            response_deserializer=api.Response.FromString,
        )
        self._answers = call(self._said())
        self._number = 0
        self.say(hello=api.Hello(client="benchmark", group=group))
        assert self.hear().WhichOneof("body") == "welcome"

    def _said(self) -> Iterator[api.Request]:
        while (request := self._requests.get()) is not None:
            yield request

    def say(self, **body: Any) -> int:
        self._number += 1
        self._requests.put(api.Request(id=self._number, **body))
        return self._number

    def hear(self) -> api.Response:
        response = next(self._answers)
        assert not response.HasField("error"), response.error
        return response

    def close(self) -> None:
        self._requests.put(None)
        for _ in self._answers:
            continue


def stream_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Doors:
    """The same work through each transport."""

    def __init__(self, channel: Any, messages: int) -> None:
        self._channel = channel
        self._batches = messages // BATCH
        self.messages = self._batches * BATCH
        values = pa.array([bytes(SIZE)] * BATCH, pa.binary())
        self._table = pa.table({"value": values})
        self._rounds = 0

    def produce_tcp(self, client: quivermq.Client, topic: str) -> None:
        client.produce_many(topic, pa.concat_tables([self._table] * self._batches))

    def produce_grpc(self) -> None:
        session = Session(self._channel)
        waiting = 0
        for _ in range(self._batches):
            request = api.ProduceRequest(topic="grpc", partition=0, arrow=stream_of(self._table))
            session.say(produce=request)
            waiting += 1
            if waiting >= OPEN:
                session.hear()
                waiting -= 1
        session.close()

    def consume_tcp(self, client: quivermq.Client, topic: str) -> None:
        self._rounds += 1
        left = self.messages
        while left > 0:
            found = client.poll_arrow(
                topic, group=f"g{self._rounds}", max_messages=BATCH, ack="auto"
            )
            left -= found.table.num_rows

    def consume_grpc(self) -> None:
        self._rounds += 1
        session = Session(self._channel, f"g{self._rounds}")
        subscribe = api.Subscribe(
            topic="grpc",
            credit=OPEN * BATCH,
            format=api.FORMAT_ARROW,
            auto_ack=True,
            max_bytes=16 << 20,
        )
        number = session.say(subscribe=subscribe)
        left = self.messages
        while left > 0:
            response = session.hear()
            rows = 0
            for delivery in response.push.deliveries:
                for batch in delivery.batches:
                    pa.ipc.open_stream(batch.stream).read_all()
                    # Of a batch that is leased in parts, each push has only its part.
                    rows += sum(part.count for part in batch.leased)
            if rows:
                session.say(credit=api.Credit(subscription=number, messages=rows))
            left -= rows
        session.close()

    def singles_tcp(self, client: quivermq.Client) -> None:
        for _ in range(SINGLES):
            client.produce("single", b"x" * SIZE)

    def singles_grpc(self) -> None:
        produce = self._channel.unary_unary(
            "/quiver.v1.Quiver/Produce",
            request_serializer=api.ProduceRequest.SerializeToString,
            response_deserializer=api.ProduceResponse.FromString,
        )
        message = api.NewMessage(value=b"x" * SIZE)
        request = api.ProduceRequest(topic="single", messages=[message])
        for _ in range(SINGLES):
            produce(request)


def measure(messages: int) -> dict[str, float]:
    """Medians of rounds in which the doors take turns."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-doors-") as folder,
        Cluster(1, folder, {"grpc": "127.0.0.1:0", "fsync": "never"}) as cluster,
        quivermq.connect(cluster.servers) as client,
        quivermq.connect(cluster.add_gateway().address) as behind,
        grpc.insecure_channel(
            cluster.nodes[1].grpc_address, options=[("grpc.max_receive_message_length", 64 << 20)]
        ) as channel,
    ):
        for topic in ("tcp", "gateway", "grpc", "single"):
            client.create_topic(topic)
        doors = Doors(channel, messages)
        count = doors.messages
        works: dict[str, tuple[Callable[[], None], int]] = {
            "produce_tcp": (partial(doors.produce_tcp, client, "tcp"), count),
            "produce_gateway": (partial(doors.produce_tcp, behind, "gateway"), count),
            "produce_grpc": (doors.produce_grpc, count),
            "push_tcp": (partial(doors.consume_tcp, client, "tcp"), count),
            "push_gateway": (partial(doors.consume_tcp, behind, "gateway"), count),
            "push_grpc": (doors.consume_grpc, count),
            "single_tcp": (partial(doors.singles_tcp, client), SINGLES),
            "single_gateway": (partial(doors.singles_tcp, behind), SINGLES),
            "single_grpc": (doors.singles_grpc, SINGLES),
        }
        for work, _ in works.values():
            work()
        rates: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, (work, done) in works.items():
                rates[name].append(done / seconds(work))
        return {name: statistics.median(found) for name, found in rates.items()}


def idle_share(grpc_address: str) -> float:
    """The share of a processor that a broker takes which does nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-doors-") as folder,
        Cluster(1, folder, {"grpc": grpc_address}) as cluster,
        quivermq.connect(cluster.servers) as client,
    ):
        client.create_topic("idle")
        process = psutil.Process(cluster.nodes[1].pid)
        time.sleep(1.0)
        before = sum(process.cpu_times()[:2])
        time.sleep(IDLE_S)
        return (sum(process.cpu_times()[:2]) - before) / IDLE_S


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--json", action="store_true")
    given, _ = arguments.parse_known_args()
    found = measure(given.messages)
    found |= {"idle_without": idle_share(""), "idle_with": idle_share("127.0.0.1:0")}
    if given.json:
        print(json.dumps({"benchmark": "doors", **found}))
        return
    print(f"{'':22}{'TCP':>12}{'gateway':>12}{'gRPC':>12}{'TCP/gateway':>13}{'TCP/gRPC':>10}")
    for name, text in (
        ("produce", "produce, messages/s"),
        ("push", "push, messages/s"),
        ("single", "single produces/s"),
    ):
        tcp, gateway, other = (found[f"{name}_{door}"] for door in ("tcp", "gateway", "grpc"))
        rates = f"{tcp:12,.0f}{gateway:12,.0f}{other:12,.0f}"
        print(f"{text:22}{rates}{tcp / gateway:13.2f}{tcp / other:10.2f}")
    print(
        f"idle broker: {found['idle_without']:.2%} of a processor without gRPC, "
        f"{found['idle_with']:.2%} with it"
    )


if __name__ == "__main__":
    main()
