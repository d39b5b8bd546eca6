"""A Spark cluster of its own: a master, two workers, and drivers, each a process.

    with Standalone() as cluster, Driver(cluster.master) as driver:
        rows = driver.run(job, topic="orders")    # job(spark, topic="orders"), in the driver

A process has one Spark session, so a driver on this cluster cannot be the one that runs the tests.
"""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from quivermq.spark import class_archive
from quivermq.spark.setup.java import find_java

SPARK = Path(pyspark.__file__).parent
START_S = 60.0
JOB_S = 180.0
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
EXECUTOR = "CoarseGrainedExecutorBackend"
_RESTART = "restart"


def java_options() -> str:
    """Options with which a JVM of Spark starts soon."""
    return f"{class_archive.java_options(find_java()) or ''} {JAVA_OPTIONS}".strip()


def environment(folder: Path) -> dict[str, str]:
    """What a daemon of Spark sees: nothing that leads it to our sources."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    java = find_java()
    if java.home is not None:
        environ["JAVA_HOME"] = str(java.home)
    return environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=false",
    }


def wait_for(condition: Callable[[], Any], what: str, timeout: float = START_S) -> Any:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {timeout} s")


def kill_family(pid: int) -> None:
    """Kill a process and all that came of it."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)


class Standalone:
    """One master, workers with one core each.

    Each worker is a host of its own, as far as Spark can tell: it runs no second copy of a task on
    the host of the first.
    """

    def __init__(self, workers: int = 2) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="quiver-spark-"))
        self._count = workers
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start("Master", "--port", "0", "--webui-port", "0")
            told = wait_for(
                lambda: re.search(r"Starting Spark master at (spark://\S+)", self.log("Master")),
                "a master",
            )
            self.master = told[1]
            for number in range(self._count):
                folder = self._folder / f"worker-{number}"
                self._start(
                    "Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                    "--work-dir", str(folder), self.master, host=f"127.0.0.{number + 1}",
                )  # fmt: skip
            wait_for(
                lambda: self.log("Master").count("Registering worker") == self._count, "workers"
            )
        except BaseException as error:
            error.add_note(self.log("Master") + self.log("Worker"))
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for daemon in self._daemons:
            kill_family(daemon.pid)
            daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self, daemon: str) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob(f"{daemon}*.log")))

    def executors(self) -> list[psutil.Process]:
        """The JVMs in which tasks run, as they are at this moment."""
        found = []
        for daemon in self._daemons:
            for child in psutil.Process(daemon.pid).children(recursive=True):
                try:
                    if any(EXECUTOR in part for part in child.cmdline()):
                        found.append(child)
                except psutil.NoSuchProcess:
                    continue
        return found

    def executor_errors(self) -> str:
        return "".join(path.read_text() for path in self._folder.glob("worker-*/*/*/stderr"))

    def _start(self, daemon: str, *arguments: str, host: str = "127.0.0.1") -> None:
        path = self._folder / f"{daemon}-{len(self._daemons)}.log"
        name = f"org.apache.spark.deploy.{daemon.lower()}.{daemon}"
        command = [str(SPARK / "bin" / "spark-class"), name, "--host", host, *arguments]
        with path.open("wb") as log:
            started = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment(self._folder) | {"SPARK_LOCAL_IP": host},
                cwd=self._folder,
                start_new_session=True,
            )
        self._daemons.append(started)


class ConnectServer:
    """A Spark Connect server in which tasks run too, with the Python that is given."""

    def __init__(self, python: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="quiver-connect-"))
        self._python = python
        self._server: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2,4]"]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        environ = environment(self._folder) | {
            "PYSPARK_PYTHON": str(self._python),
            "SPARK_DAEMON_MEMORY": "512m",
        }
        with (self._folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, cwd=self._folder
            )
        try:
            told = wait_for(
                lambda: re.search(r"Connect server started at: \S*?(\d+)\s", self.log()),
                "a Connect server",
            )
        except BaseException as error:
            error.add_note(self.log())
            self.close()
            raise
        self.address = f"sc://127.0.0.1:{told[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._server is not None:
            kill_family(self._server.pid)
            self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        return (self._folder / "log").read_text()


class Driver:
    """A process with a session of its own, that runs what it is given."""

    def __init__(
        self,
        master: str,
        config: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_drive, args=(far, master, dict(config or {}), dict(environ or {})), daemon=True
        )
        self._process.start()
        far.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.join(20)
        self.kill()

    def start(self, job: Callable[..., Any] | str, **arguments: Any) -> None:
        """Let it run `job(spark, **arguments)`; `result` has what it returns."""
        self._pipe.send((job, arguments))

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that happens while a job runs."""

        def look() -> bool:
            if self._pipe.poll(0):
                raise AssertionError(f"the job ended before {what}: {self.result()}")
            return bool(condition())

        wait_for(look, what)

    def result(self, timeout: float = JOB_S) -> Any:
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"a Spark job: not within {timeout} s")
        is_well, answer = self._pipe.recv()
        if not is_well:
            raise RuntimeError(answer)
        return answer

    def run(self, job: Callable[..., Any], **arguments: Any) -> Any:
        self.start(job, **arguments)
        return self.result()

    def restart(self, config: Mapping[str, Any]) -> None:
        """A session with other settings, in the same JVM."""
        self.start(_RESTART, **config)
        self.result()

    def kill(self) -> None:
        if self._process.is_alive() and self._process.pid is not None:
            kill_family(self._process.pid)
        self._process.join()


def _drive(
    pipe: Connection, master: str, config: dict[str, Any], environ: Mapping[str, str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environ)
    from quivermq.spark import session  # noqa: PLC0415

    ours = {
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java_options(),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    is_remote = master.startswith("sc://")
    spark = session(master, name="tests", config=config if is_remote else ours | config)
    if not is_remote:
        spark.sparkContext.setLogLevel("ERROR")
    while True:
        try:
            job, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            break
        try:
            if job == _RESTART:
                spark.stop()
                spark = session(master, name="tests", config=ours | config | arguments)
                pipe.send((True, None))
            else:
                pipe.send((True, job(spark, **arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    spark.stop()
