"""Pipelines: sources, steps in SQL and sinks from a TOML file, run on Spark.

    from quivermq.pipelines import load, run

    run(load("orders.toml"), once=True)

Knows the client, `spark` and `lakehouse`. Spark is imported when something runs: a file is judged,
and reports are read, without it.
"""

from quivermq.pipelines.loading import PipelineFile, load
from quivermq.pipelines.problems import InvalidPipeline
from quivermq.pipelines.runner import run

__all__ = ["InvalidPipeline", "PipelineFile", "load", "run"]
