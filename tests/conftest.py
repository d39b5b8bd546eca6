"""Shared by all tests: property tests that do not depend on how busy the machine is, brokers whose
event loops are never held for long, and what makes them quick."""

import gc
import os
import signal
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from quivermq.node.garbage import NEVER, YOUNG_OBJECTS, YOUNG_ROUNDS
from quivermq.testing import Cluster
from quivermq.testing.cluster import StallBudget

# In CI the same examples every time, so that a change is judged and not its luck; elsewhere new
# ones with every run.
settings.register_profile(
    "quiver",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quiver")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every process that a test starts would
    # inherit it: what a test interrupts would go on for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every Java that Spark starts in a test: half the processor time until its first job is done. With
# one compiler Java keeps 48 MB for its code, which the tests of one session fill; then it fails.
QUICK_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(variable, QUICK_JAVA)

# Tests connect as they say, whoever runs them.
os.environ["QUIVER_CLIENT_CONFIG"] = ""

STALL_BUDGET: Final = StallBudget(0.2)
STALL_BUDGET.install()
Cluster.stalls_fail = True

KNOWN_SLOW: Final[dict[str, str]] = {}
"""Tests in which a broker may hold its loop for longer, each with the reason. Meant to be empty."""

LONGEST: Final = frozenset(
    {
        "tests/pipelines/test_declarative.py",
        "tests/pipelines/test_kills.py",
        "tests/spark/test_archive_kills.py",
        "tests/spark/test_clusters.py",
        "tests/spark/test_kills.py",
        "tests/test_examples.py",
        "tests/testing/test_simulation.py",
        "tests/upgrades/test_rolling.py",
    }
)
"""Begun first: a worker that began one of them last would work on it while the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONGEST)


TESTS_A_COLLECTION: Final = 100
TOLD_S: Final = 1.0


def pytest_collection_finish() -> None:
    """What all tests are made of is not looked through for garbage again and again. Nor is all
    the rest while a broker of a test runs, whose loop that would hold: as in a broker's process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, NEVER)


_ended = count(1)


def pytest_runtest_logfinish() -> None:
    """Between two tests everything is collected, now and then."""
    if next(_ended) % TESTS_A_COLLECTION == 0:
        gc.collect()
        gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The parts of `make test` are runs of their own: what was slow in any is told at the end."""
    path = os.environ.get("SECONDS_OF_TESTS")
    if path and report.duration > TOLD_S and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a") as told:
            told.write(f"{report.duration:7.1f} {report.when:8} {report.nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test fails if one callback of a broker in its process took too long."""
    STALL_BUDGET.take()
    result = yield
    found = STALL_BUDGET.take()
    if found and item.nodeid.partition("[")[0] not in KNOWN_SLOW:
        pytest.fail("a broker held its event loop:\n" + "\n".join(found), pytrace=False)
    return result
