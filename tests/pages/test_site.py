"""The site builds without a warning, has every page, and loads nothing from elsewhere."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import quivermq
from tests.pages.blocks import ROOT
from tests.portal.stage import CHROMIUM

# What a browser fetches by itself, by tag.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
LINKED = {"a": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not logged is not counted as a warning.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Addresses(HTMLParser):
    """The addresses in a page, in these attributes of these tags."""

    def __init__(self, attributes: dict[str, str]) -> None:
        super().__init__()
        self.attributes = attributes
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(self.attributes.get(tag, ""))
        if address and dict(attrs).get("rel") not in ("canonical", "prev", "next"):
            self.found.append(address)


def addresses(site: Path, attributes: dict[str, str]) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        parser = Addresses(attributes)
        parser.feed(page.read_text())
        yield from ((page, address) for address in parser.found)


def is_there(site: Path, page: Path, address: str) -> bool:
    path = address.partition("?")[0].partition("#")[0]
    # The page for unknown addresses is served for any of them, so its addresses are whole.
    return (site / path.lstrip("/") if path.startswith("/") else page.parent / path).exists()


def test_pages_load_nothing_from_elsewhere_and_nothing_that_is_missing(site: Path) -> None:
    sheets = (
        (sheet, address.strip("\"'"))
        for sheet in site.rglob("*.css")
        for address in re.findall(r"url\(([^)]+)\)", sheet.read_text())
    )
    seen = 0
    for page, address in (*addresses(site, LOADED), *sheets):
        if not address.startswith(("data:", "#")):
            assert not re.match(r"(\w+:)?//", address), f"{page.name} loads {address}"
            assert is_there(site, page, address), f"{page.name} loads {address}"
            seen += 1
    assert seen > 100


def test_links_lead_to_pages_of_the_site_sources_too(site: Path) -> None:
    for page, address in addresses(site, LINKED):
        if not re.match(r"\w+:", address):
            assert is_there(site, page, address), f"{page.name} links to {address}"
    source = (site / "files" / "examples" / "worker.py.html").read_text()
    assert "<h1" in source
    assert "quivermq" in source


def test_every_page_is_in_the_site_and_search_knows_it(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).exists(), name
        assert f'"{name}' in index, name


def test_the_reference_has_every_public_name_with_its_documentation(site: Path) -> None:
    text = (site / "client-reference.html").read_text()
    known = set(re.findall(r'id="quivermq\.(?:client|errors)\.([\w.]+)"', text))
    modules = {"aio", "spark", "testing"}
    assert set(quivermq.__all__) - modules - {"__version__"} <= known
    calls = {name for name in vars(quivermq.Client) if not name.startswith("_")}
    assert {f"Client.{name}" for name in calls} <= known
    assert "It is durable when this returns" in text
    assert "Create a topic" in text, "calls of the base class are there too"


def test_pages_opened_from_the_disk_find_words_and_ask_nobody(site: Path) -> None:
    if not CHROMIUM:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    # A process of its own: the thread of a test has one Playwright, which the portal's tests keep.
    command = [sys.executable, "-m", "tests.pages.search_site", str(site / "index.html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["scheme"] == "slate", "dark, as the system asks for"
    assert "visibility" in seen["article"].lower()
    assert [url for url in seen["asked"] if not url.startswith(("file:", "data:", "blob:"))] == []
