"""The generated code is that of the protocol's file."""

import subprocess
import sys
from pathlib import Path

import pytest

import quivermq.wire

WIRE = Path(quivermq.wire.__file__).parent


def test_the_generated_code_is_what_make_proto_makes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the compiler is not installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(WIRE)),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "quiver.proto"),
        ],
        check=True,
    )
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["quiver_pb2.py", "quiver_pb2.pyi"]
    for name in made:
        kept = (WIRE / "generated" / name).read_text()
        assert (tmp_path / name).read_text() == kept, f"{name}: run `make proto`"
