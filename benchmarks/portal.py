"""Every page of the portal in a real browser, with ten thousand topics and ten million messages.

    python -m benchmarks.portal [--topics 10000] [--messages 10000000] [--rounds 5] [--nodes 3]
                                [--folder FOLDER] [--beside SOURCES]

Needs Chromium and Playwright, as tests/portal does. For each page, medians of the rounds: the time
until the portal has answered, the bytes of the page, the time until the browser has shown it; and
the portal's processor time for the refresh that an open page asks for every two seconds, with
`--beside` also that of the portal of another checkout. At the end, the processor time of portal and
brokers while nobody looks, and while eight pages are open.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil
import pyarrow as pa
from playwright.sync_api import Browser, Page

import quivermq
from quivermq.testing import Cluster
from tests.portal.many_topics import make_topics, name_of
from tests.portal.stage import WITH_HTTP, chromium, portal

IS_LONG = True
BIG: Final = "clicks"
_BATCH: Final = 100_000
_VIEWERS: Final = 8
_REFRESHES: Final = 10
_IDLE_SECONDS: Final = 20.0
_START_SECONDS: Final = 600.0
_SHOWN: Final = "#main h1, #main .card"


def pages(messages: int) -> dict[str, str]:
    """The pages by name; of the big topic, places in its middle and at its end."""
    middle = messages // 2
    return {
        "overview": "/",
        "topics": "/topics",
        "topics, last page": "/topics?page=1000000",
        "topics by rate": "/topics?sort=in",
        "topics, filtered": "/topics?q=stream-0777",
        "a topic": f"/topics/{name_of(7)}",
        "the big topic": f"/topics/{BIG}",
        "its newest messages": f"/topics/{BIG}/messages",
        "from the middle": f"/topics/{BIG}/messages?offset={middle}",
        "from a time": f"/topics/{BIG}/messages?at=1h",
        "filter, found at once": f"/topics/{BIG}/messages?offset={middle}&q=click",
        "filter, nothing found": f"/topics/{BIG}/messages?offset={middle}&q=no-such-text",
        "groups": "/groups",
        "a group": f"/topics/{BIG}/groups/analytics",
        "dead letters": "/dead-letters",
        "delayed": f"/topics/{BIG}/delayed",
        "cluster": "/cluster",
        "cluster, all replicas": "/cluster?every=1",
        "pipelines": "/pipelines",
        "users": "/users",
        "audit log": "/audit",
    }


def fill(client: quivermq.Client, messages: int) -> None:
    """One topic with very many messages, a group that has done half, and groups of other topics."""
    client.create_topic(BIG)
    for first in range(0, messages, _BATCH):
        numbers = range(first, min(messages, first + _BATCH))
        values = pa.array([b'{"click": %d}' % number for number in numbers], pa.binary())
        client.produce_many(BIG, values)
    client.poll(BIG, "analytics", max_messages=1_000, visibility=3600)
    for number in range(200):
        client.produce(name_of(number), b"x")
        client.release(client.poll(name_of(number), f"group-{number}", max_messages=1))


def measure(page: Page, path: str, rounds: int) -> list[float]:
    """Milliseconds until answered, kB, milliseconds until shown; medians."""
    found: list[list[float]] = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = page.goto(path, wait_until="commit")
        assert answer is not None
        assert answer.ok, (path, answer.status)
        page.locator(_SHOWN).first.wait_for()
        page.wait_for_load_state("domcontentloaded")
        shown = time.perf_counter() - began
        found.append(
            [answer.request.timing["responseStart"], len(answer.body()) / 1000, 1000 * shown]
        )
    return [statistics.median(column) for column in zip(*found, strict=True)]


def refresh_cost(address: str, pid: int, path: str) -> float:
    """Milliseconds of the portal's processor time for one refresh of a page."""
    with httpx.Client(base_url=address, timeout=60, headers={"X-Portal": "1"}) as browser:
        browser.get(path)
        before = cpu_seconds([pid])
        for _ in range(_REFRESHES):
            assert browser.get(path).status_code == 200
        return 1000 * (cpu_seconds([pid]) - before) / _REFRESHES


def cpu_seconds(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def cores_used(pids: dict[str, list[int]]) -> dict[str, float]:
    before = {name: cpu_seconds(each) for name, each in pids.items()}
    time.sleep(_IDLE_SECONDS)
    return {name: (cpu_seconds(each) - before[name]) / _IDLE_SECONDS for name, each in pids.items()}


@contextmanager
def stage(folder: Path, topics: int, messages: int, nodes: int) -> Iterator[tuple[Cluster, float]]:
    began = time.perf_counter()
    if not (folder / "node-1").exists():
        make_topics(folder, topics, nodes)
    settings = {**WITH_HTTP, "fsync": "never"}
    cluster = Cluster(nodes=nodes, data_dir=folder, settings=settings)
    try:
        cluster.start(timeout=_START_SECONDS)
        with cluster.connect(timeout=120) as client:
            if BIG not in client.topic_names():
                fill(client, messages)
        yield cluster, time.perf_counter() - began
    finally:
        cluster.close()


def run(given: argparse.Namespace, folder: Path) -> None:
    with (
        stage(folder, given.topics, given.messages, given.nodes) as (cluster, took),
        chromium() as browser,
    ):
        print(f"{given.topics:,} topics, {given.messages:,} messages: made in {took:.0f} s")
        measure_pages(given, cluster, browser)
        with portal(cluster.servers, "--timeout", "30s") as address:
            pids = {"portal": [pid_of(address)], "brokers": [n.pid for n in cluster.nodes.values()]}
            print("cores used, nobody looks:", _words(cores_used(pids)))
            viewers = [browser.new_page(base_url=address) for _ in range(_VIEWERS)]
            for viewer, path in zip(viewers, pages(given.messages).values(), strict=False):
                viewer.goto(path, timeout=60_000)
            print(f"cores used, {_VIEWERS} pages are open:", _words(cores_used(pids)))


def measure_pages(given: argparse.Namespace, cluster: Cluster, browser: Browser) -> None:
    """With portals that take a sample a minute, so that processor time is that of the pages."""
    flags = ("--timeout", "30s", "--interval", "60s")
    with ExitStack() as portals:
        address = portals.enter_context(portal(cluster.servers, *flags))
        pids = {address: pid_of(address)}
        if given.beside:
            other = portals.enter_context(portal(cluster.servers, *flags, code=given.beside))
            pids[other] = pid_of(other)
        page = browser.new_page(base_url=address)
        page.set_default_timeout(60_000)
        page.goto("/")
        page.locator("#freshness", has_text="Live").wait_for()
        print(f"{'page':24} {'answered':>9} {'size':>8} {'shown':>9} {'processor':>10}")
        for name, path in pages(given.messages).items():
            answered, size, shown = measure(page, path, given.rounds)
            costs = [f"{refresh_cost(place, pid, path):7.1f} ms" for place, pid in pids.items()]
            print(
                f"{name:24} {answered:6.0f} ms {size:5.0f} kB {shown:6.0f} ms", *costs, flush=True
            )
        page.close()


def pid_of(address: str) -> int:
    """The process that listens there."""
    port = int(address.rpartition(":")[2])
    for process in psutil.Process().children():
        listening = [each for each in process.net_connections() if each.status == "LISTEN"]
        if port in {each.laddr.port for each in listening}:
            return process.pid
    raise LookupError(address)


def _words(cores: dict[str, float]) -> str:
    return ", ".join(f"{name} {used:.2f}" for name, used in cores.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=3, help="one holds up to 5,000 topics")
    parser.add_argument("--folder", type=Path, help="kept, and used again; else a temporary one")
    parser.add_argument("--beside", help="the folder src of another checkout")
    given = parser.parse_args()
    if given.folder is not None:
        run(given, given.folder)
        return
    with tempfile.TemporaryDirectory(prefix="quiver-portal-") as folder:
        run(given, Path(folder))


if __name__ == "__main__":
    main()
