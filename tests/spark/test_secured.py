"""Topics of a cluster with TLS and users, read and written by Spark under a token of its own."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quivermq.testing import Cluster
from tests.tls.stage import Certificates


def test_spark_writes_and_reads_with_a_token_over_tls(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing comes from the environment: Spark's workers have the options only.
    for name in ("QUIVER_TOKEN", "QUIVER_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    certificates = Certificates(tmp_path / "tls")
    settings = {"tick_ms": 50, "users": True, **certificates.settings()}
    with Cluster(nodes=1, settings=settings) as cluster:
        with cluster.connect() as first:
            root = first.users.add("root")
            first.users.grant("root", "admin")
        with cluster.connect(token=root) as admin:
            admin.create_topic("orders", partitions=2)
            admin.create_topic("secrets")
            token = admin.users.add("spark")
            # As docs/users.md has it.
            admin.users.grant("spark", "produce", topic="orders")
            admin.users.grant("spark", "consume", topic="orders")
            admin.users.grant("spark", "admin", topic="_spark.")
            options = {"servers": cluster.servers, "token": token, "tls": certificates.ca}
            rows = spark.range(200).selectExpr("cast(id as string) as value")
            written = rows.write.format("quiver").options(**options).mode("append")
            written.option("topic", "orders").save()
            read = spark.read.format("quiver").options(**options)
            found = read.option("subscribe", "orders").load().selectExpr("cast(value as string)")
            assert sorted(int(row[0]) for row in found.collect()) == list(range(200))
            with pytest.raises(PySparkException, match=r"Forbidden|may not"):
                read.option("subscribe", "secrets").load().collect()
            wrong = {**options, "token": "qv_wrong"}
            with pytest.raises(PySparkException, match=r"Unauthenticated|token"):
                spark.read.format("quiver").options(**wrong, subscribe="orders").load().collect()
            assert admin.topic("secrets").partitions[0].end_offset == 0
