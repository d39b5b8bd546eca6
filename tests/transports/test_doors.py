"""The table of docs/doors.md says what every door can do: all of it, and nothing else."""

import json
import re
from pathlib import Path

import pytest

import quivermq.transports.http  # noqa: F401 - before a loop runs that it would hold
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto
from tests.transports.browser import get
from tests.transports.stage import on_loop, serving

PAGE = Path(__file__).parents[2] / "docs" / "doors.md"
SPAN = re.compile(r"`([^`]+)`")


def cells(column: int) -> list[str]:
    """Of one door, a cell for each feature."""
    lines = PAGE.read_text().partition("| feature | TCP | HTTP | gRPC |\n")[2].splitlines()[1:]
    return [line.split(" | ")[column].strip(" |") for line in lines]


def named(column: int, shape: str) -> set[str]:
    found = {span for cell in cells(column) for span in SPAN.findall(cell)}
    return {span for span in found if re.fullmatch(shape, span)}


def test_every_request_of_the_protocol_has_a_row() -> None:
    kinds = {field.name for field in proto.Request.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert named(1, "[a-z_]+") == kinds


@on_loop
async def test_every_path_of_http_has_a_row(tmp_path: Path) -> None:
    async with serving(tmp_path, http="127.0.0.1:0") as server:
        document = json.loads((await get(server, "/openapi.json")).text)
    served = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert named(2, "[A-Z]+ /.*") == served


def test_every_call_of_grpc_has_a_row() -> None:
    calls = {method.name for method in api.DESCRIPTOR.services_by_name["Quiver"].methods}
    assert named(3, "[A-Z][A-Za-z]+") == calls


@pytest.mark.parametrize("column", [1, 2, 3])
def test_what_a_door_lacks_has_a_reason(column: int) -> None:
    for cell in cells(column):
        assert SPAN.search(cell) or re.match(r"no: \w+ \w+", cell), cell
