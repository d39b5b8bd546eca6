"""Opens a page of the site from the disk, in a browser, and follows what a search for a word finds.

python -m tests.pages.search_site site/index.html
"""

import json
import sys
from pathlib import Path

from tests.portal.stage import chromium


def main() -> None:
    with chromium() as browser:
        context = browser.new_context(color_scheme="dark")
        context.set_default_timeout(20_000)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        scheme = page.locator("body").get_attribute("data-md-color-scheme")
        page.get_by_role("textbox", name="Search").fill("visibility")
        found = page.locator(".md-search-result__link").first
        found.wait_for()
        found.click()
        page.wait_for_url("**/*.html?h=*")
        seen = {"scheme": scheme, "article": page.inner_text("article"), "asked": asked}
        context.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
