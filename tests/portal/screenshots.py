"""Makes the pictures of the documentation: `python -m tests.portal.screenshots [--to FOLDER]`.

One cluster with load on it, every page in light and dark, two at the size of a phone.
"""

import argparse
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page

from quivermq.testing import Cluster
from tests.portal.stage import WITH_HTTP, chromium, fill, load, portal

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images" / "portal"
PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages?partition=1&offset=0",
    "groups": "/groups",
    "group": "/topics/payments/groups/ledger",
    "dead-letters": "/topics/mail/dead-letters",
    "delayed": "/topics/mail/delayed",
    "cluster": "/cluster?every=1",
    "pipelines": "/pipelines",
    "users": "/users",
    "audit": "/audit",
}
PHONE: Final = ("overview", "topics")
_WAIT_MS: Final = 20_000


def take(browser: Browser, address: str, token: str, folder: Path, *, warm_up: float) -> None:
    """All pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    time.sleep(warm_up)
    for theme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=theme)
        page = context.new_page()
        page.set_default_timeout(_WAIT_MS)
        page.goto(address)
        page.screenshot(path=folder / f"login-{theme}.png")
        _sign_in(page, token)
        for name, path in PAGES.items():
            _open(page, address + path)
            if name == "messages":
                page.locator("tr[data-expands]").nth(1).click()
            # The whole page, as far as a picture of it is of use.
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": 1280, "height": max(760, min(height, 1300))})
            page.screenshot(path=folder / f"{name}-{theme}.png")
            page.set_viewport_size({"width": 1280, "height": 760})
        context.close()
    phone = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="light", is_mobile=True
    )
    page = phone.new_page()
    page.goto(address)
    _sign_in(page, token)
    for name in PHONE:
        _open(page, address + PAGES[name])
        page.screenshot(path=folder / f"{name}-phone.png")
    phone.close()


def _sign_in(page: Page, token: str) -> None:
    page.locator("[name=token]").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("#stats")


def _open(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_load_state("networkidle", timeout=_WAIT_MS)
    if page.locator("[data-chart]").count():
        page.wait_for_selector("[data-chart] svg, [data-chart] .none", timeout=_WAIT_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds of charts")
    given = parser.parse_args()
    settings = {**WITH_HTTP, "users": True, "cluster_secret": "a secret for a picture only"}
    with Cluster(nodes=3, settings=settings) as cluster:
        with cluster.connect(token="") as client:
            token = client.users.add("ada")
            client.users.grant("ada", "admin")
        # The client stays open: what it has leased is in flight.
        with cluster.connect(token=token) as client:
            fill(client)
            client.users.add("billing-service", expires=90 * 86_400)
            client.users.grant("billing-service", "consume", topic="orders", group="billing")
            client.users.grant("billing-service", "produce", topic="payments")
            with (
                load(cluster.servers, token=token),
                portal(cluster.servers, token=token) as address,
                chromium() as browser,
            ):
                take(browser, address, token, given.to, warm_up=given.warm_up)


if __name__ == "__main__":
    main()
