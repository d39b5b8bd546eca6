"""What a client leaves behind in a process of Spark."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec
from quivermq.spark.connections import client_of

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[2], None)
client_of({"servers": sys.argv[1]})
frozen = gc.get_freeze_count()
client_of({"servers": sys.argv[1], "timeout": "7"})
print(frozen, gc.get_freeze_count() == frozen)
"""


@pytest.mark.parametrize(("module", "is_worker"), [("pyspark.daemon", True), ("program", False)])
def test_only_workers_of_spark_keep_modules_from_the_garbage_collector_and_only_once(
    servers: str, module: str, is_worker: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, servers, module],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    frozen, is_same = done.stdout.split()
    assert (int(frozen) > 10_000) == is_worker
    assert is_same == "True"
