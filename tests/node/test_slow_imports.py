"""Imports that take long stay out of brokers, and out of what clients import first."""

import subprocess
import sys
from pathlib import Path

import pytest

from quivermq.testing import Cluster

pytest.importorskip("pandas")


@pytest.mark.parametrize(
    "module",
    [
        "quivermq.client.client",
        "quivermq.cli.serve",
        "quivermq.testing.broker_process",
        "quivermq.spark.source.batch_reader",
        "quivermq.spark.archive.writer",
    ],
)
def test_pandas_is_not_imported_along(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_broker_does_not_import_pandas_for_its_first_dead_letter() -> None:
    with Cluster(1) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"unwanted", key=b"k", headers={"a": b"b"})
        (message,) = client.poll("orders", group="workers")
        message.reject()
        cluster.wait_until(lambda: client.group("orders", "workers").dead == 1, "it is not dead")
        cluster.wait_until(lambda: client.dead_letters("orders"), "it has not arrived")
        (dead,) = client.dead_letters("orders")
        assert dead.value == b"unwanted"
        assert "pandas/" not in Path(f"/proc/{cluster.nodes[1].pid}/maps").read_text()
