"""A few seconds of the random mix of faults that `make soak` runs for hours, and its judge."""

import json
import shutil
from pathlib import Path
from typing import cast

import pytest

from quivermq.testing import Cluster
from quivermq.testing.cluster import why_not
from quivermq.testing.soak import judge
from quivermq.testing.soak.__main__ import PROXIES, RECORD, soak
from quivermq.testing.soak.record import SoakRecord, Strike
from quivermq.testing.soak.report import outages, tell_report
from quivermq.testing.soak.users import GROUPS
from quivermq.testing.trials import ONLY_ACKS, ConsumerPlan, TopicPartition
from quivermq.testing.trials.consumer import EventRecorder, TrialConsumer
from quivermq.testing.trials.journal import Journal, JournaledCalls

TOPIC = "round-0"
PLACE = TopicPartition(TOPIC, 0)
VALUES = [b"probe %d" % number for number in range(5)]


def test_a_random_mix_of_faults_breaks_no_promise(tmp_path: Path) -> None:  # F43
    links = PROXIES if why_not() else "namespaces"
    soak(6.0, SoakRecord(3, 7, links, "shim"), tmp_path, round_s=6.0)
    record = SoakRecord.load(tmp_path / RECORD)
    assert record.rounds == 1
    assert record.strikes
    assert record.samples
    assert record.counts["messages acknowledged"] > 0
    assert record.counts["settled: ack, done"] > 0
    assert record.counts["messages delivered, sticky"] >= record.counts["messages stored"]
    assert "| outcome | passed |" in tell_report(record)


# The judge, on logs of a real broker and journals that are true, or not.


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a round in which five messages were stored, consumed and acknowledged."""
    folder = tmp_path_factory.mktemp("round")
    (folder / judge.JOURNALS).mkdir()
    journal = Journal(folder / judge.JOURNALS / "users-0.journal")
    with Cluster(1) as cluster, cluster.connect() as client:
        client.create_topic(TOPIC)
        journal.write("messages", "attempt", "probe", PLACE, VALUES)
        (receipt,) = client.produce_many(TOPIC, VALUES)
        journal.write("messages", "ack", PLACE, receipt.first_offset, VALUES)
        for group in GROUPS:
            recorder = cast("EventRecorder", JournaledCalls(journal, group))
            plan = ConsumerPlan(TOPIC, group, "consumer", habits=ONLY_ACKS)
            consumer = TrialConsumer(client, recorder, plan)
            consumer.settle(consumer.poll())
        journal.write("sticky", "assign", "member", PLACE, 0)
        for offset in range(len(VALUES)):
            journal.write("sticky", "give", "member", PLACE, 1 + offset, offset)
        cluster.stop()
        inner = Path("log") / TOPIC / "0"
        shutil.copytree(cluster.nodes[1].data_dir / inner, folder / judge.LOGS / "1" / inner)
    return folder


def verdict(stored: Path, tmp_path: Path, *calls: tuple[object, ...]) -> str:
    """What the judge finds if the journals hold these calls too."""
    folder = tmp_path / "round"
    shutil.copytree(stored, folder)
    journal = Journal(folder / judge.JOURNALS / "users-more.journal")
    for recorder, method, *arguments in calls:
        journal.write(str(recorder), str(method), *arguments)
    code = judge.main([str(folder), TOPIC])
    found = json.loads((folder / judge.VERDICT).read_text())
    assert code == int(bool(found["failure"]))
    return str(found["failure"])


def test_the_judge_finds_nothing_where_nothing_is_wrong(stored: Path, tmp_path: Path) -> None:
    assert not verdict(stored, tmp_path)


@pytest.mark.parametrize(
    ("calls", "promise"),
    [
        ([("messages", "attempt", "p", PLACE, [b"x"]), ("messages", "ack", PLACE, 5, [b"x"])], "I1"),  # noqa: E501
        ([("messages", "see", PLACE, 0, [b"other"])], "I6"),
        ([("messages", "ack", PLACE, 0, [b"other"])], "I6"),
        ([("sticky", "give", "member", PLACE, 99, 2)], "I7"),
        ([("once", "give", PLACE, 1), ("once", "give", PLACE, 1)], "I4"),
        ([("log", "append", PLACE, 1, 2, 3, 1), ("log", "append", PLACE, 5, 6, 0, 1)], "I6"),
        ([("violations", "append", "I6: seen by a user")], "I6"),
    ],
)  # fmt: skip
def test_the_judge_finds_what_is_wrong(
    stored: Path, tmp_path: Path, calls: list[tuple[object, ...]], promise: str
) -> None:
    assert verdict(stored, tmp_path, *calls).startswith(promise)


# The report.


def test_an_outage_is_told_under_the_fault_that_caused_it() -> None:
    record = SoakRecord(3, 1, "", "", began_s=0.0, ended_s=100.0)
    record.strikes = [
        Strike(["kill_one"], 0, 10.0, 12.0),
        Strike(["kill_one"], 0, 20.0, 22.0),
        Strike(["split", "stall"], 0, 30.0, 32.0),
    ]
    steady = [number / 10 for number in range(400)]
    record.answers = {
        "round-0/0": [at for at in steady if not 10.05 < at < 13.45],
        "round-0/1": steady,
        "round-1/0": [],
    }
    first, second, third = outages(record)
    assert (first.kind, second.kind, third.kind) == ("kill_one", "kill_one", "several at once")
    assert first.longest_s == pytest.approx(3.5)
    assert first.after_s == pytest.approx(1.5)
    assert second.longest_s == pytest.approx(0.1)
    assert third.longest_s == pytest.approx(0.1)
    row = next(line for line in tell_report(record).splitlines() if line.startswith("| kill one"))
    assert row.split(" | ")[1:6] == ["2", "2", "1.80", "3.50", "1.50"]
