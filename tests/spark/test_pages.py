"""The code of pages about Spark runs, in the session and with the broker of these tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import quivermq
from quivermq.spark import register, session
from tests.cli.commands import environment
from tests.pages.blocks import blocks_of
from tests.pages.page_run import PageRun

PAGES = {
    "docs/spark.md": ["apples"],
    "docs/spark-reading.md": ["partition"],
    "docs/spark-writing.md": [],
    "docs/lakehouse.md": [],
    "docs/pipelines.md": [],
}


@pytest.fixture
def orders(client: quivermq.Client, spark: SparkSession, servers: str) -> Iterator[None]:
    """A topic `orders` with two messages, and no other topic that a page has."""
    for topic in client.topics():
        client.delete_topic(topic.name)
    client.create_topic("orders")
    client.produce_many("orders", [b"apples", b"pears"])
    session(servers=servers)  # pages after the first one about Spark leave the option out
    yield
    spark.catalog.dropTempView("orders")
    register(spark)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, servers: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {f'"/{name}': f'"{tmp_path}/{name}' for name in ("lake", "data", "checkpoints")}
    addresses = {"127.0.0.1:7600": servers, **folders}
    monkeypatch.setenv("QUIVER_SERVERS", servers)
    run = PageRun(tmp_path, addresses, environment(QUIVER_SERVERS=servers), {"spark": spark})
    try:
        for block in blocks_of(page):
            run.run(block)
    finally:
        run.close()
    for text in PAGES[page]:
        assert text in run.printed


@pytest.mark.usefixtures("orders")
def test_the_code_in_the_readme_runs(spark: SparkSession, servers: str) -> None:
    (block,) = [each for each in blocks_of("README.md") if "spark.session" in each.text]
    names = {"quivermq": quivermq}
    exec(re.sub(r"session\(\)", f"session(servers={servers!r})", block.text), names)
    assert names["orders"].isStreaming


@pytest.mark.usefixtures("orders")
def test_the_sql_of_the_guide_runs(spark: SparkSession, servers: str) -> None:
    (block,) = [each for each in blocks_of("docs/spark.md") if each.language == "sql"]
    spark.sql(block.text.replace("127.0.0.1:7600", servers))
    assert spark.sql("SELECT count(*) FROM orders").first()[0] == 2
