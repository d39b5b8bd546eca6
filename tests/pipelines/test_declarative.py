"""Spark's own declarative pipelines read and write topics by the formats that Spark finds."""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import quivermq
from examples.pipelines import generate
from tests.cli.commands import environment

EXAMPLE = Path(generate.__file__).parent / "declarative"
ROOT = Path(generate.__file__).parents[2]
COUNT = 500

pytest.importorskip("grpc_status", reason="spark-pipelines needs pyspark[connect]")


def run_pipelines(folder: Path, servers: str) -> None:
    command = Path(sys.executable).with_name("spark-pipelines")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(command), "run"],
        cwd=folder,
        env=environment(
            QUIVER_SERVERS=servers,
            PYSPARK_PYTHON=sys.executable,
            PYTHONPATH=path,
            SPARK_LOCAL_IP="127.0.0.1",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def test_a_declarative_pipeline_reads_a_topic_and_writes_one(
    client: quivermq.Client, servers: str, tmp_path: Path
) -> None:
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(
        spec.read_text().replace("file:///tmp/quiver-large-orders", f"file://{tmp_path}/storage")
    )
    client.create_topic("orders", partitions=2)
    client.create_topic("large-orders", partitions=2)
    client.produce_many("orders", list(generate.orders(COUNT)))
    run_pipelines(folder, servers)

    made = [json.loads(each) for each in generate.orders(COUNT) if each.startswith(b"{")]
    good = [order for order in made if order["cents"] != "a lot"]
    large = sorted(order["order_id"] for order in good if order["cents"] >= 15_000)
    sent = [
        (message.key, json.loads(message.value))
        for each in client.topic("large-orders").partitions
        for message in client.read("large-orders", each.partition)
    ]
    assert sorted(row["order_id"] for _, row in sent) == large
    assert all(key == row["country"].encode() for key, row in sent)

    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for order in good:
        totals[order["country"]][0] += 1
        totals[order["country"]][1] += order["cents"]
    (table,) = folder.rglob("by_country")
    found = pq.read_table(table).to_pylist()
    assert {row["country"]: [row["orders"], row["cents"]] for row in found} == totals
