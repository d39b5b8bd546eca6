"""Clients that are not ours: stubs generated elsewhere, and the examples in Go and Node.

Each has an environment of its own, without any code of QuiverMQ, and needs its toolchain and the
network to fetch libraries; it is skipped where there are none. Building gRPC and Arrow for Go takes
minutes where Go has not built them before: that test runs with `TEST_GRPC_GO=1` only.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quivermq.testing import Cluster

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "proto"
EXAMPLES = ROOT / "examples" / "grpc"
BUILD_S = 180.0
RUN_S = 60.0

SHOWN = [
    "polled hello",
    "polled world",
    "acknowledged",
    "TopicNotFound false",
    "arrow one\narrow two\narrow three",
    "pushed 5",
]

PYTHON_CLIENT = """
import sys
import grpc
from quiver.v1 import quiver_pb2 as api, quiver_pb2_grpc
assert not any(name.startswith("quivermq") for name in sys.modules)
with grpc.insecure_channel(sys.argv[1]) as channel:
    quiver = quiver_pb2_grpc.QuiverStub(channel)
    quiver.CreateTopic(api.CreateTopicRequest(topic="elsewhere", partitions=1))
    messages = [api.NewMessage(value=b"hello"), api.NewMessage(value=b"world")]
    quiver.Produce(api.ProduceRequest(topic="elsewhere", messages=messages))
    polled = quiver.Poll(api.PollRequest(topic="elsewhere", group="g", wait_ms=5000))
    for delivery in polled.deliveries:
        for message in delivery.messages:
            print("polled", message.value.decode())
    selections = [api.Selection(lease=delivery.lease) for delivery in polled.deliveries]
    quiver.Ack(api.AckRequest(topic="elsewhere", group="g", selections=selections))
    print("acknowledged")
    try:
        quiver.Fetch(api.FetchRequest(topic="nowhere"))
    except grpc.RpcError as error:
        metadata = dict(error.trailing_metadata())
        print(error.code().name, metadata["quiver-code"], metadata["quiver-retriable"])
    requests = iter([
        api.Request(id=1, hello=api.Hello(client="generated", group="h")),
        api.Request(id=2, produce=api.ProduceRequest(topic="elsewhere", messages=messages)),
    ])
    for response in quiver.Session(requests, timeout=30):
        print(response.WhichOneof("body"))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Cluster(nodes=1, settings={"grpc": "127.0.0.1:0"}) as cluster:
        yield cluster.nodes[1].grpc_address


def _run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def fetch(*command: str | Path, **options: Any) -> None:
    """Run what fetches libraries; without a network there is nothing to test."""
    try:
        done = _run(*command, timeout=BUILD_S, **options)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} fetched for {BUILD_S:.0f} s and was not done")
    if done.returncode:
        pytest.skip(f"{command[0]} could not fetch what it needs: {done.stderr[-300:]}")


def output(*command: str | Path, **options: Any) -> str:
    done = _run(*command, timeout=RUN_S, **options)
    assert not done.returncode, done.stderr
    return done.stdout


def test_stubs_that_are_generated_elsewhere_work(address: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    output(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    install = ("install", "--quiet", "--disable-pip-version-check", "grpcio-tools")
    fetch(sys.executable, "-m", "pip", "--python", python, *install)
    # Nothing of ours is importable there.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    outs = (f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    protoc = (python, "-m", "grpc_tools.protoc", "-I", PROTOS, *outs)
    output(*protoc, "quiver/v1/quiver.proto", env=clean)
    said = output(python, "-c", PYTHON_CLIENT, address, cwd=tmp_path, env=clean)
    assert said.splitlines() == [
        "polled hello",
        "polled world",
        "acknowledged",
        "NOT_FOUND TopicNotFound false",
        "welcome",
        "produced",
    ]


@pytest.mark.skipif(not shutil.which("npm"), reason="Node is not installed")
def test_the_example_in_node_works(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLES / "node", folder)
    fetch("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)
    said = output("node", "main.mjs", address, PROTOS, cwd=folder)
    for text in SHOWN:
        assert text in said


GO = shutil.which("go")


@pytest.mark.skipif("TEST_GRPC_GO" not in os.environ, reason="set TEST_GRPC_GO=1: it is slow")
@pytest.mark.skipif(not GO, reason="Go is not installed")
def test_the_example_in_go_works(address: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the compiler is not installed")
    folder = tmp_path / "go"
    shutil.copytree(EXAMPLES / "go", folder)
    tools = folder / "bin"
    fetch(GO, "mod", "download", cwd=folder)
    plugins = (
        "google.golang.org/protobuf/cmd/protoc-gen-go",
        "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    )
    # Both output names end in a slash: Go takes them for folders.
    subprocess.run([GO, "build", "-o", f"{tools}/", *plugins], check=True, cwd=folder)
    place = "Mquiver/v1/quiver.proto=./quiverv1"
    output(
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", PROTOS, "quiver/v1/quiver.proto"),
        *(f"--go_out={folder}", f"--go-grpc_out={folder}"),
        *(f"--go_opt={place}", f"--go-grpc_opt={place}"),
        env=os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )
    subprocess.run([GO, "build", "-o", f"{tools}/example", "."], check=True, cwd=folder)
    said = output(tools / "example", address)
    for text in SHOWN:
        assert text in said
