"""The Python that a local session's tasks run: the one that runs this program, without a detour.

Spark lets its workers import PySpark from a zip, which Python compiles anew in every process; a
query starts half a dozen of them. Where PySpark is installed they find the same release beside it,
compiled once: a small script takes the zip off their path. A program that reads, then streams from
topic to topic, took 15 seconds of processor time (two runs) instead of 20 (one run).
"""

import os
import shlex
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

from quivermq.spark.setup.script_cache import cache_script

VARIABLE: Final = "PYSPARK_PYTHON"
_SCRIPT: Final = """#!/bin/sh
# The PySpark that is installed is the same, and compiled.
path=$PYTHONPATH
for zips in {leads}; do path=${{path#"$zips"}}; done
PYTHONPATH=$path exec {python} "$@"
"""


def choose(*, is_local: bool) -> None:
    """Let Spark's workers run this Python, unless the environment names another.

    The script is for this machine only: executors elsewhere are given the plain name.
    """
    script = _script()
    if os.environ.get(VARIABLE) in {None, sys.executable, str(script)}:
        os.environ[VARIABLE] = str(script) if is_local and script else sys.executable


def _script() -> Path | None:
    package = Path(pyspark.__file__).parent
    # Another Spark brings another PySpark, and one that is not installed would not be found.
    if "SPARK_HOME" in os.environ or package.parent.resolve() not in _site_folders():
        return None
    leads = [_zips(package), _zips(package.resolve())]
    quoted = " ".join(shlex.quote(lead) for lead in dict.fromkeys(leads))
    text = _SCRIPT.format(leads=quoted, python=shlex.quote(sys.executable))
    return cache_script("python", "python3", text)


def _site_folders() -> set[Path]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return {Path(folder).resolve() for folder in folders}


def _zips(package: Path) -> str:
    """How Spark begins the path of its workers."""
    library = package / "python" / "lib"
    py4j = sorted(library.glob("py4j-*-src.zip"))
    return "".join(f"{zipped}:" for zipped in [library / "pyspark.zip", *py4j])
