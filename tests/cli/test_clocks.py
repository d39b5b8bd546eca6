"""The doctor's check of clocks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from quivermq.cli.cluster_checks import _check_clocks
from quivermq.client import ClusterInfo, NodeInfo


@contextmanager
def machine(off: timedelta) -> Iterator[str]:
    """A machine whose clock is off, and tells it as brokers do."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime(datetime.now(UTC) + off, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (timedelta(hours=25), "the clock of broker 7 is 25.0 h ahead of this machine's"),
        (timedelta(seconds=-60), "the clock of broker 7 is 60 s behind this machine's"),
        (timedelta(), "clocks agree to within 2 s"),
    ],
)
def test_the_doctor_names_a_broker_whose_clock_is_off(off: timedelta, said: str) -> None:
    with machine(off) as address:
        node = NodeInfo(id=7, address="", alive=True, leaders=0, http_address=address)
        cluster = ClusterInfo(cluster_id="", leader=7, nodes=[node])
        (finding,) = _check_clocks(cluster, 5.0)
    assert finding.level == ("warn" if off else "ok")
    assert finding.text.replace("59 s", "60 s").replace("61 s", "60 s") == said
