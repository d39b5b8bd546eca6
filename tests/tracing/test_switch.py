"""Tracing is off unless it is asked for, and then nothing of it is there."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import quivermq
from quivermq.client import ConnectOptions
from quivermq.errors import InvalidRequest
from quivermq.node.service import Service
from quivermq.tracing import TRACING_VARIABLE, ClientTracer, broker_tracer, client_tracer
from tests.tracing.stage import Spans
from tests.transports.stage import on_loop, serving

WITHOUT = """
import asyncio, pathlib, sys, tempfile
import quivermq, quivermq.aio
from tests.transports.stage import serving

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with serving(pathlib.Path(folder)) as server:
            async with quivermq.aio.connect(server.listen) as client:
                await client.create_topic("orders")
                await client.produce("orders", b"one")
                async with client.producer() as producer:
                    await producer.send("orders", b"two")
                handled = asyncio.Event()
                client.subscribe("orders", group="g", handler=lambda _: handled.set())
                await handled.wait()
                assert len(await client.poll("orders", "h")) == 2

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_where_it_is_off_opentelemetry_is_not_imported() -> None:
    done = run(WITHOUT)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_without_the_extra_the_error_says_what_to_install() -> None:
    done = run(
        """
        import sys
        sys.modules["opentelemetry"] = None
        from quivermq.errors import InvalidRequest
        from quivermq.tracing import broker_tracer, client_tracer
        assert client_tracer(None) is None
        for make in (lambda: client_tracer(True), lambda: broker_tracer(1)):
            try:
                make()
            except InvalidRequest as error:
                print(error)
        """
    )
    assert done.stdout == 2 * "tracing needs OpenTelemetry: pip install 'quivermq[otel]'\n"


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("1", True), ("true", True), (" On ", True), ("0", False), ("", False), ("false", False)],
)
def test_a_variable_turns_it_on(value: str, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACING_VARIABLE, value)
    assert isinstance(client_tracer(None), ClientTracer) is is_on
    assert client_tracer(False) is None
    options = ConnectOptions.of("here", token=None, tls=None, timeout=1.0)
    assert (options.tracer is not None) is is_on


def test_anything_else_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a tracer provider, not 'yes'"):
        quivermq.connect(tracing="yes")  # type: ignore[arg-type]


@on_loop
async def test_a_broker_that_does_not_trace_has_the_plain_service(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert type(server.broker.service) is Service
        assert server.broker.tracer is None
        assert server.broker.links.spans is None
        assert server.broker.scheduler.spans is None


@on_loop
async def test_a_provider_of_others_is_not_ended() -> None:
    spans = Spans()
    await broker_tracer(1, spans.provider).close()
    spans.tracer.start_span("later").end()
    assert spans.names == ["later"]
