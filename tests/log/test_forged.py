"""What a client puts into a message is never taken for what the log wrote itself; and no number in
a file makes anybody count further than the file is long."""

import time

import pytest

from quivermq.batches import HEADER_BYTES, Frame, Index, Offset
from quivermq.errors import Corrupt
from quivermq.log import Edge, Log
from quivermq.log.index import SegmentIndex
from quivermq.log.marks import MARK_BYTES, Mark, packed_mark
from quivermq.log.settings import ENTRIES_MAX
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.log.entries import LOG_ID, entry
from tests.log.logs import all_entries, fill, new_log, reopened, segment_paths

HUGE = 1 << 62
CLAIM = Mark(Edge(Index(HUGE), Offset(HUGE), 1, 2000), Index(3))


def torn(disk: SimulatedDisk, log: Log, body: bytes, lost: slice) -> list[Frame]:
    """A message, written and not synced, of which a part is lost with the power."""
    kept = fill(log, 3)
    start = log._active.end
    log.append([entry(log.edge, body=body)])
    (path,) = segment_paths(disk)
    content = bytearray(disk.content(path))
    part = content[start : log._active.end][lost]
    at = start + (lost.start or 0)
    content[at : at + len(part)] = bytes(len(part))
    disk.replace_content(path, bytes(content))
    return kept


@pytest.mark.parametrize("edge", [CLAIM.edge, Edge(Index(9), Offset(9), 1, 2000)])
def test_a_mark_inside_of_a_message_proves_nothing(edge: Edge) -> None:
    """It names everything that a client knows: the log's id, the position, the next entries."""
    disk, log = new_log()
    fill(log, 3)
    room = 150
    at = log._active.end + HEADER_BYTES + room
    disk, log = new_log()
    mark = packed_mark(LOG_ID, at, Mark(edge, Index(3)))
    kept = torn(disk, log, bytes(room) + mark + bytes(20), slice(0, HEADER_BYTES))
    log = reopened(disk)
    assert (all_entries(log), log.damage, log.edge.next_index) == (kept, [], len(kept) + 1)


def test_an_entry_inside_of_a_message_does_not_become_one() -> None:
    """Where a mark may have been lost, what stands behind it is no entry just because it fits."""
    for gap in range(0, 64, 4):
        disk, log = new_log()
        fill(log, 3)
        forged = bytes(entry(log.edge, term=1, body=b"nobody sent this"))
        disk, log = new_log()
        kept = torn(disk, log, bytes(gap) + forged + bytes(300), slice(0, HEADER_BYTES + gap))
        log = reopened(disk)
        assert all_entries(log) == kept, f"{gap} bytes in front of it"


def test_a_mark_that_claims_more_than_the_file_can_hold_is_not_counted_through() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    (path,) = segment_paths(disk)
    end = log._active.end
    mark = packed_mark(log._active.head.secret, end + 200, CLAIM)
    content = bytearray(disk.content(path).ljust(end + 400, b"\0"))
    content[end : end + 10] = b"bad bytes."
    content[end + 200 : end + 200 + MARK_BYTES] = mark
    disk.replace_content(path, bytes(content))
    began = time.monotonic()
    log = reopened(disk)
    assert all_entries(log) == kept
    assert time.monotonic() - began < 5


def test_a_hole_is_as_large_as_a_segment_can_be_at_most() -> None:
    index = SegmentIndex(Index(1))
    with pytest.raises(Corrupt, match="are said to be missing"):
        index.add_hole(0, Edge(), Edge(Index(ENTRIES_MAX + 2)))
    index.add_hole(0, Edge(), Edge(Index(1_000_001), Offset(7), 3, 9))
    assert (len(index), index.term_at(Index(1_000_000)), index.timestamps[-1]) == (1_000_000, 3, 9)


def test_a_segment_that_claims_to_start_far_away_is_not_counted_through() -> None:
    """By its name and its header, both intact: the one before has lost its footer."""
    disk, log = new_log()
    fill(log, 30)
    paths = segment_paths(disk)
    state = log._state_file.state
    head = log._active.head
    far = replace_name(paths[-1], HUGE)
    disk.rename(paths[-1], far)
    content = disk.content(far)
    packed = head._replace(start=head.start._replace(next_index=Index(HUGE))).pack()
    disk.replace_content(far, packed + content[len(packed) :])
    disk.flip_bit(paths[-2], 8 * (len(disk.content(paths[-2])) - 20))
    log._state_file.save(state._replace(active_index=Index(HUGE)))
    began = time.monotonic()
    with pytest.raises(Corrupt):
        reopened(disk)
    assert time.monotonic() - began < 5


def replace_name(path: str, index: int) -> str:
    folder, _, _ = path.rpartition("/")
    return f"{folder}/{index:020d}.seg"


def test_the_secret_differs_and_leaves_the_log_in_nothing_that_is_sent() -> None:
    disk, log = new_log()
    _, other = new_log()
    secret = log._active.head.secret
    assert len(secret) == 16
    assert secret != other._active.head.secret
    kept = fill(log, 30)
    log.save_checkpoint(log.segment_starts[1], b"state")
    sent = b"".join(bytes(frame) for frame in all_entries(log))
    assert secret not in sent
    assert secret not in log.load_checkpoint(log.segment_starts[1]).data
    assert all_entries(reopened(disk)) == kept
