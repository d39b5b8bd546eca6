"""Reports made of Spark's progress."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from quivermq.pipelines.progress import PipelineProgress, SinkProgress, lag_of
from quivermq.pipelines.queries import is_missing_file, last_offsets
from quivermq.pipelines.report_reader import latest_report
from quivermq.pipelines.reports import SILENCE_SECONDS, Report, RunListener, age_seconds, state_of
from quivermq.spark.failures import failure, may_pass


def told(batch: int, rows: int, second: int, bad: int = 0, behind: int = 0) -> dict[str, object]:
    return {
        "batchId": batch,
        "timestamp": f"2026-03-01T12:00:{second:02}.000Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 2_000},
        "eventTime": {"watermark": "2026-03-01T11:59:00.000Z"},
        "sources": [
            {
                "endOffset": {"orders": {"0": 10, "1": 4, "id": "a", "began": {"1": 0}}},
                "latestOffset": {"orders": {"0": 10 + behind, "1": 4, "id": "a"}},
            }
        ],
        "observedMetrics": {"orders": {"bad": bad}},
    }


def test_lag_counts_messages_of_all_partitions() -> None:
    latest = {
        "a": {"0": 10, "1": 7, "2": 9, "id": "x", "began": {"2": 5}},
        "b": {"0": 3, "id": "y"},
    }
    end = {"a": {"0": 4, "1": 7, "id": "x", "began": {"0": 1}}}
    assert lag_of({"latestOffset": latest, "endOffset": end}, {}) == 6 + 0 + 4 + 3
    assert lag_of({"latestOffset": end, "endOffset": latest}, {}) == 0
    assert lag_of({"latestOffset": None, "endOffset": end}, {}) is None
    assert lag_of({"latestOffset": latest, "endOffset": None}, {}) is None


def test_lag_counts_what_came_since_spark_looked() -> None:
    vector = {"a": {"0": 10, "1": 7, "id": "x"}}
    ends = {"a": {"0": 15, "1": 6}, "other": {"0": 99}}
    assert lag_of({"latestOffset": vector, "endOffset": vector}, ends) == 5
    assert lag_of({"latestOffset": None, "endOffset": vector}, ends) == 5


def test_an_idle_query_reports_the_offsets_of_its_checkpoint(tmp_path: Path) -> None:
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    assert last_offsets(str(tmp_path)) == []
    for batch in (9, 10, 11):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"a":{{"0":{batch},"id":"x"}}}}\n-'
        (tmp_path / "offsets" / str(batch)).write_text(text)
    for batch in (9, 10):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    (tmp_path / "commits" / ".10.crc").write_text("")
    sink = SinkProgress("out", "topic totals")
    sink.resume(last_offsets(str(tmp_path)))
    assert sink.topics == {"a"}
    assert sink.lag({}) is None
    assert sink.lag({"a": {"0": 13}}) == 3


def test_a_report_adds_up_batches_and_forgets_old_rates() -> None:
    sink = SinkProgress("out", "topic totals")
    progress = PipelineProgress("totals", {"run": "r"}, {"out": sink})
    assert progress.report("now", 0.0)["lag"] is None
    first, second = told(0, 100, 1, behind=50), told(1, 40, 3, bad=2)
    sink.take(first, 10.0)
    assert sink.rows_per_second(10.0) == 50.0
    assert not sink.is_news(first)
    assert sink.is_news(second)
    assert progress.report("now", 10.0)["lag"] == 50
    sink.take(second, 12.0)
    report = progress.report("now", 12.0)
    assert (report["rows"], report["rows_per_second"], report["lag"]) == (140, 35.0, 0)
    assert report["sinks"][0]["batch"] == 1
    assert report["bad_rows"] == {"orders": 2}
    assert "2 rows of orders could not be parsed" in report["trouble"]
    assert sink.rows_per_second(60.0) == 0.0


def test_a_pipeline_without_reports_is_silent_unless_it_has_ended() -> None:
    now = datetime.now(UTC)
    old = (now - timedelta(seconds=SILENCE_SECONDS + 1)).isoformat()
    assert state_of({"state": "running", "at": now.isoformat()}, now) == "running"
    assert state_of({"state": "running", "at": old}, now) == "silent"
    assert state_of({"state": "stopped", "at": old}, now) == "stopped"
    assert round(age_seconds({"at": old}, now)) == SILENCE_SECONDS + 1


def test_a_failure_is_reduced_to_its_innermost_cause() -> None:
    spark = "[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: "
    ours = (
        spark + "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n    raise\n'
        "quivermq.errors.TopicNotFound: there is no topic 'a'\n SQLSTATE: 38000\n"
        "=== Streaming Query ===\nIdentifier: 5"
    )
    assert failure(ours) == "there is no topic 'a'"
    python = spark + "Traceback (most recent call last):\n  File\nKeyError: 'x'\n"
    assert failure(python) == "KeyError: 'x'"
    own = (
        spark + "[DIVIDE_BY_ZERO] Division by zero. Use try_divide. SQLSTATE: 22012\n"
        "== SQL (line 1, position 8) ==\nselect 1/0\n=== Streaming Query ==="
    )
    assert failure(own) == "Division by zero. Use try_divide."
    assert len(failure("x" * 5_000)) == 600


def test_only_transient_failures_are_retried() -> None:
    assert may_pass("SparkException: Python worker failed to connect back.")
    assert may_pass("\nquivermq.errors.Timeout: no answer\n")
    assert may_pass("\nquivermq.spark.checkpoints.PlanChanged: start the query again\n")
    assert not may_pass("\nquivermq.errors.TopicNotFound: there is no topic 'a'\n")
    assert not may_pass("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")
    assert may_pass(GONE)
    assert is_missing_file(GONE)
    assert is_missing_file("\nFileNotFoundError: [Errno 2] No such file: 'part-0'\n")
    assert not is_missing_file("\nquivermq.errors.Timeout: no answer\n")


GONE = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///t/part-0. File "
    "does not exist. SQLSTATE: KD001"
)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def heard(*said: tuple[float, dict[str, Any] | bytes]) -> list[tuple[datetime, bytes]]:
    """Messages of one key, each with the second in which a broker took it."""
    return [
        (
            START + timedelta(seconds=second),
            each if isinstance(each, bytes) else json.dumps({"at": "2026-01-01", **each}).encode(),
        )
        for second, each in said
    ]


@pytest.mark.parametrize(
    "strange",
    [
        b"no JSON",
        b"[1]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"at": 5}',
        b'{"at": "yesterday"}',
        b'{"at": "2026-01-01", "rows": "many"}',
        b'{"at": "2026-01-01", "rows": -1}',
        b'{"at": "2026-01-01", "rows_per_second": NaN}',
        b'{"at": "2026-01-01", "sinks": [{}]}',
        b'{"at": "2026-01-01", "sinks": [{"sink": "a", "batch_ms": null}]}',
        b'{"at": "2026-01-01", "trouble": 1}',
    ],
)
def test_invalid_reports_are_skipped(strange: bytes) -> None:
    report = latest_report("p", heard((0, {"state": "running", "pipeline": "other"}), (1, strange)))
    assert report is not None
    assert (report["pipeline"], report["state"], report["rows"]) == ("p", "running", 0)
    assert latest_report("p", heard((1, strange))) is None


def test_the_age_of_a_report_is_by_the_clock_of_the_broker() -> None:
    report = latest_report("p", heard((30, {"state": "running"})))
    assert report is not None
    assert age_seconds(report, START + timedelta(seconds=33)) == 3.0


def test_two_pipelines_of_one_name_are_reported() -> None:
    one, two = ({"run": name, "state": "running", "host": name, "pid": 7} for name in "ab")

    def trouble(*said: tuple[float, dict[str, Any] | bytes]) -> str:
        report = latest_report("p", heard(*said))
        return str(report and report["trouble"])

    assert "another pipeline of this name reports too, from a (process 7)" in trouble(
        (0, one), (1, two), (5, one), (6, two)
    )
    assert trouble((0, one), (5, one), (6, two), (7, two)) == "", "begun again after a kill"
    assert trouble((0, two), (1, one), (2, one | {"state": "stopped"}), (3, two)) == ""
    assert trouble((0, two), (1, one), (2, two), (60, two)) == "", "that is over"


def test_a_report_that_cannot_be_shown_asks_to_stop_once() -> None:
    shown = []

    def show(report: Report) -> None:
        shown.append(report)
        raise BrokenPipeError

    listener = RunListener(report=show)
    listener.show({})
    listener.show({})
    assert len(shown) == listener.stop.count == 1
    assert isinstance(listener.broken, BrokenPipeError)
    assert listener.failure == ""
    listener.broken = OSError(28, "No space left on device")
    assert listener.failure == "reports cannot be written: No space left on device"
