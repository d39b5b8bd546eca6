"""Spark imports every module whose name begins with `pyspark_` and takes its `DefaultSource`.

So the format `quiver` is known to any session on a machine where quivermq is installed, without
`register`. An error here would hide the formats of all other packages: nothing may be raised.
"""

import contextlib

with contextlib.suppress(Exception):
    from quivermq.spark.formats import QuiverFormat as DefaultSource  # noqa: F401
