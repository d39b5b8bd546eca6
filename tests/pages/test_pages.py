"""Every code block of the documentation runs, or says why it does not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quivermq.testing import Cluster
from tests.cli.commands import environment
from tests.pages.blocks import Block, blocks_of, faults, page_names, parse
from tests.pages.page_run import PageRun, as_lines, as_pattern

ANYWHERE = "127.0.0.1:0"
# Texts that must be among what a page prints.
PRINTED = {
    "README.md": ["delivery 1", "4 rows of Arrow", "b'fourth'"],
    "docs/consuming.md": ["failed 2 times; the last time: no such address\npostmen 0"],
    "docs/producing.md": [
        'application/json b\'{"id":7,"lines":[1,2]}\'',
        "text/x-number b'3.50'",
        "[b'from the till']",
    ],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    settings = {"http": ANYWHERE, "grpc": ANYWHERE, "fsync": "never"}
    with Cluster(nodes=1, settings=settings) as cluster:
        yield cluster


def test_every_block_runs_or_says_why_not() -> None:
    found = [fault for page in page_names() for block in blocks_of(page) for fault in faults(block)]
    assert not found, "\n" + "\n".join(found)


def is_run(block: Block) -> bool:
    return block.mark in ("", "setup", "output")


# tests/spark/test_pages.py runs these.
SPARK = {
    "docs/lakehouse.md", "docs/pipelines.md", "docs/spark-reading.md", "docs/spark-writing.md",
    "docs/spark.md",
}  # fmt: skip
PAGES = [
    page
    for page in page_names()
    if page not in SPARK and any(is_run(block) for block in blocks_of(page))
]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = broker.nodes[1]
    with broker.connect() as client:  # every reader begins with an empty cluster
        for topic in client.topics():
            if not topic.name.startswith("_"):
                client.delete_topic(topic.name)
    addresses = {f"127.0.0.1:760{number}": node.address for number in range(3)}
    addresses |= {"127.0.0.1:9600": node.http_address, "127.0.0.1:7650": node.grpc_address}
    monkeypatch.setenv("QUIVER_SERVERS", node.address)
    run = PageRun(tmp_path, addresses, environment(QUIVER_SERVERS=node.address))
    try:
        for block in blocks_of(page):
            run.run(block)
    finally:
        run.close()
    for text in PRINTED.get(page, []):
        assert text in run.printed


def test_every_page_that_must_print_something_is_run() -> None:
    assert set(PRINTED) <= set(PAGES)


def test_a_block_without_a_mark_or_with_a_test_that_is_not_there_is_a_fault() -> None:
    mark = "<!-- run by: tests/pages/blocks.py::test_nothing -->"
    text = f"```toml\na = 1\n```\n\n{mark}\n```sh\nls\n```\n"
    found = [fault for block in parse("a.md", text) for fault in faults(block)]
    assert found == [
        "a.md:2: a block of `toml` that has no mark",
        "a.md:7: there is no test tests/pages/blocks.py::test_nothing",
    ]
    with pytest.raises(ValueError, match="a mark that stands before no block"):
        list(parse("a.md", "<!-- output -->\nText.\n\n```sh\nls\n```\n"))
    with pytest.raises(ValueError, match="a comment that is no mark"):
        list(parse("a.md", "<!-- not rnu: typo -->\n```sh\nls\n```\n"))


def run_text(run: PageRun, text: str) -> None:
    for block in parse("a.md", text):
        run.run(block)


def test_a_page_that_shows_what_is_not_printed_fails(tmp_path: Path) -> None:
    run = PageRun(tmp_path, {}, environment())
    command = "```console\n$ echo {}\none\n```\n"
    code = "```python\nprint('two')\n```\n\n<!-- output -->\n```\n{}\n```\n"
    run_text(run, command.format("one") + code.format("t…"))
    for wrong in (command.format("two"), code.format("one"), "```sh\nfalse\ntrue\n```\n"):
        with pytest.raises(AssertionError):
            run_text(run, wrong)


def test_an_output_may_leave_out_words_and_lines() -> None:
    pattern, learnt = as_pattern("at 127.0.0.1:7600, took … s\n…\nend")
    assert learnt == ["127.0.0.1:7600"]
    assert re.fullmatch(pattern, as_lines("at 127.0.0.1:5,   took 1.3 s\na\nb\nend\n"))
    assert not re.fullmatch(pattern, as_lines("at 127.0.0.1:5, took 1.3 s\nbend"))
