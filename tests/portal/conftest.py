"""One cluster, one portal and one browser for all pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import quivermq
from quivermq.testing import Cluster
from tests.portal.stage import CHROMIUM, WITH_HTTP, chromium, fill, portal

TIMEOUT_MS = 30_000
"""Far above what anything here takes: only a test that fails waits so long."""

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, settings=WITH_HTTP) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[quivermq.Client]:
    with cluster.connect() as connected:
        fill(connected)
        yield connected


@pytest.fixture(scope="module")
def address(cluster: Cluster, client: quivermq.Client) -> Iterator[str]:
    with portal(cluster.servers, "--interval", "500ms") as served:
        yield served


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the portal; a script that fails, or a request to elsewhere, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=address)
    context.set_default_timeout(TIMEOUT_MS)
    faults: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(f"script: {error}"))
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:"))
            else faults.append(f"a request to {request.url}")
        ),
    )
    yield opened
    context.close()
    assert not faults
