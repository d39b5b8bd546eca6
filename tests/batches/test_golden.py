"""Golden frames: a change of the format cannot happen by accident.

What is guaranteed, whatever libraries are installed:

- every golden frame reads, to the messages that its index entry spells out;
- every header packs to the same bytes, and stands at the same place;
- every body that is not Arrow is the same bytes.

Arrow bodies are the same bytes only while pyarrow is of the major version in the index: another
one may legitimately lay out its flatbuffers with other padding, or order their fields otherwise.
Then, and for compressed bodies always (codecs improve), today's body need only decode to the
same messages, under a header that differs in the body's size and checksum alone.
"""

import json
from collections import Counter

import pyarrow as pa
import pytest

from quivermq.batches import HEADER_BYTES, Flag, Frame, FrameKind, Header
from quivermq.batches.header import COMPRESSED
from tests.batches.golden_files import FOLDER, INDEX, description, frames

RECORDED = json.loads(INDEX.read_text())
NAMES = sorted(RECORDED["frames"])
SAME_PYARROW = int(pa.__version__.split(".")[0]) == RECORDED["pyarrow_major"]
TODAY = frames()


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_frame_reads_as_its_index_says(name: str) -> None:
    assert description(Frame.parse(golden(name))) == RECORDED["frames"][name]


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_header_packs_to_the_same_bytes(name: str) -> None:
    header = Header(**RECORDED["frames"][name]["header"])
    assert header.pack() == golden(name)[:HEADER_BYTES]


@pytest.mark.parametrize("name", NAMES)
def test_todays_encoder_makes_the_golden_frame(name: str) -> None:
    stored, made = Frame.parse(golden(name)), Frame.parse(bytes(TODAY[name]))
    arrow = stored.header.kind == FrameKind.DATA
    if not arrow or (SAME_PYARROW and not stored.header.flags & COMPRESSED):
        assert bytes(made) == bytes(stored)
        return
    body_fields = dict.fromkeys(["body_bytes", "body_crc", "decoded_bytes"], 0)
    assert made.header._replace(**body_fields) == stored.header._replace(**body_fields)
    assert description(made).get("messages") == RECORDED["frames"][name]["messages"]


def test_there_is_a_golden_frame_of_everything_that_a_frame_can_be() -> None:
    assert set(NAMES) == set(TODAY) == {path.name for path in FOLDER.glob("*.frame")}
    headers = [Header.unpack(golden(name)) for name in NAMES]
    assert {header.kind for header in headers} == set(FrameKind)
    stamped = Counter(header.flags for header in headers if header.kind == 1 and header.term)
    every = {columns | codec for columns in range(8) for codec in (0, Flag.LZ4, Flag.ZSTD)}
    assert stamped == dict.fromkeys(every, 1)


def test_the_header_stands_where_the_format_says() -> None:
    """The byte table of docs/formats.md, spelled out once more by hand."""
    header = golden("data-key-headers-timestamp-plain.frame")[:HEADER_BYTES]
    assert HEADER_BYTES == 88
    assert header[:8] == b"\x51\x71" + bytes([1, 1, 7, 0, 3, 0]), (
        "magic version kind flags priority"
    )

    def number(at: int, size: int) -> int:
        return int.from_bytes(header[at : at + size], "little")

    fields = RECORDED["frames"]["data-key-headers-timestamp-plain.frame"]["header"]
    places = {
        "body_bytes": (8, 4), "body_crc": (12, 4), "term": (16, 8), "index": (24, 8),
        "base_offset": (32, 8), "timestamp_ms": (40, 8), "producer_id": (48, 8),
        "sequence": (56, 8), "not_before_ms": (64, 8), "producer_epoch": (72, 4),
        "count": (76, 4), "decoded_bytes": (80, 4),
    }  # fmt: skip
    assert {name: number(*place) for name, place in places.items()} == {
        name: fields[name] for name in places
    }
