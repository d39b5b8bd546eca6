"""Opens a page of the site from the disk, in a browser, and follows what a search for a word finds.

python -m tests.pages.search_site site/index.html
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Error, Locator, Page

from tests.portal.stage import chromium


def search(page: Page, word: str) -> Locator:
    """The first result. The word is typed again until there is one: the page does not say when it
    begins to listen."""
    field = page.get_by_role("textbox", name="Search")
    found = page.locator(".md-search-result__link").first
    deadline = time.monotonic() + 60
    while not found.is_visible() and time.monotonic() < deadline:
        field.fill("")
        # By keys: a page does not look at a text that is only put there.
        field.press_sequentially(word)
        with suppress(Error):
            found.wait_for(timeout=3_000)
    return found


def main() -> None:
    with chromium() as browser:
        context = browser.new_context(color_scheme="dark")
        context.set_default_timeout(20_000)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        scheme = page.locator("body").get_attribute("data-md-color-scheme")
        search(page, "visibility").click()
        page.wait_for_url("**/*.html?h=*")
        seen = {"scheme": scheme, "article": page.inner_text("article"), "asked": asked}
        context.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
