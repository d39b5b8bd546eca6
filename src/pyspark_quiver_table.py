"""Spark finds the format `quiver_table` here; see `pyspark_quiver`: one module, one format."""

import contextlib

with contextlib.suppress(Exception):
    from quivermq.spark.formats import TableFormat as DefaultSource  # noqa: F401
