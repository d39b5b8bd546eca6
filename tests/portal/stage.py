"""A portal as a process, a browser, and a cluster with something in it."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from playwright.sync_api import Browser, Playwright, sync_playwright

import quivermq
from quivermq.errors import QuiverError

WITH_HTTP: Final = {"http": "127.0.0.1:0", "grpc": ""}
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
"""Debian's; Playwright would download another."""
HOSTILE: Final = b"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


@contextmanager
def portal(servers: str, *flags: str, token: str = "", code: str = "") -> Iterator[str]:
    """`quiver portal` on a free port; gives its address. `code`: of another checkout."""
    command = [
        sys.executable, "-m", "quivermq", "portal", "--servers", servers,
        "--listen", "127.0.0.1:0", "--json", *flags,
    ]  # fmt: skip
    environment = {**os.environ, "QUIVER_TOKEN": token}
    if code:
        environment["PYTHONPATH"] = code
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            told, text = None, ""
            while told is None:
                line = process.stdout.readline()
                assert line, "the portal ended"
                text += line
                with suppress(ValueError):
                    told = json.loads(text)
            yield str(told["portal"])
        finally:
            process.terminate()
            assert process.wait(20) == 0


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    started: Playwright
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


def fill(client: quivermq.Client) -> None:
    """Topics as a shop has them, with groups, dead letters, and messages that are not due."""
    client.create_topic("orders", partitions=3, max_deliveries=2)
    client.create_topic("payments", partitions=2, retention=quivermq.Retention(max_age=7 * 86_400))
    client.create_topic("mail", rate_limit=quivermq.RateLimit(5, burst=5), max_deliveries=1)
    client.create_topic("shipments.europe.west.warehouse-17.tracking-events-enriched")
    client.create_topic("returns")
    for number in range(60):
        order = {"order": 1000 + number, "customer": f"c-{number % 9}", "total": 19.9 + number}
        client.produce(
            "orders",
            json.dumps(order).encode(),
            key=f"c-{number % 9}".encode(),
            headers={"trace": f"{number:08x}".encode(), "source": b"web"},
            priority=number % 2,
        )
    client.produce_many("payments", [json.dumps({"payment": n}).encode() for n in range(5_000)])
    client.produce("mail", b"to nobody@example.com")
    client.produce("mail", b"to a full mailbox")
    client.produce("mail", bytes(range(64)), key=b"\x00\x01")
    client.produce("mail", b"a reminder", delay=3600)
    client.ack(client.poll("orders", group="billing", max_messages=20))
    client.ack(client.poll("payments", group="ledger", max_messages=3_000))
    client.poll("payments", group="ledger", max_messages=40, visibility=3600)
    letters = client.poll("mail", group="postmen")
    for letter, reason in zip(
        letters, ("no such mailbox", "mailbox full", "unreadable"), strict=True
    ):
        letter.reject(reason)


def report(client: quivermq.Client) -> None:
    """A report of a pipeline, as `quiver pipeline run` publishes it every few seconds."""
    sink = {"sink": "lake", "target": "lake/orders", "batch": 12, "rows": 48_000, "lag": 310}
    progress = {
        "pipeline": "orders-to-lake", "state": "running", "run": "1", "host": "spark-1", "pid": 41,
        "at": datetime.now(UTC).isoformat(), "rows": 48_000, "rows_per_second": 812.0, "lag": 310,
        "trouble": "2 rows of orders could not be parsed (they are in the view orders_bad)",
        "sinks": [{**sink, "rows_per_second": 812.0, "batch_ms": 940}],
    }  # fmt: skip
    if "_pipelines" not in client.topic_names():
        client.create_topic("_pipelines")
    client.produce("_pipelines", json.dumps(progress), key=b"orders-to-lake")


@contextmanager
def load(servers: str, **options: Any) -> Iterator[None]:
    """Producers and consumers at work, until the end of the block."""
    ended = threading.Event()

    def work() -> None:
        with quivermq.connect(servers, **options) as client:
            number = 0
            report(client)
            while not ended.wait(0.02):
                number += 1
                if number % 100 == 0:
                    report(client)
                with suppress(QuiverError):
                    values = [json.dumps({"order": number, "at": n}).encode() for n in range(20)]
                    client.produce_many("orders", values)
                    polled = client.poll("orders", group="billing", max_messages=18, wait=0)
                    client.ack(polled)
                    client.ack(client.poll("orders", group="shipping", max_messages=30, wait=0))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
