"""No bytes do more than raise the typed error: lies reach the decoder under right checksums.

`QUIVER_FUZZ_EXAMPLES=200000 python -m pytest tests/batches/test_fuzz.py` looks harder.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quivermq.batches import Compression, Frame
from tests.batches.lies import Edit, edited, edits, outcome
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, frame_of, with_body

EXAMPLES = int(os.environ.get("QUIVER_FUZZ_EXAMPLES", "300"))

harder = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
ALL_FRAMES = {
    (flags, compression, rows): frame_of(flags, compression, rows)
    for flags in COLUMN_SETS
    for compression in COMPRESSIONS
    for rows in (1, 5, 40)
}


def frames_with(compression: Compression) -> st.SearchStrategy[Frame]:
    return st.sampled_from([frame for key, frame in ALL_FRAMES.items() if key[1] == compression])


any_frame = st.sampled_from(list(ALL_FRAMES.values()))


@pytest.mark.parametrize("metadata_only", [True, False], ids=["metadata", "anywhere"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(data=st.data(), changes=edits)
@harder
def test_a_lying_body_is_read_harmlessly_or_refused(
    compression: Compression, metadata_only: bool, data: st.DataObject, changes: list[Edit]
) -> None:
    frame = data.draw(frames_with(compression))
    lie = edited(bytes(frame.body), changes, metadata_only=metadata_only)
    outcome(with_body(frame.header, lie))


@given(any_frame, edits)
@harder
def test_a_damaged_frame_is_never_taken_for_another(frame: Frame, changes: list[Edit]) -> None:
    sent = bytes(frame)
    damaged = edited(sent, changes, metadata_only=False)
    # Cutting at the end of a frame, or adding behind it, leaves that frame whole.
    if not damaged.startswith(sent):
        assert outcome(damaged) == "Corrupt"


@given(any_frame, any_frame)
@harder
def test_the_body_of_one_frame_under_the_header_of_another_is_harmless(
    frame: Frame, other: Frame
) -> None:
    outcome(with_body(frame.header, bytes(other.body)))


@given(any_frame, st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@harder
def test_a_header_that_lies_about_its_body_is_harmless(
    frame: Frame, flags: int, count: int, decoded_bytes: int
) -> None:
    for lie in (
        {"flags": flags % 32},
        {"flags": flags},
        {"count": count},
        {"decoded_bytes": decoded_bytes},
        {"count": count % 64, "flags": flags % 32},
    ):
        outcome(frame.header._replace(**lie).pack() + bytes(frame.body))


@given(st.binary(max_size=400), any_frame)
@harder
def test_arbitrary_bytes_are_refused(noise: bytes, frame: Frame) -> None:
    assert outcome(noise) == "Corrupt"
    assert outcome(with_body(frame.header, noise)) == "Corrupt"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_byte_of_the_metadata_may_lie(compression: Compression) -> None:
    """Exhaustive where it is cheap: each 8-byte word of one body, by each telling number."""
    frame = frame_of(7, compression, rows=3)
    body = bytes(frame.body)
    words = range(0, 8 + int.from_bytes(body[4:8], "little"), 8)
    seen = set()
    for at in words:
        for number in (0, 1, -1, 8, 2**31 - 1, 2**31, 2**32, 2**62, -(2**63)):
            lie = edited(body, [Edit("integer", at, number, 8)], metadata_only=True)
            seen.add(outcome(with_body(frame.header, lie)))
    assert seen <= {"read", "Corrupt", "TooLarge"}
    assert "Corrupt" in seen
