"""Files of another release: refused whole, and not one byte of the folder is touched.

A version field with a flipped bit is damage like any other: its checksum fails.
"""

from collections.abc import Callable
from struct import Struct

import pytest
from crc32c import crc32c

from quivermq.batches import HEADER_BYTES, Frame, Index
from quivermq.errors import Corrupt, UnsupportedFormat
from quivermq.log import Log
from quivermq.log.checkpoints import _HEADER as CHECKPOINT_RECORD
from quivermq.log.layout import _FOOTER, _HEADER, FOOTER_BYTES, Footer
from quivermq.log.marks import MARK_BYTES
from quivermq.log.state import _FORMER, _RECORD, STATE_BYTES
from quivermq.log.synced import _RECORD as SYNCED_RECORD
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.log.entries import LOG_ID
from tests.log.logs import FOLDER, SMALL, all_entries, fill, new_log, reopened, verified

STATE = f"{FOLDER}/state"
STATE_COPY = f"{FOLDER}/state.copy"
SYNCED = f"{FOLDER}/synced"
VERSION_AT = 8
FRAME_VERSION_AT = 2


class Files:
    """The files of a log with sealed segments, a checkpoint and more, to be changed and opened."""

    def __init__(self) -> None:
        self.disk, self.log = new_log()
        self.kept = fill(self.log, 20)
        self.log.save_checkpoint(self.log.segment_starts[1], b"state")
        self.log.append(self.kept[:0])
        self.segments = [path for path in self.disk.paths() if path.endswith(".seg")]
        # What opening a log removes, heals and cuts otherwise.
        self.disk.create(f"{FOLDER}/00000000000000000099.seg.tmp").write(0, [b"left over"])
        self.disk.flip_bit(STATE_COPY, 8 * 100)
        end = self.log._active.end
        self.edit(self.segments[-1], end, b"a torn write")

    @property
    def checkpoint(self) -> str:
        return next(path for path in self.disk.paths() if path.endswith(".ckpt"))

    def edit(self, path: str, at: int, data: bytes) -> None:
        content = bytearray(self.disk.content(path))
        content[at : at + len(data)] = data
        self.disk.replace_content(path, bytes(content))

    def raise_version(self, path: str, at: int, size: int) -> None:
        """Of a record: a later version, and a checksum that fits it."""
        record = bytearray(self.disk.content(path)[at : at + size - 4])
        record[VERSION_AT] += 1
        self.edit(path, at, bytes(record) + crc32c(record).to_bytes(4, "little"))

    def raise_frame(self, path: str, at: int) -> None:
        header = bytearray(self.disk.content(path)[at : at + HEADER_BYTES - 4])
        header[FRAME_VERSION_AT] += 1
        self.edit(path, at, bytes(header) + crc32c(header).to_bytes(4, "little"))

    def raise_index(self, path: str) -> None:
        content = self.disk.content(path)
        footer = Footer.unpack(content[-FOOTER_BYTES:])
        index = bytearray(content[footer.data_bytes : -FOOTER_BYTES])
        index[0] += 1
        changed = footer._replace(index_crc=crc32c(index))
        self.edit(path, footer.data_bytes, bytes(index) + changed.pack())

    def snapshot(self) -> dict[str, bytes]:
        return {path: self.disk.content(path) for path in self.disk.paths()}

    def position(self, index: int) -> int:
        segment, _ = self.log._segment_holding(Index(index))
        return segment.index.positions[index - segment.index.first]

    @property
    def last(self) -> int:
        return int(self.log.edge.next_index - 1)


def later_copy_of_a_checkpoint(files: Files) -> None:
    copy = f"{files.checkpoint}.copy"
    files.disk.create(copy).write(0, [files.disk.content(files.checkpoint)])
    files.raise_version(copy, 0, CHECKPOINT_RECORD.size)


LATER: dict[str, Callable[[Files], None]] = {
    "state": lambda f: f.raise_version(STATE, 0, _RECORD.size),
    "synced": lambda f: f.raise_version(SYNCED, 0, SYNCED_RECORD.size),
    "header of a sealed segment": lambda f: f.raise_version(f.segments[0], 0, _HEADER.size),
    "header of the last segment": lambda f: f.raise_version(f.segments[-1], 0, _HEADER.size),
    "footer": lambda f: f.raise_version(
        f.segments[1], len(f.disk.content(f.segments[1])) - FOOTER_BYTES, _FOOTER.size
    ),
    "index": lambda f: f.raise_index(f.segments[1]),
    "checkpoint": lambda f: f.raise_version(f.checkpoint, 0, CHECKPOINT_RECORD.size),
    "copy of a checkpoint": later_copy_of_a_checkpoint,
    "frame": lambda f: f.raise_frame(f.segments[-1], f.position(f.last - 1)),
    "last frame": lambda f: f.raise_frame(f.segments[-1], f.position(f.last)),
    "mark": lambda f: f.raise_frame(f.segments[-1], f.log._active.end - MARK_BYTES),
}


@pytest.mark.parametrize("change", LATER.values(), ids=LATER)
def test_a_log_of_a_later_release_is_refused_and_not_touched(
    change: Callable[[Files], None],
) -> None:
    files = Files()
    change(files)
    before = files.snapshot()
    for _ in range(2):
        with pytest.raises(UnsupportedFormat, match="version"):
            reopened(files.disk)
        assert files.snapshot() == before
    report = verified(files.disk)
    assert report.is_of_another_release
    assert files.snapshot() == before


def test_both_copies_of_a_state_of_a_later_release_are_one_that_is_refused() -> None:
    for copies in ((STATE_COPY,), (STATE, STATE_COPY)):
        files = Files()
        files.disk.replace_content(STATE_COPY, files.disk.content(STATE))
        for path in copies:
            files.raise_version(path, 0, _RECORD.size)
        before = files.snapshot()
        with pytest.raises(UnsupportedFormat, match="version"):
            reopened(files.disk)
        assert files.snapshot() == before


FLIPPED: dict[str, Callable[[Files], tuple[str, int]]] = {
    "state": lambda f: (STATE, VERSION_AT),
    "synced": lambda f: (SYNCED, VERSION_AT),
    "header of a sealed segment": lambda f: (f.segments[0], VERSION_AT),
    "header of the last segment": lambda f: (f.segments[-1], VERSION_AT),
    "footer": lambda f: (
        f.segments[1],
        len(f.disk.content(f.segments[1])) - FOOTER_BYTES + VERSION_AT,
    ),
    "index": lambda f: (
        f.segments[1],
        Footer.unpack(f.disk.content(f.segments[1])[-FOOTER_BYTES:]).data_bytes,
    ),
    "checkpoint": lambda f: (f.checkpoint, VERSION_AT),
    "frame": lambda f: (f.segments[-1], f.position(f.last - 1) + FRAME_VERSION_AT),
    "mark": lambda f: (f.segments[-1], f.log._active.end - MARK_BYTES + FRAME_VERSION_AT),
}


@pytest.mark.parametrize("where", FLIPPED.values(), ids=FLIPPED)
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_a_version_is_damage(
    where: Callable[[Files], tuple[str, int]], bit: int
) -> None:
    files = Files()
    # The other copy is damaged already, and two at once are more than a state survives.
    files.disk.replace_content(STATE_COPY, files.disk.content(STATE))
    path, at = where(files)
    files.disk.flip_bit(path, 8 * at + bit)
    assert not verified(files.disk).is_of_another_release
    log = reopened(files.disk)
    for frame in files.kept:
        try:
            assert log.read(frame.header.index, bytes_max=1) == [frame]
        except Corrupt:
            assert any(damage.covers(frame.header.index) for damage in log.damage)
    assert log.edge.next_index == files.last + 1


def test_frames_of_a_later_release_behind_damage_are_not_cut() -> None:
    """The mark behind them bears the secret: no later release writes it anywhere else."""
    files = Files()
    last = files.segments[-1]
    files.raise_frame(last, files.position(files.last))
    files.raise_frame(last, files.log._active.end - MARK_BYTES)
    files.disk.flip_bit(last, 8 * (files.position(files.last) + 30))
    before = files.snapshot()
    with pytest.raises(UnsupportedFormat):
        reopened(files.disk)
    assert files.snapshot() == before


def test_a_message_that_looks_like_a_frame_of_a_later_release_stops_nothing() -> None:
    """Anybody can put one into a message: a torn write of it is cut like any other."""
    for at in range(0, 200, 8):
        disk, log = new_log()
        kept = fill(log, 2)
        header = bytearray(kept[0].packed_header[:-4])
        header[FRAME_VERSION_AT] = 9
        later = bytes(header) + crc32c(header).to_bytes(4, "little")
        start = log._active.end
        (path,) = [path for path in disk.paths() if path.endswith(".seg")]
        fill(log, 1, of=1, body=bytes(at) + later + bytes(200))
        content = bytearray(disk.content(path))
        # Torn: the header is gone, and the mark that says that it was durable.
        content[start : start + HEADER_BYTES] = bytes(HEADER_BYTES)
        content[log._active.end - MARK_BYTES :] = bytes(len(content) - log._active.end + MARK_BYTES)
        disk.replace_content(path, bytes(content))
        # Nothing else says so either.
        disk.remove(SYNCED)
        log = reopened(disk)
        assert (all_entries(log), log.damage) == (kept, [])


def test_a_log_of_the_first_formats_is_refused_and_not_touched() -> None:
    first = Struct("<8sH16sQQQQQQQQ").pack(b"QUIVRVOT", 1, LOG_ID, 5, 3, 1, 1, 1, 4096, 0, 0)
    second = _FORMER.pack(LOG_ID, LOG_ID, 5, 3, 1, 1, 1, 4096, 0, 0)
    records = {
        "version 1": first + crc32c(first).to_bytes(4, "little"),
        "earlier builds": second,
    }
    for reason, record in records.items():
        files = Files()
        files.disk.replace_content(STATE, record.ljust(STATE_BYTES, b"\0") * 2)
        files.disk.remove(STATE_COPY)
        before = files.snapshot()
        with pytest.raises(UnsupportedFormat, match=reason):
            reopened(files.disk)
        assert files.snapshot() == before


def test_a_checkpoint_that_waits_to_replace_a_log_is_of_a_later_release() -> None:
    files = Files()
    waiting = f"{files.checkpoint}.new"
    files.disk.create(waiting).write(0, [files.disk.content(files.checkpoint)])
    files.raise_version(waiting, 0, CHECKPOINT_RECORD.size)
    before = files.snapshot()
    with pytest.raises(UnsupportedFormat, match="QUIVRCKP"):
        Log.open(files.disk, FOLDER, SMALL)
    assert files.snapshot() == before


def test_what_is_refused_is_no_kind_of_corrupt() -> None:
    assert not issubclass(UnsupportedFormat, Corrupt)
    with pytest.raises(UnsupportedFormat):
        Frame.parse(_later_frame())


def _later_frame() -> bytes:
    disk, log = new_log()
    assert isinstance(disk, SimulatedDisk)
    (frame,) = fill(log, 1, of=1)
    header = bytearray(frame.packed_header[:-4])
    header[FRAME_VERSION_AT] += 1
    return bytes(header) + crc32c(header).to_bytes(4, "little") + bytes(frame.body)
