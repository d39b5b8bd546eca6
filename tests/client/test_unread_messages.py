"""What was fetched and not given out: the same messages, however many are taken at a time."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, EXPIRES, Compression, Frame, Offset, encode_batch
from quivermq.client.decode import PackedMessages, messages_of
from quivermq.client.models import Message
from quivermq.client.sticky.unread_messages import UnreadMessages

NEVER = b"%d" % (1 << 45)
PASSED = b"1000"


def frame(first: int, count: int, shape: int, compression: Compression = None) -> Frame:
    """Plain, or with keys, or with all that a message may have; of the last, some expired."""
    values = [b"%d" % number for number in range(first, first + count)]
    headers = [{"n": value, EXPIRES: NEVER if n % 3 else PASSED} for n, value in enumerate(values)]
    encoded = encode_batch(
        values,
        keys=values if shape else None,
        headers=headers if shape == 2 else None,
        timestamps=list(range(count)) if shape == 2 else None,
        compression=compression,
    )
    header = encoded.header.stamped(1, 1, Offset(first), 1_700_000_000_000)  # type: ignore[arg-type]
    return Frame(header, bytes(encoded.body))


def live(frames: list[Frame], start: int) -> list[Message]:
    found = chain.from_iterable(
        messages_of(each, "t", 3, start, None, DEFAULT_LIMITS) for each in frames
    )
    return [message for message in found if message.headers.get(EXPIRES) != PASSED]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7, 70, 700]),
            st.integers(0, 2),
            st.sampled_from([None, "lz4", "zstd"]),
        ),
        max_size=4,
    ),
    st.lists(st.sampled_from([1, 5, 63, 64, 100, 600]), min_size=1, max_size=8),
    st.integers(0, 9),
)
def test_messages_are_those_of_the_batches_however_they_are_taken(
    batches: list[tuple[int, int, Compression]], takes: list[int], start: int
) -> None:
    frames: list[Frame] = []
    for count, shape, compression in batches:
        first = frames[-1].header.next_offset if frames else 0
        frames.append(frame(first, count, shape, compression))
    unread = UnreadMessages("t", 3, DEFAULT_LIMITS, Message)
    unread.restart(start)
    unread.put(frames)
    assert unread.bytes == sum(map(len, frames))
    found: list[Message] = []
    while taken := unread.take(takes[len(found) % len(takes)]):
        assert len(taken) <= max(takes)
        found += taken
    assert found == live(frames, start)
    assert not unread
    assert unread.bytes == 0


def test_what_is_put_back_comes_first() -> None:
    unread = UnreadMessages("t", 3, DEFAULT_LIMITS, Message)
    unread.put([frame(0, 300, 0)])
    first, second = unread.take(1), unread.take(100)
    unread.put_back(second)
    unread.put_back(first)
    assert [unread.take(1)[0].offset for _ in range(300)] == list(range(300))


def test_a_frame_is_read_from_and_to_where_it_is_wanted() -> None:
    made = frame(10, 1_700, 2)
    packed = PackedMessages(made, "t", 3, 20, 1_600, DEFAULT_LIMITS)
    found: list[Message] = []
    while not packed.is_empty:
        found += packed.take(700)
    assert found == [each for each in live([made], 20) if each.offset < 1_600]
    assert packed.take(1) == []
    assert PackedMessages(made, "t", 3, 9_999, None, DEFAULT_LIMITS).is_empty
