"""Shipped formats: a Python without our package can read and write."""

import io
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer

from quivermq.spark.formats import QuiverFormat
from quivermq.spark.setup import package_shipping
from tests.spark import bare_python

SRC = Path(package_shipping.__file__).parents[3]

ARRIVAL = """
import importlib, pickle, pkgutil, sys, tempfile
tempfile.tempdir = sys.argv[1]
sys.path.insert(0, sys.argv[2])
assert importlib.util.find_spec("quivermq") is None
kind = pickle.loads(sys.stdin.buffer.read())
writer = kind({"topic": "t"}).schema()
import quivermq.spark
print(quivermq.__file__)
for module in pkgutil.walk_packages(quivermq.spark.__path__, "quivermq.spark."):
    importlib.import_module(module.name)
"""


def arrive(tmp_path: Path) -> subprocess.CompletedProcess[bytes]:
    """Load the format in a Python that has nothing of ours, with its own temporary folder."""
    kind = package_shipping.make_shipped_format(
        QuiverFormat, {"subscribe": "t"}, package_shipping.pack_modules()
    )
    python = tmp_path / "bare" / "python3"
    if not python.exists():
        bare_python.make(python.parent)
    zipped = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    return subprocess.run(
        [python, "-c", ARRIVAL, str(tmp_path), str(zipped)],
        input=CloudPickleSerializer().dumps(kind),
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ""},
    )


def test_what_is_packed_suffices_for_every_module_of_ours_in_spark(tmp_path: Path) -> None:
    done = arrive(tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    place = Path(done.stdout.decode().strip()).parents[1]
    assert place.parent == tmp_path
    assert place.stat().st_mode & 0o077 == 0
    assert arrive(tmp_path).stdout == done.stdout, "unpacked once"
    (place / "quivermq" / "errors.py").unlink()
    assert arrive(tmp_path).stdout == done.stdout, "what was cleared away is there again"
    assert list(tmp_path.glob("quivermq-*")) == [place], "and nothing else is left"
    place.chmod(0o755)
    refused = arrive(tmp_path)
    assert f"PermissionError: {place} is not this user's alone" in refused.stderr.decode()


def test_the_shipped_zip_is_small_and_reproducible() -> None:
    packed = package_shipping.pack_modules()
    package_shipping.pack_modules.cache_clear()
    assert package_shipping.pack_modules() == packed
    assert len(packed) < 500_000
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert "quivermq/spark/formats.py" in names
    assert not [name for name in names if name.startswith(("quivermq/node", "quivermq/raft"))]


def test_the_wheel_has_the_modules_by_which_spark_finds_the_formats(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=SRC.parent)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"pyspark_quiver.py", "pyspark_quiver_table.py"} < set(names)


@pytest.mark.parametrize("name", ["pyspark_quiver", "pyspark_quiver_table"])
def test_a_module_that_spark_finds_raises_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert import_module(name).DefaultSource.name() == name.removeprefix("pyspark_")
    monkeypatch.delitem(sys.modules, name)
    for broken in ("quivermq.spark.formats",):
        monkeypatch.setitem(sys.modules, broken, None)
    assert not hasattr(import_module(name), "DefaultSource")
    monkeypatch.delitem(sys.modules, name)
