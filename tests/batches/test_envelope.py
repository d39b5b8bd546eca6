"""The Arrow message's own numbers: read before Arrow believes them, lies refused, bombs unlit."""

import subprocess
import sys
from struct import pack_into, unpack_from
from typing import Any

import pyarrow as pa
import pytest

from quivermq.batches import Frame, decode_batch, encode_batch, schema_of
from quivermq.batches.envelope import Codec, _fields, _follow, _places, check_envelope
from quivermq.errors import Corrupt
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, frame_of, with_body

CODECS = {None: None, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
PREFIX = 8


class Anatomy:
    """Where the numbers of a body's Arrow message are, to overwrite them."""

    def __init__(self, frame: Frame) -> None:
        self.header = frame.header
        self.body = bytearray(frame.body)
        size = unpack_from("<I", self.body, 4)[0]
        self.data_start = PREFIX + size
        self.metadata = memoryview(self.body)[PREFIX : self.data_start]
        self.message = unpack_from("<I", self.metadata)[0]
        _, self.header_type, header, _ = _fields(self.metadata, self.message)
        self.length, _, self.vector, _ = _fields(self.metadata, _follow(self.metadata, header))
        self.buffers = _follow(self.metadata, self.vector) + 4

    def write(self, form: str, at: int, *numbers: int) -> None:
        pack_into("<" + form, self.metadata, at, *numbers)

    def place(self, number: int) -> tuple[int, int]:
        return _places(self.metadata, self.buffers - 4)[number]

    def move(self, number: int, start: int, size: int) -> None:
        self.write("qq", self.buffers + 16 * number, start, size)

    def decode(self) -> pa.RecordBatch:
        return decode_batch(Frame.parse(with_body(self.header, bytes(self.body))))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_what_the_encoder_writes_passes(flags: int, compression: Any) -> None:
    for rows in (1, 2, 9, 100):
        frame = frame_of(flags, compression, rows)
        header = frame.header
        check_envelope(
            frame.body,
            count=rows,
            codec=CODECS[compression],
            decoded_bytes=header.decoded_bytes,
        )


@pytest.mark.parametrize("rows", [4, 6, 0, -1, 2**62])
def test_a_row_count_that_differs_is_corrupt(rows: int) -> None:
    lie = Anatomy(frame_of())
    lie.write("q", lie.length, rows)
    with pytest.raises(Corrupt, match=f"counts 5 messages, the Arrow message {rows}"):
        lie.decode()


def test_a_message_that_is_a_schema_is_corrupt() -> None:
    lie = Anatomy(frame_of())
    lie.write("B", lie.header_type, 1)
    with pytest.raises(Corrupt, match="not a record batch"):
        lie.decode()


@pytest.mark.parametrize("body", [b"", b"\xff" * 4, b"\xff" * 8, b"\xff" * 4 + bytes(4), bytes(64)])
def test_a_body_that_is_no_arrow_message_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_batch(Frame.parse(with_body(frame_of().header, body)))


def test_references_outside_the_message_are_corrupt() -> None:
    for at in ("root", "table", "vector"):
        for value in (-1, 2**31 - 1, 1 << 20):
            lie = Anatomy(frame_of())
            place = {"root": 0, "table": lie.message, "vector": lie.vector}[at]
            lie.write("i", place, value)
            with pytest.raises(Corrupt):
                lie.decode()


@pytest.mark.parametrize("claimed", ["lz4", "zstd", None])
@pytest.mark.parametrize("actual", ["lz4", "zstd", None])
def test_header_and_body_must_name_the_same_codec(claimed: Any, actual: Any) -> None:
    body = frame_of(0, actual).body
    arguments = {"count": 5, "decoded_bytes": 1 << 20}
    if claimed == actual:
        check_envelope(body, codec=CODECS[claimed], **arguments)
        return
    with pytest.raises(Corrupt, match="disagree about compression"):
        check_envelope(body, codec=CODECS[claimed], **arguments)


def test_keys_that_point_at_the_bytes_of_values_are_corrupt() -> None:
    frame = encode_batch([b"v" * 5_000], keys=[b"k" * 5_000])
    lie = Anatomy(frame)
    value_data, key_data = 2, 5
    lie.move(key_data, *lie.place(value_data))
    with pytest.raises(Corrupt, match="overlaps"):
        lie.decode()


@pytest.mark.parametrize(
    ("start", "size"), [(-8, 8), (0, -1), (1 << 40, 8), (0, 1 << 62), (8, 2**63 - 1)]
)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_buffers_outside_the_body_are_corrupt(compression: Any, start: int, size: int) -> None:
    for number in range(3):
        lie = Anatomy(frame_of(0, compression))
        lie.move(number, start, size)
        with pytest.raises(Corrupt):
            lie.decode()


def test_more_buffers_than_the_metadata_can_hold_are_corrupt() -> None:
    lie = Anatomy(frame_of())
    lie.write("I", lie.buffers - 4, 1 << 28)
    with pytest.raises(Corrupt, match="claims 268435456 buffers"):
        lie.decode()


CLAIMS = [1 << 24, 1 << 31, 1 << 40, 2**63 - 1, -2, -(2**63)]


def claiming(frame: Frame, claim: int) -> bytes:
    """The frame with a values buffer that claims to decompress to `claim` bytes."""
    lie = Anatomy(frame)
    start, _ = lie.place(2)
    pack_into("<q", lie.body, lie.data_start + start, claim)
    return with_body(lie.header, bytes(lie.body))


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_buffer_that_claims_to_decompress_to_more_is_refused(
    compression: Any, claim: int
) -> None:
    frame = Frame.parse(claiming(frame_of(0, compression), claim))
    with pytest.raises(Corrupt, match=r"decompresses to more|claims -"):
        decode_batch(frame)


def test_a_compressed_buffer_too_short_for_its_own_size_is_corrupt() -> None:
    lie = Anatomy(frame_of(0, "zstd"))
    start, _ = lie.place(2)
    lie.move(2, start, 4)
    with pytest.raises(Corrupt, match="cannot say what it becomes"):
        lie.decode()


def bomb(compression: str) -> Frame:
    """64 MiB of zeros in a small body, declared as no more than the limits allow."""
    batch = pa.record_batch([pa.array([bytes(64 << 20)])], schema=schema_of(0))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    body = sink.getvalue().to_pybytes()[batch.schema.serialize().size : end]
    header = frame_of(0, compression, rows=1).header._replace(decoded_bytes=16 << 20)
    return Frame.parse(with_body(header, body))


PEAKS = """
import sys
import pyarrow as pa
from quivermq.batches import Frame, decode_batch
from quivermq.errors import QuiverError
for frame in list(Frame.parse_all(sys.stdin.buffer.read())):
    try:
        outcome = str(decode_batch(frame).num_rows)
    except QuiverError as error:
        outcome = type(error).__name__
    print(outcome, pa.default_memory_pool().max_memory())
"""


def peaks(*frames: bytes) -> list[tuple[str, int]]:
    """Outcome and highest memory of Arrow so far, for each frame, in a process that only decodes.

    The peak of a pool cannot be reset, and pyarrow reads through the pool of its C++ side, which
    a proxy set from Python does not see.
    """
    run = subprocess.run(
        [sys.executable, "-c", PEAKS], input=b"".join(frames), capture_output=True, check=True
    )
    lines = [line.split() for line in run.stdout.decode().splitlines()]
    return [(outcome, int(peak)) for outcome, peak in lines]


def test_bombs_are_refused_before_arrow_allocates_for_them() -> None:
    plain = [claiming(frame_of(0, codec), n) for codec in ("lz4", "zstd") for n in CLAIMS]
    real = [bytes(bomb(codec)) for codec in ("lz4", "zstd")]
    assert max(map(len, real)) < 1 << 20
    # A real bomb with a modest claim in front: Arrow may allocate the claim and no more.
    modest = [claiming(bomb(codec), 1 << 20) for codec in ("lz4", "zstd")]
    honest = bytes(encode_batch([bytes(4 << 20)], compression="zstd"))
    outcomes = peaks(*plain, *real, *modest, honest)
    refused = outcomes[: len(plain) + len(real)]
    assert {outcome for outcome, _ in outcomes[:-1]} == {"Corrupt"}
    assert refused[-1][1] < 4_096
    assert outcomes[-2][1] < 2 << 20
    outcome, peak = outcomes[-1]
    assert outcome == "1", "the last frame is honest, and shows that the peak is measured"
    assert 4 << 20 <= peak < 5 << 20
