"""Brokers in processes of their own export their spans to a collector, or go on without one."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import quivermq
from quivermq.batches import encode_batch
from quivermq.testing import Cluster
from quivermq.testing.cluster import DirectConnection
from quivermq.tracing import exporting
from quivermq.tracing.exporting import end_provider, make_provider
from quivermq.wire import proto
from tests.tracing.stage import Spans, span_id
from tests.transports.stage import PATIENCE_S, on_loop


class Collector:
    """Takes spans by OTLP, as Jaeger or an OpenTelemetry collector would."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[tuple[dict[str, str], Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        with self._lock:
            for one in request.resource_spans:
                resource = {each.key: each.value.string_value for each in one.resource.attributes}
                for scope in one.scope_spans:
                    self._spans += ((resource, span) for span in scope.spans)

    def named(self, name: str) -> list[tuple[dict[str, str], Any]]:
        with self._lock:
            return [each for each in self._spans if each[1].name == name]

    def wait(self, name: str, count: int) -> list[tuple[dict[str, str], Any]]:
        self.wait_until(lambda: len(self.named(name)) >= count)
        return self.named(name)

    def below(self, name: str, parent: bytes) -> list[tuple[dict[str, str], Any]]:
        return [each for each in self.named(name) if each[1].parent_span_id == parent]

    def wait_below(self, name: str, parent: bytes) -> Any:
        """The first span of this name below another."""
        self.wait_until(lambda: bool(self.below(name, parent)))
        return self.below(name, parent)[0][1]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, [span.name for _, span in self._spans]
            time.sleep(0.01)

    @contextmanager
    def running(self) -> Iterator["Collector"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def stored_by_all(collector: Collector, client: quivermq.Client) -> tuple[Any, list[Any]]:
    """A produce that both followers stored while it was open, and their spans. A follower that
    has just begun may get its first batches later than the other."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        count = len(collector.named("append orders"))
        client.produce("orders", b"one")
        for _, append in collector.wait("append orders", count + 1):
            replicated = collector.below("replicate orders", append.span_id)
            if len(replicated) == 2:
                return append, replicated
    raise AssertionError("no batch was replicated to both followers with its context")


def node_of(span: Any) -> Any:
    return attributes(span)["messaging.quivermq.node"]


# No elections, however busy the machine is.
PATIENT = {"tracing": True, "grpc": "", "tick_ms": 300}


def test_a_trace_leads_over_all_brokers_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans()
    with Collector().running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with Cluster(settings=PATIENT) as cluster:
            with cluster.connect(tracing=spans.provider) as client:
                client.create_topic("orders", replication=3)
                append, replicated = stored_by_all(collector, client)
                (message,) = client.poll("orders", "billing", 1)
                message.ack()
            # A client that follows no leaders asks any broker.
            other = cluster.nodes[node_of(append) % 3 + 1]
            request = proto.Request(
                produce=proto.Produce(topic="orders"), traceparent=f"00-{9:032x}-{7:016x}-01"
            )
            with DirectConnection(other.address, PATIENCE_S) as connection:
                connection.ask(request, [encode_batch([b"two"])])
            forward = collector.wait_below("forward orders", (7).to_bytes(8))
            passed_on = collector.wait_below("append orders", forward.span_id)
            received, ack = spans.one("receive orders"), spans.one("ack orders")
            assert collector.wait_below("deliver orders", span_id(received).to_bytes(8))
            assert collector.wait_below("settle orders", span_id(ack).to_bytes(8))
    sent = {span_id(each).to_bytes(8): each for each in spans.all("send orders")}
    assert append.trace_id == sent[append.parent_span_id].context.trace_id.to_bytes(16)
    followers = {node_of(span) for _, span in replicated}
    assert followers == {1, 2, 3} - {node_of(append)}
    assert {each["service.instance.id"] for each, _ in replicated} == set(map(str, followers))
    assert {each["service.name"] for each, _ in replicated} == {"quivermq"}
    assert node_of(forward) == other.id
    assert attributes(forward)["messaging.quivermq.forwarded_to"] == node_of(passed_on)


def test_without_a_collector_a_broker_serves_and_stops_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing listens at port 1; with a queue of 4 most spans are dropped.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with Cluster(nodes=1, settings={"tracing": True, "grpc": ""}) as cluster:
        with cluster.connect() as client:
            client.create_topic("orders")
            for number in range(50):
                client.produce("orders", b"%d" % number)
            assert len(client.poll("orders", "billing", 100)) == 50
        cluster.nodes[1].stop(timeout=PATIENCE_S)


@on_loop
async def test_the_end_waits_for_a_collector_only_a_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporting, "FLUSH_S", 0.05)
    provider, held = make_provider(1), threading.Event()
    real = provider.shutdown

    def slow() -> None:
        held.wait(PATIENCE_S)
        real()

    monkeypatch.setattr(provider, "shutdown", slow)
    async with asyncio.timeout(PATIENCE_S / 2):
        await end_provider(provider)
    assert "the last spans were not exported" in caplog.text
    held.set()


def test_a_service_can_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_provider(7).resource.attributes["service.name"] == "quivermq"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-queue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    resource = make_provider(7).resource.attributes
    assert resource["service.name"] == "orders-queue"
    assert resource["deployment.environment.name"] == "test"
    assert resource["service.instance.id"] == "7"
