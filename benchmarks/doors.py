"""Produce and push through each door, in turns: TCP, a gateway, gRPC, HTTP; plain and with TLS.

    python -m benchmarks.doors [--messages 500000] [--json]

One broker and one gateway in processes of their own, without TLS and with it; one client of each in
this process. Batches of 10,000 messages of 100 bytes, as Arrow:

produce     TCP by `produce_many`, gRPC by a session, HTTP by requests on one connection
push        with auto-ack: TCP by `poll_arrow`, gRPC pushed as Arrow with credit; HTTP has only
            JSON, polled 1,000 at a time, and gets a tenth of the messages
single      the time of one produce after the other
latency     from the produce of one message by TCP to the hands of a subscriber: `subscribe`, a
            session, server-sent events

Idle: the processor time of a broker that does nothing, with and without gRPC.
"""

import argparse
import json
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import psutil
import pyarrow as pa

import quivermq
from quivermq.testing import Cluster
from quivermq.tls import make_certificates
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api

SIZE, BATCH, ROUNDS, OPEN = 100, 10_000, 5, 8
SINGLES, LATENCIES = 500, 200
JSON_BATCH, JSON_SHARE = 1_000, 10
IDLE_S = 5.0
ARROW = "application/vnd.apache.arrow.stream"
SECURITY = ("plain", "tls")
DOORS = ("tcp", "gateway", "grpc", "http")


class Session:
    """A gRPC session of a blocking client."""

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


class Server:
    """A broker and a gateway, and clients of each door."""

    def __init__(self, stack: ExitStack, folder: Path, *, is_secure: bool) -> None:
        settings: dict[str, Any] = {
            "grpc": "127.0.0.1:0",
            "http": "127.0.0.1:0",
            "fsync": "never",
            "http_body_bytes_max": 16 << 20,
        }
        if is_secure:
            make_certificates(folder / "tls", ())
            settings |= {
                "tls_cert": str(folder / "tls" / "server.pem"),
                "tls_key": str(folder / "tls" / "server.key"),
                "tls_ca": str(folder / "tls" / "ca.pem"),
            }
        cluster = stack.enter_context(Cluster(1, folder / "brokers", settings))
        self._node, self._tls = cluster.nodes[1], settings.get("tls_ca")
        self.client = stack.enter_context(cluster.connect())
        gateway = cluster.add_gateway(http="", grpc="")
        self.behind = stack.enter_context(
            quivermq.connect(gateway.address, tls=cluster.tls_ca or False)
        )
        self.channel = stack.enter_context(self._channel())
        self.http = stack.enter_context(closing(self.open_http()))

    def _channel(self) -> Any:
        options = [("grpc.max_receive_message_length", 64 << 20)]
        if self._tls is None:
            return grpc.insecure_channel(self._node.grpc_address, options=options)
        credentials = grpc.ssl_channel_credentials(Path(self._tls).read_bytes())
        return grpc.secure_channel(self._node.grpc_address, credentials, options=options)

    def renew_http(self) -> None:
        """While other doors were used, the broker may have closed the connection as idle."""
        self.http.close()

    def open_http(self) -> HTTPConnection:
        host, _, port = self._node.http_address.rpartition(":")
        if self._tls is None:
            return HTTPConnection(host, int(port))
        context = ssl.create_default_context(cafile=self._tls)
        return HTTPSConnection(host, int(port), context=context)


def stream_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def post(http: HTTPConnection, path: str, body: bytes, kind: str = "application/json") -> Any:
    http.request("POST", path, body, {"content-type": kind})
    answer = http.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200, found
    return found


class Throughput:
    """The same work through each door of a server."""

    def __init__(self, server: Server, messages: int) -> None:
        self._server = server
        self._batches = messages // BATCH
        self._messages = self._batches * BATCH
        self._table = pa.table({"value": pa.array([bytes(SIZE)] * BATCH, pa.binary())})
        self._rounds = 0
        for topic in (*DOORS, "single"):
            server.client.create_topic(topic)

    def works(self) -> dict[str, tuple[Callable[[], None], int]]:
        """What to measure, with the count of its messages."""
        server, count = self._server, self._messages
        clients = {"tcp": server.client, "gateway": server.behind}
        found: dict[str, tuple[Callable[[], None], int]] = {}
        for door, client in clients.items():
            found[f"produce_{door}"] = partial(self.produce_tcp, client, door), count
            found[f"push_{door}"] = partial(self.consume_tcp, client, door), count
            found[f"single_{door}"] = partial(self.singles_tcp, client), SINGLES
        return found | {
            "produce_grpc": (self.produce_grpc, count),
            "push_grpc": (self.consume_grpc, count),
            "single_grpc": (self.singles_grpc, SINGLES),
            "produce_http": (self.produce_http, count),
            "push_http": (self.consume_http, count // JSON_SHARE),
            "single_http": (self.singles_http, SINGLES),
        }

    def produce_tcp(self, client: quivermq.Client, topic: str) -> None:
        client.produce_many(topic, pa.concat_tables([self._table] * self._batches))

    def produce_grpc(self) -> None:
        session = Session(self._server.channel)
        for number in range(self._batches):
            request = api.ProduceRequest(topic="grpc", partition=0, arrow=stream_of(self._table))
            session.say(produce=request)
            if number >= OPEN:
                session.hear()
        session.close()

    def produce_http(self) -> None:
        self._server.renew_http()
        for _ in range(self._batches):
            post(self._server.http, "/v1/topics/http/messages", stream_of(self._table), ARROW)

    def consume_tcp(self, client: quivermq.Client, topic: str) -> None:
        self._rounds += 1
        left = self._messages
        while left > 0:
            group = f"g{self._rounds}"
            found = client.poll_arrow(topic, group=group, max_messages=BATCH, ack="auto")
            left -= found.table.num_rows

    def consume_grpc(self) -> None:
        self._rounds += 1
        session = Session(self._server.channel, f"g{self._rounds}")
        subscribe = api.Subscribe(
            topic="grpc",
            credit=OPEN * BATCH,
            format=api.FORMAT_ARROW,
            auto_ack=True,
            max_bytes=16 << 20,
        )
        number = session.say(subscribe=subscribe)
        left = self._messages
        while left > 0:
            rows = 0
            for delivery in session.hear().push.deliveries:
                for batch in delivery.batches:
                    pa.ipc.open_stream(batch.stream).read_all()
                    # Of a batch that is leased in parts, each push has only its part.
                    rows += sum(part.count for part in batch.leased)
            if rows:
                session.say(credit=api.Credit(subscription=number, messages=rows))
            left -= rows
        session.close()

    def consume_http(self) -> None:
        self._server.renew_http()
        self._rounds += 1
        path = f"/v1/topics/http/groups/g{self._rounds}/poll"
        body = json.dumps({"max_messages": JSON_BATCH, "ack": "auto", "wait": 1}).encode()
        left = self._messages // JSON_SHARE
        while left > 0:
            left -= len(post(self._server.http, path, body)["messages"])

    def singles_tcp(self, client: quivermq.Client) -> None:
        for _ in range(SINGLES):
            client.produce("single", b"x" * SIZE)

    def singles_grpc(self) -> None:
        produce = self._server.channel.unary_unary(
            "/quiver.v1.Quiver/Produce",
            request_serializer=api.ProduceRequest.SerializeToString,
            response_deserializer=api.ProduceResponse.FromString,
        )
        message = api.NewMessage(value=b"x" * SIZE)
        request = api.ProduceRequest(topic="single", messages=[message])
        for _ in range(SINGLES):
            produce(request)

    def singles_http(self) -> None:
        self._server.renew_http()
        body = json.dumps({"messages": [{"value": "x" * SIZE}]}).encode()
        for _ in range(SINGLES):
            post(self._server.http, "/v1/topics/single/messages", body)


def latency_tcp(server: Server, client: quivermq.Client) -> float:
    """Of messages that are subscribed to: the median, in milliseconds."""
    server.client.create_topic(topic := f"latency-{time.monotonic_ns()}")
    with client.subscribe(topic, group="g", ack="auto") as subscription:
        return _latency(server.client, topic, lambda: next(subscription))


def latency_grpc(server: Server) -> float:
    server.client.create_topic(topic := f"latency-{time.monotonic_ns()}")
    session = Session(server.channel, "g")
    session.say(subscribe=api.Subscribe(topic=topic, credit=10 * LATENCIES, auto_ack=True))

    def hear() -> None:
        while not session.hear().push.deliveries:
            continue

    return _latency(server.client, topic, hear)


def latency_http(server: Server) -> float:
    server.client.create_topic(topic := f"latency-{time.monotonic_ns()}")
    with closing(server.open_http()) as http:
        http.request("GET", f"/v1/topics/{topic}/groups/g/stream?ack=auto")
        answer = http.getresponse()
        assert answer.status == 200, answer.read()

        def hear() -> None:
            while not answer.readline().startswith(b"data:"):
                continue

        return _latency(server.client, topic, hear)


def _latency(client: quivermq.Client, topic: str, hear: Callable[[], object]) -> float:
    heard: SimpleQueue[float] = SimpleQueue()

    def listen() -> None:
        for _ in range(LATENCIES):
            hear()
            heard.put(time.perf_counter())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    found = []
    for _ in range(LATENCIES):
        began = time.perf_counter()
        client.produce(topic, b"x" * SIZE)
        found.append(heard.get(timeout=30) - began)
    listener.join()
    # The first ones meet a subscription that is being made.
    return 1000 * statistics.median(found[LATENCIES // 10 :])


def measure(messages: int) -> dict[str, float]:
    """Medians of rounds in which all doors take turns, plain and with TLS."""
    with tempfile.TemporaryDirectory(prefix="bench-doors-") as folder, ExitStack() as stack:
        works: dict[str, Callable[[], float]] = {}
        for security in SECURITY:
            place = Path(folder) / security
            place.mkdir()
            server = Server(stack, place, is_secure=security == "tls")
            for name, (work, count) in Throughput(server, messages).works().items():
                work()
                works[f"{name}_{security}"] = partial(_rate, work, count)
            works |= {
                f"latency_tcp_{security}": partial(latency_tcp, server, server.client),
                f"latency_gateway_{security}": partial(latency_tcp, server, server.behind),
                f"latency_grpc_{security}": partial(latency_grpc, server),
                f"latency_http_{security}": partial(latency_http, server),
            }
        found: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                found[name].append(work())
        return {name: statistics.median(each) for name, each in found.items()}


def _rate(work: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


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
    arguments.add_argument("--messages", type=int, default=500_000)
    arguments.add_argument("--json", action="store_true")
    given, _ = arguments.parse_known_args()
    found = measure(given.messages)
    found |= {"idle_without": idle_share(""), "idle_with": idle_share("127.0.0.1:0")}
    if given.json:
        print(json.dumps({"benchmark": "doors", **found}))
        return
    for security in SECURITY:
        print(f"{security:22}" + "".join(f"{door:>22}" for door in DOORS))
        for name, text in (
            ("produce", "produce, messages/s"),
            ("push", "push, messages/s"),
            ("single", "single produces/s"),
            ("latency", "push latency, ms"),
        ):
            print(f"{text:22}" + "".join(_cell(found, name, door, security) for door in DOORS))
    print(
        f"idle broker: {found['idle_without']:.2%} of a processor without gRPC, "
        f"{found['idle_with']:.2%} with it"
    )


def _cell(found: dict[str, float], name: str, door: str, security: str) -> str:
    """A figure, and how many times better TCP without TLS is."""
    value, best = found[f"{name}_{door}_{security}"], found[f"{name}_tcp_plain"]
    ratio = value / best if name == "latency" else best / value
    shown = f"{value:.2f}" if name == "latency" else f"{value:,.0f}"
    return f"{shown:>13} ({ratio:5.2f} x)"


if __name__ == "__main__":
    main()
