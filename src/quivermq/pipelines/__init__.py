"""Pipelines: sources, steps in SQL and sinks from a TOML file, run on Spark.

Knows `spark` and `lakehouse`.
"""
