"""Drivers killed at every step of a micro-batch, topic to topic: no row is lost, none is twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import quivermq

ROOT = Path(__file__).parents[2]

POINTS = (
    "before the plan",
    "during tasks",
    "after the decision",
    "amidst publishing",
    "before Spark's commit",
)
"""The others that a driver knows are for tries by hand: every one costs a start of Spark."""


def drive(servers: str, source: str, target: str, checkpoint: Path, point: str) -> int:
    """Run a driver to its end; how it ended."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.killed_driver", servers, source, target, checkpoint,
         point],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()[-4000:]
    return done.returncode


def rows(client: quivermq.Client, topic: str) -> list[tuple[bytes | None, bytes]]:
    partitions = len(client.topic(topic).partitions)
    return [(m.key, m.value) for place in range(partitions) for m in client.read(topic, place)]


def test_a_driver_may_be_killed_at_every_step_of_a_batch(
    client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}.copy"
    client.create_topic(topic, partitions=2)
    client.create_topic(target, partitions=3)
    names = range(2000)
    expected = [(b"%d" % (name % 5), b"%d" % name) for name in names]
    client.produce_many(topic, [value for _, value in expected], [key for key, _ in expected])
    checkpoint = tmp_path / "checkpoint"
    for point in POINTS:
        ended = drive(servers, topic, target, checkpoint, point)
        assert ended == -signal.SIGKILL, f"the driver lived on past the point: {point}"
        found = rows(client, target)
        assert len(set(found)) == len(found), f"rows are there twice after a kill {point}"
    assert drive(servers, topic, target, checkpoint, "none") == 0
    found = rows(client, target)
    assert sorted(found) == sorted(expected)
    for key in {key for key, _ in expected}:
        order = [int(value) for found_key, value in found if found_key == key]
        assert order == sorted(order), f"rows with key {key!r} are out of order"
