"""A page that is open while brokers go and come back; `quiver up` with its portal."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from quivermq.testing import Cluster
from tests.portal.stage import WITH_HTTP, portal


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, settings=WITH_HTTP) as started:
        yield started


def test_an_open_page_says_calmly_that_brokers_are_away_and_goes_on(
    browser: Browser, cluster: Cluster
) -> None:
    with cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"before")
    # Pages wait for brokers for so long before they say that these are away.
    with portal(cluster.servers, "--timeout", "2s") as address:
        page = browser.new_page(base_url=address)
        page.goto("/topics/orders")
        expect(page.locator("#freshness")).to_contain_text("Live, 1 broker")
        expect(page.locator("#stats")).to_contain_text("Messages")
        cluster.nodes[1].stop()
        expect(page.locator("#offline")).to_contain_text("Trying again")
        # What was known stays on the page.
        expect(page.locator("#partitions tbody tr")).to_have_count(1)
        page.goto("/topics")
        expect(page.locator("main")).to_contain_text("The brokers do not answer")
        cluster.nodes[1].start()
        expect(page.locator("#topics")).to_contain_text("orders")
        expect(page.locator("#offline")).to_be_hidden()
        expect(page.locator("#freshness")).to_contain_text("Live, 1 broker")
        with cluster.connect() as client:
            client.produce("orders", b"after")
        page.goto("/")
        expect(page.locator(".tally-card", has_text="orders")).to_contain_text("2 stored")
        expect(page.locator(".tally-card.wrong")).to_have_count(0)
        page.close()


def test_up_serves_a_portal_which_ends_with_it() -> None:
    command = [
        sys.executable, "-m", "quivermq", "up", "--nodes", "1", "--free-ports", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline()
        told = json.loads(text)
        transport = httpx.HTTPTransport(retries=20)
        with httpx.Client(base_url=told["portal"], transport=transport, timeout=30) as browser:
            assert "Overview" in browser.get("/").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(told["portal"])
