"""Pipelines: sources, steps in SQL and sinks from a TOML file, run on Spark.

    from quivermq.pipelines import load, run

    run(load("orders.toml"), once=True)

Knows the client, `spark` and `lakehouse`. Spark is imported when a pipeline is checked or run: a
file is loaded, and reports are read, without it.
"""

from quivermq.pipelines.loading import InvalidPipeline, PipelineFile, load
from quivermq.pipelines.report_reader import Heard, latest_reports, reports_by_name
from quivermq.pipelines.reports import TOPIC as REPORTS_TOPIC
from quivermq.pipelines.reports import RunListener, StopRequest, age_seconds, state_of
from quivermq.pipelines.runner import CheckedPipeline, check, run, start_spark
from quivermq.pipelines.spark_logs import log_to

__all__ = [
    "REPORTS_TOPIC",
    "CheckedPipeline",
    "Heard",
    "InvalidPipeline",
    "PipelineFile",
    "RunListener",
    "StopRequest",
    "age_seconds",
    "check",
    "latest_reports",
    "load",
    "log_to",
    "reports_by_name",
    "run",
    "start_spark",
    "state_of",
]
