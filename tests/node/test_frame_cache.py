"""Batches in memory: found by offset, bounded, the least used forgotten first."""

from quivermq.batches import Frame, Index, Offset, encode_batch
from quivermq.node.delivery.frame_cache import FrameCache

ONE, OTHER = b"one", b"other"


def batch(offset: int, count: int, size: int = 10) -> Frame:
    frame = encode_batch([bytes(size)] * count)
    return frame.stamped(term=1, index=Index(1), base_offset=Offset(offset), timestamp_ms=1)


def test_a_batch_is_found_by_each_of_its_offsets_and_no_other() -> None:
    cache = FrameCache(1 << 20)
    frames = [batch(0, 3), batch(3, 2), batch(9, 1)]
    for frame in (frames[2], frames[0], frames[1]):
        cache.add(ONE, frame)
    found = [cache.holding(ONE, offset) for offset in range(11)]
    assert found == [*[frames[0]] * 3, *[frames[1]] * 2, *[None] * 4, frames[2], None]
    assert cache.holding(OTHER, 0) is None


def test_runs_are_covered_whole_or_not_at_all() -> None:
    cache = FrameCache(1 << 20)
    frames = [batch(0, 3), batch(3, 2), batch(9, 1)]
    for frame in frames:
        cache.add(ONE, frame)
    assert cache.covering(ONE, [(0, 5)]) == frames[:2]
    assert cache.covering(ONE, [(0, 1), (2, 4), (9, 10)]) == frames
    assert cache.covering(ONE, [(1, 6)]) is None
    assert cache.covering(ONE, [(0, 1), (8, 9)]) is None


def test_what_was_used_longest_ago_is_forgotten_for_what_comes() -> None:
    size = len(batch(0, 1, 1_000))
    cache = FrameCache(4 * size)
    for offset in range(4):
        cache.add(ONE, batch(offset, 1, 1_000))
    assert cache.holding(ONE, 0) is not None
    cache.add(OTHER, batch(0, 1, 1_000))
    assert [cache.holding(ONE, offset) is not None for offset in range(4)] == [
        True, False, True, True,
    ]  # fmt: skip
    assert (len(cache), cache.size_bytes) == (4, 4 * size)
    cache.add(ONE, batch(9, 1, 100_000))
    assert cache.holding(ONE, 9) is None
    cache.drop(ONE)
    assert (len(cache), cache.size_bytes) == (1, size)
    assert cache.holding(OTHER, 0) is not None
