"""Pipelines while they run: JSON by the rules of archives, tables that change, watchers that go."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import quivermq
from quivermq.pipelines.loading import parse
from quivermq.pipelines.reports import Report, RunListener
from quivermq.pipelines.runner import run
from quivermq.pipelines.views import make_views
from quivermq.spark import has_ended

JOINED = """\
[pipeline]
name = "joined"
trigger = "100ms"
[sources.orders]
topic = "{topic}"
json = "id LONG NOT NULL"
[sources.names]
table = "names"
[[steps]]
name = "named"
sql = "SELECT id, name FROM orders JOIN names USING (id)"
[sinks.out]
from = "named"
topic = "{topic}-named"
"""
GOOD = [b'{"id": 1}', b'{"id": 2, "more": [1]}', b' {"id": 3, "s": null} ']
BAD = {
    b'{"id": 1} x': "not JSON",
    b'{"id": 1}{"id": 2}': "not JSON",
    b"{'id': 1}": "not JSON",
    b'{"id": 1, "s": "\xff"}': "not UTF-8",
    b"[1]": "not a JSON object",
    b'{"id": "x"}': "field id is no BIGINT",
    b'{"s": "a"}': "field id is missing",
}


def test_json_is_judged_as_archives_judge_it(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=1)
    client.produce_many(topic, [*GOOD, *BAD])
    text = JOINED.format(topic=topic).replace("LONG NOT NULL", "LONG NOT NULL, s STRING")
    write_deltalake(tmp_path / "names", pa.table({"id": [1], "name": ["one"]}))
    views = make_views(spark, parse(text, tmp_path / "j.toml"), {"servers": servers})
    assert views.problems == []
    found: dict[str, list[Any]] = {}
    for name in ("orders", "orders_bad"):
        stream = views.frames[name].writeStream.format("memory").queryName(f"all_{name}")
        stream.trigger(availableNow=True).start().awaitTermination()
        found[name] = spark.table(f"all_{name}").collect()
    assert sorted((row["id"], row["s"]) for row in found["orders"]) == [
        (1, None), (2, None), (3, None),
    ]  # fmt: skip
    reasons = {row["_offset"]: row["_reason"].split(":")[0] for row in found["orders_bad"]}
    told = {value: offset for offset, value in enumerate(BAD, len(GOOD))}
    assert reasons == {told[value]: reason for value, reason in BAD.items()}


def test_a_table_that_was_compacted_is_looked_at_anew_and_a_closed_pipe_ends_it_well(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "names"
    write_deltalake(table, pa.table({"id": [1], "name": ["one"]}))
    client.create_topic(topic, partitions=1)
    client.produce(topic, b'{"id": 1}')
    reports: list[Report] = []

    def watch(report: Report) -> None:
        reports.append(report)
        if report["rows"] == 1 and DeltaTable(table).version() == 0:
            names = pa.table({"id": [1, 2], "name": ["one", "two"]})
            write_deltalake(table, names, mode="overwrite")
            DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
            client.produce(topic, b'{"id": 2}')
        if len(named()) == 2:
            raise BrokenPipeError

    def named() -> list[str]:
        there = topic + "-named" in {each.name for each in client.topics()}
        return [json.loads(each.value)["name"] for each in read()] if there else []

    def read() -> list[Any]:
        parts = client.topic(f"{topic}-named").partitions
        return [each for part in parts for each in client.read(f"{topic}-named", part.partition)]

    file = parse(JOINED.format(topic=topic), tmp_path / "joined.toml")
    last = run(file, servers=servers, listener=RunListener(report=watch, interval=0.1))
    assert sorted(named()) == ["one", "two"]
    assert any("tried again" in report["trouble"] for report in reports)
    assert last["state"] == "stopped"
    assert not spark.streams.active
    assert not has_ended(spark)
