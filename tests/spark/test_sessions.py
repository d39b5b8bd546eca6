"""Sessions: what they take over, what they know, and what they say when something is missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import quivermq
from quivermq.errors import InvalidRequest
from quivermq.spark import class_archive, register, session
from quivermq.spark.setup import worker_python
from quivermq.spark.setup.java import Java, find_java

NEEDED = ("bash", "cat", "chmod", "dirname", "env", "id", "ls", "ps", "readlink", "sh", "uname")
"""Commands that Spark's scripts call, beside Java."""

WITHOUT_JAVA = """
import json, shutil, sys
from quivermq.spark import session

said = {"java": shutil.which("java")}
options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
spark = session("local[1]", config={"spark.driver.extraJavaOptions": options})
said["version"] = int(spark.sparkContext._jvm.System.getProperty("java.version").split(".")[0])
rows = spark.read.format("quiver").option("subscribe", sys.argv[1]).load()
said["by session"] = sorted(bytes(row.value).decode() for row in rows.collect())
# In a session without registered formats:
spark = spark.newSession()
options = f"(subscribe '{sys.argv[1]}', servers '{sys.argv[2]}')"
spark.sql(f"CREATE TEMPORARY VIEW t USING quiver OPTIONS {options}")
said["found, by sql"] = spark.sql("SELECT count(*) AS n FROM t").first().n
print(json.dumps(said))
spark.stop()
"""


def test_an_active_session_is_taken_as_it_is(spark: SparkSession) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert session() is spark
    assert session(spark.sparkContext.master) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == partitions
    session(config={"spark.sql.caseSensitive": True})
    assert spark.conf.get("spark.sql.caseSensitive") == "true"
    spark.conf.unset("spark.sql.caseSensitive")
    # What had to be said before it began changes nothing, and is no error.
    memory = spark.conf.get("spark.driver.memory")
    assert session(config={"spark.driver.memory": "77m"}) is spark
    assert spark.conf.get("spark.driver.memory") == memory


def test_another_master_than_that_of_the_active_session_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match=r"local\[2,4\] is active, and local\[7\] was asked"):
        session("local[7]")


def test_a_session_has_utc_pushes_filters_down_and_retries_tasks(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.master == "local[2,4]"


def test_tasks_run_this_python_and_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    def tell(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield pa.record_batch({"found": [f"{sys.executable} {pyspark.__file__}"]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(tell, "found string").collect()
    assert row.found == f"{sys.executable} {pyspark.__file__}"


@pytest.mark.parametrize("before", ["", "/a/jar:"])
@pytest.mark.parametrize("after", ["", ":/sources:/more"])
def test_a_worker_looks_for_pyspark_where_it_is_installed_wherever_the_zips_stand(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    script = worker_python._script()
    assert script is not None
    library = Path(pyspark.__file__).parent / "python" / "lib"
    zips = ":".join(map(str, [library / "pyspark.zip", *library.glob("py4j-*-src.zip")]))
    done = subprocess.run(
        [script, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={"PYTHONPATH": f"{before}{zips}:/a/jar{after}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{before}/a/jar{after}"


def test_workers_without_quivermq_are_warned_of_with_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    worker_python.warn_of_another(sys.executable)
    worker_python.warn_of_another(str(other))
    assert not caplog.messages
    # Without packages: as the Python of a system.
    other.write_text(f'#!/bin/sh\nPYTHONPATH= exec "{sys.executable}" -I -S "$@"\n')
    worker_python.warn_of_another(str(other))
    (told,) = caplog.messages
    assert (
        f"workers run {other}, which has no quivermq: set PYSPARK_PYTHON={sys.executable}" in told
    )
    worker_python.warn_of_another(str(tmp_path / "missing"))
    assert "cannot be asked" in caplog.messages[-1]


@pytest.mark.parametrize(("is_local", "is_script"), [(True, True), (False, False)])
def test_executors_elsewhere_are_given_no_script_of_this_machine(
    is_local: bool, is_script: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/by/the/user")
    worker_python.choose(is_local=is_local)
    assert os.environ["PYSPARK_PYTHON"] == "/chosen/by/the/user"
    for before in (True, False):
        monkeypatch.delenv("PYSPARK_PYTHON")
        worker_python.choose(is_local=before)
        worker_python.choose(is_local=is_local)
        assert (os.environ["PYSPARK_PYTHON"] != sys.executable) is is_script
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    monkeypatch.delenv("PYSPARK_PYTHON")
    worker_python.choose(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_servers_that_a_read_does_not_name_are_those_of_the_session(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str
) -> None:
    client.create_topic(topic)
    client.produce(topic, b"here")
    try:
        assert session(servers=servers) is spark
        (row,) = spark.read.format("quiver").option("subscribe", topic).load().collect()
    finally:
        register(spark)
    assert row.value == b"here"


def test_a_broker_that_cannot_be_reached_is_one_error_that_says_so(spark: SparkSession) -> None:
    nowhere = {"servers": "127.0.0.1:1", "timeout": "1"}
    says = "ConnectionFailed: .*no server could be reached.*127.0.0.1:1"
    rows = spark.read.format("quiver").options(subscribe="t", **nowhere).load()
    with pytest.raises(PySparkException, match=says) as reading:
        rows.collect()
    values = spark.range(1).selectExpr("cast(id AS string) AS value")
    with pytest.raises(PySparkException, match=says) as writing:
        values.write.format("quiver").options(topic="t", **nowhere).mode("append").save()
    for error in (reading, writing):
        assert str(error.value).count("Traceback") == 1
        assert "routing.py" not in str(error.value)


def test_without_pyspark_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from quivermq.spark import session"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: quivermq.spark needs PySpark: pip install 'quivermq[spark]'"
    )


def test_an_archive_of_classes_is_used_only_where_one_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java()
    assert class_archive.java_options(java) is None
    base, archive = class_archive._places(java)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={base}:{archive}" in (class_archive.java_options(java) or "")
    patched = replace(java, release="another")
    assert class_archive.java_options(patched) is None, "it would not fit"
    for name in ("a:b", 'a"b', "a b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        _, archive = class_archive._places(java)
        archive.parent.mkdir(parents=True)
        with pytest.raises(InvalidRequest, match="cannot be named to Java"):
            class_archive.make(java)
        archive.touch()
        assert class_archive.java_options(java) is None


def test_an_archive_of_classes_that_takes_too_long_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(class_archive, "_MAKING_S", 0.1)
    with pytest.raises(InvalidRequest, match="it was not made within"):
        class_archive.make(Java(tmp_path / "java", 17, None))


def test_without_a_java_on_the_machine_spark_runs_and_finds_the_format_by_itself(
    client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"a", b"b"])
    for name in NEEDED:
        if found := shutil.which(name):
            (tmp_path / name).symlink_to(found)
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environ |= {"PATH": str(tmp_path), "QUIVER_SERVERS": servers}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA, topic, servers],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said.pop("version") >= 17
    assert said == {"java": None, "by session": ["a", "b"], "found, by sql": 2}
