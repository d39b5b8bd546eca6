"""Chooses the Python of Spark's workers: the one that runs this program, with a compiled PySpark.

Spark lets its workers import PySpark from a zip, which Python compiles again in every process; a
query starts half a dozen of them. The installed PySpark is the same release, and compiled: a small
script removes the zip from the path of the workers. A program that reads, then streams from
topic to topic, took 15 seconds of processor time (two runs) instead of 20 (one run).
"""

import logging
import os
import shlex
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

from quivermq.spark.setup.script_cache import cache_script

logger = logging.getLogger("quivermq.spark")

VARIABLE: Final = "PYSPARK_PYTHON"
_ASK_S: Final = 30.0
_SCRIPT: Final = """#!/bin/sh
# The PySpark that is installed is the same, and compiled.
path=$PYTHONPATH
for zips in {zips}; do
    case $path in *"$zips"*) path=${{path%%"$zips"*}}${{path#*"$zips"}} ;; esac
done
PYTHONPATH=$path exec {python} "$@"
"""


def choose(*, is_local: bool) -> None:
    """Make Spark's workers run this Python, unless the environment names another.

    The script exists on this machine only: executors elsewhere get the plain name.
    """
    script = _script()
    if os.environ.get(VARIABLE) in {None, sys.executable, str(script)}:
        os.environ[VARIABLE] = str(script) if is_local and script else sys.executable


def warn_of_another(executable: str) -> None:
    """Log what to set if the workers of a session run a Python without quivermq: in an environment
    that is not activated they run that of the system, and fail with `ModuleNotFoundError`."""
    if executable in {sys.executable, str(_script())}:
        return
    try:
        subprocess.run(  # noqa: S603  (Spark runs the same program)
            [executable, "-c", "import quivermq"], check=True, capture_output=True, timeout=_ASK_S
        )
    except subprocess.CalledProcessError:
        logger.warning(
            "Spark's workers run %s, which has no quivermq: set %s=%s before the session is made, "
            "or make it by quivermq.spark.session()",
            executable,
            VARIABLE,
            sys.executable,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("Spark's workers run %s, which cannot be asked: %s", executable, error)


def _script() -> Path | None:
    package = Path(pyspark.__file__).parent
    # Another Spark has another PySpark, and workers cannot import one that is not installed.
    if "SPARK_HOME" in os.environ or package.parent.resolve() not in _site_folders():
        return None
    # Not always first: those that look for formats when a session starts have a jar before them.
    zips = [_zips(package), _zips(package.resolve())]
    quoted = " ".join(shlex.quote(each) for each in dict.fromkeys(zips))
    text = _SCRIPT.format(zips=quoted, python=shlex.quote(sys.executable))
    return cache_script("python", "python3", text)


def _site_folders() -> set[Path]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return {Path(folder).resolve() for folder in folders}


def _zips(package: Path) -> str:
    """The zips that Spark puts on the path of its workers."""
    library = package / "python" / "lib"
    py4j = sorted(library.glob("py4j-*-src.zip"))
    return "".join(f"{zipped}:" for zipped in [library / "pyspark.zip", *py4j])
