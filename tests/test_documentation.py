"""The documentation says what is so: tables against the code, named tests against the tests."""

import re
from importlib import import_module
from pathlib import Path

from quivermq.batches import HEADER_BYTES, Header
from quivermq.log.layout import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from quivermq.log.marks import MARK_BYTES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_byte_table_of_the_header_is_the_header() -> None:
    text = (DOCS / "formats.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", text, re.MULTILINE)
    ends = [int(start) + int(size) for start, size, _ in rows]
    assert [int(start) for start, _, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == HEADER_BYTES
    names = [name for _, _, name in rows]
    stated = [name for name in names if name not in {"magic", "version", "reserved", "header_crc"}]
    assert stated == list(Header._fields)
    for start, size, name in rows:
        if name in Header._fields:
            plain, marked = Header(kind=1).pack(), Header(**{"kind": 1, name: 2}).pack()
            changed = [n for n in range(HEADER_BYTES - 4) if plain[n] != marked[n]]
            assert all(int(start) <= n < int(start) + int(size) for n in changed), name


def test_the_sizes_of_the_segments_parts_are_as_stated() -> None:
    text = (DOCS / "formats.md").read_text()
    assert f"checksum: {SEGMENT_HEADER_BYTES} bytes" in text
    assert f"the last {FOOTER_BYTES} bytes" in text
    assert f"with a body of {MARK_BYTES - HEADER_BYTES} bytes" in text.replace("\n", " ")


def test_every_test_that_a_guarantee_names_exists() -> None:
    text = (DOCS / "guarantees.md").read_text()
    folder = ROOT
    for named in re.findall(r"`((?:tests/|test_)[\w/*]+\.py)(?:::(\w+))?`", text):
        path, test = named
        if path.startswith("tests/"):
            folder = (ROOT / path).parent
        found = list(folder.glob(Path(path).name))
        assert found, f"{path} is named in guarantees.md and does not exist"
        if test:
            assert f"def {test}(" in found[0].read_text(), test


def test_every_test_that_the_table_of_attacks_names_exists() -> None:
    table = (DOCS / "security.md").read_text().partition("## Attacks that tests try")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 18
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text(), test


def test_every_folder_of_the_sources_has_its_line_in_the_architecture() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text()
    for path in sorted((ROOT / "src" / "quivermq").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            assert f"`src/quivermq/{path.name}/`" in text, path.name


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_and_modules_that_a_page_names_exist() -> None:
    sources = ROOT / "src" / "quivermq"
    folders = [ROOT, ROOT / "src", sources, *(path for path in sources.iterdir() if path.is_dir())]
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text()
        for name in re.findall(r"`([\w/]+/[\w*]+\.(?:py|proto))", text):
            found = any(list(folder.glob(name)) for folder in folders)
            assert found, f"{page.name} names {name}"
        for name in re.findall(r"`(quivermq(?:\.\w+)+)", text):
            path = sources.joinpath(*name.split(".")[1:])
            is_module = path.is_dir() or path.with_suffix(".py").exists()
            owner = import_module("quivermq" if path.parent == sources else name.rpartition(".")[0])
            assert is_module or hasattr(owner, path.name), f"{page.name} names {name}"


def test_names_in_the_glossary_and_the_walks_exist() -> None:
    sources = ROOT / "src" / "quivermq"
    found: dict[str, set[str]] = {}
    for path in [*sources.rglob("*.py"), *sources.rglob("*.proto")]:
        room = found.setdefault(path.parent.relative_to(sources).as_posix(), set())
        defined = r"^ *(?:class|message|(?:async )?def) (\w+)"
        room |= {path.stem, *re.findall(defined, path.read_text(), re.MULTILINE)}
    glossary = (DOCS / "glossary.md").read_text().partition("## In the code")[2]
    for names, room_name in re.findall(r"^\| (`.+?`) \| `([\w/]+)` \|", glossary, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name in found[room_name], f"{name} is not in {room_name}"
    anywhere = set().union(*found.values())
    walks = (DOCS / "ARCHITECTURE.md").read_text()
    for owner, name in re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)`", walks):
        assert {owner, name} <= anywhere, f"there is no {owner}.{name}"


def test_latencies_that_a_page_names_stand_in_the_results() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    pages = [ROOT / "README.md", *(DOCS / "coming-from").glob("*.md")]
    named = [(page, us) for page in pages for us in re.findall(r"([\d,]+) µs", page.read_text())]
    assert len(named) >= 4
    for page, us in named:
        assert re.search(rf"(?<![\d,.]){us}(?![\d,])", results), f"{page.name}: {us} µs"
