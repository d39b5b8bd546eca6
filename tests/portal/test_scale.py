"""A thousand topics, and one of 300,000 messages: what a page asks brokers for and how large it is
does not grow with them. `python -m benchmarks.portal` measures ten times as many, and more."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Response

from quivermq.cluster_samples import Scrape, fetch
from quivermq.testing import Cluster
from tests.portal.many_topics import make_topics, name_of
from tests.portal.stage import WITH_HTTP, portal

TOPICS = 1_000
MESSAGES = 300_000
NAMES_SECONDS = 2.0
"""For so long the pages of one user share a list of names."""


@dataclass
class Large:
    """A large cluster, and a portal that takes hardly a sample, so that pages can be counted."""

    cluster: Cluster
    address: str
    browser: httpx.Client
    looks: int = 0

    def figures(self) -> Scrape:
        self.looks += 1
        return fetch(self.cluster.nodes[1].http_address, 1, "", None, 30)

    @property
    def requests(self) -> float:
        """Those of the portal, and of whoever filled the topics."""
        return self.figures().plain["quiver_requests_total"] - self.looks

    @property
    def bytes_out(self) -> float:
        return self.figures().partitions["quiver_bytes_out_total"]["clicks", 0]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    folder = tmp_path_factory.mktemp("large")
    make_topics(folder, TOPICS)
    with Cluster(nodes=1, data_dir=folder, settings={**WITH_HTTP, "fsync": "never"}) as cluster:
        with cluster.connect() as client:
            own = [name for name in client.topic_names() if not name.startswith("_")]
            assert len(own) == TOPICS
            client.create_topic("clicks")
            client.produce_many("clicks", [b'{"click": %d}' % n for n in range(MESSAGES)])
        with (
            portal(cluster.servers, "--interval", "60s") as address,
            httpx.Client(base_url=address, timeout=60) as browser,
        ):
            while "Live, 1 broker" not in browser.get("/data/live").text:
                time.sleep(0.1)
            yield Large(cluster, address, browser)


@pytest.mark.parametrize(
    ("path", "asked", "kilobytes"),
    [
        ("/", 1, 20),
        ("/topics", 2, 40),
        ("/topics?sort=size&page=20", 2, 40),
        ("/topics?q=stream-0077", 2, 20),
        (f"/topics/{name_of(7)}", 3, 20),
        ("/topics/clicks/messages?offset=150000", 5, 100),
        ("/groups", 0, 20),
        ("/dead-letters", 0, 20),
        ("/cluster?every=1", 3, 80),
    ],
)
def test_a_page_asks_for_what_it_shows_and_no_more(
    large: Large, path: str, asked: int, kilobytes: int
) -> None:
    large.browser.get("/groups")  # names are known
    before = large.requests
    answer = large.browser.get(path)
    assert answer.status_code == 200
    # One more for the names, should they have become too old meanwhile.
    assert large.requests - before <= asked + 1
    assert len(answer.content) < 1_000 * kilobytes


def test_pages_of_one_user_share_the_list_of_names(large: Large) -> None:
    began, before = time.monotonic(), large.requests
    for _ in range(50):
        assert large.browser.get("/data/series?s=in").status_code == 200
    listed = large.requests - before
    assert listed <= (time.monotonic() - began) / NAMES_SECONDS + 1


def test_topics_are_paged_filtered_and_sorted_by_the_portal(large: Large) -> None:
    page = large.browser.get("/topics?page=20").text
    assert page.count('<td class="name">') == 50
    assert _pager(page) == "1,001 topics, page 20 of 21"
    found = large.browser.get("/topics?q=stream-0077").text
    assert found.count('<td class="name">') == 10
    assert _pager(found) == "10 topics of 1,001"


def _pager(page: str) -> str:
    return page.partition('<div class="pager"><span>')[2].partition("</span>")[0]


def test_a_place_in_a_large_partition_is_read_and_not_all_of_it(large: Large) -> None:
    size = large.figures().partitions["quiver_log_size_bytes"]["clicks", 0]
    before = large.bytes_out
    assert "150,049" in large.browser.get("/topics/clicks/messages?offset=150000").text
    assert large.bytes_out - before < size / 5
    before = large.bytes_out
    found = large.browser.get("/topics/clicks/messages?offset=100000&q=no-such-text").text
    assert "Nothing found so far" in found
    # 50,000 of 300,000 messages were looked through, and what came with them.
    assert large.bytes_out - before < size / 2


def test_an_open_page_without_fresh_parts_is_not_made_again(large: Large, browser: Browser) -> None:
    page = browser.new_page(base_url=large.address)
    page.goto("/topics/clicks/messages?offset=100000&q=no-such-text", timeout=60_000)
    before, refreshed = large.bytes_out, 0
    asked: list[str] = []

    def note(answer: Response) -> None:
        asked.append(answer.url.removeprefix(large.address))

    page.on("response", note)
    while refreshed < 2:
        page.wait_for_event("response", timeout=60_000)
        refreshed = asked.count("/data/live")
    # The browser asks for the icon when it likes.
    assert set(asked) - {"/static/icon.svg"} == {"/data/live"}
    assert large.bytes_out == before
    page.close()


def test_a_page_of_large_dead_letters_stays_small(large: Large) -> None:
    letters = [b'{"why": "%s"}' % (b"x" * 16_000) for _ in range(500)]
    with large.cluster.connect() as client:
        client.create_topic("clicks.dlq")
        client.produce_many("clicks.dlq", letters)
        page = large.browser.get("/topics/clicks/dead-letters").text
        client.delete_topic("clicks.dlq")
    assert page.count("data-expands") == 500
    assert len(page) < 1_200_000
    assert "The first 524 B of" in page
    assert 'href="/topics/clicks.dlq/messages?partition=0&amp;offset=499"' in page
