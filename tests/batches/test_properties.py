"""Content type and expiry among the headers of a batch, also of a compressed one."""

import pytest

from quivermq.batches import (
    CONTENT_TYPE,
    EXPIRES,
    Frame,
    Index,
    Offset,
    content_type_of,
    decode_messages,
    encode_batch,
    expired_offsets,
    expires_ms_of,
    may_expire,
    repeat_headers,
)
from quivermq.batches import header as header_module
from quivermq.errors import Corrupt

NOW_MS = 1_800_000_000_000
VALUES = [b"%d" % number + bytes(100) for number in range(200)]


def at_offset(frame: Frame, offset: int) -> Frame:
    return Frame(frame.header.stamped(1, Index(1), Offset(offset), NOW_MS), frame.body)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("values", [VALUES, VALUES[:4]], ids=["large", "small"])
def test_the_expired_messages_of_a_batch_are_found(
    compression: object, has_keys: bool, values: list[bytes]
) -> None:
    times = [NOW_MS - 1, NOW_MS, NOW_MS + 1, None]
    headers = [
        None if time is None else {"a": b"1", EXPIRES: b"%d" % time, "b": b"2"}
        for time, _ in zip(times * 100, values, strict=False)
    ]
    keys = [b"k" * 50] * len(values) if has_keys else None
    frame = encode_batch(values, keys=keys, headers=headers, compression=compression)  # type: ignore[arg-type]
    assert bool(frame.header.flags & header_module.COMPRESSED) == bool(compression)
    stored = at_offset(frame, 1_000)
    assert may_expire(stored)
    end = 1_000 + len(values)
    wanted = [offset for offset in range(1_000, end) if offset % 4 < 2]
    assert expired_offsets(stored, 0, end + 5, NOW_MS) == wanted
    assert expired_offsets(stored, 1_001, 1_003, NOW_MS) == [1_001]
    assert expired_offsets(stored, 0, end, NOW_MS - 2) == []


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("values", [VALUES, VALUES[:4]], ids=["large", "small"])
def test_a_batch_without_an_expiry_is_not_looked_into(
    compression: object, values: list[bytes]
) -> None:
    plain = encode_batch(values, compression=compression)  # type: ignore[arg-type]
    typed = encode_batch(
        values,
        headers=repeat_headers({CONTENT_TYPE: b"text/plain"}, len(values)),
        compression=compression,  # type: ignore[arg-type]
    )
    assert not may_expire(plain)
    assert not may_expire(typed)
    assert expired_offsets(typed, 0, 1_000, NOW_MS) == []
    assert {content_type_of(each.headers) for each in decode_messages(typed)} == {"text/plain"}


@pytest.mark.parametrize("wrong", [b"", b"-5", b"soon", b"1" * 40, "²".encode()])
def test_an_expiry_that_is_no_time_never_comes(wrong: bytes) -> None:
    frame = encode_batch([b"v"], headers=[{EXPIRES: wrong}])
    assert expired_offsets(frame, 0, 1, NOW_MS) == []
    assert expires_ms_of({EXPIRES: wrong}) is None


def test_a_body_that_lies_about_its_buffers_is_refused() -> None:
    frame = encode_batch(VALUES, headers=[{EXPIRES: b"5"}] * len(VALUES), compression="zstd")
    shrunk = frame.header._replace(decoded_bytes=10)
    with pytest.raises(Corrupt):
        may_expire(Frame(shrunk, frame.body))
