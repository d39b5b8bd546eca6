"""The log on a real file system, in real processes."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from quivermq.batches import Index, decode_messages, encode_batch
from quivermq.errors import StorageFailed, StorageFull
from quivermq.log import Log, LogSettings, RealDisk, Verification
from quivermq.log.real_disk import RealFile
from quivermq.log.window import first_data
from tests.log.entries import LOG_ID, entries
from tests.log.logs import SMALL, all_entries, fill

FOLDER = "log/orders/0"


def test_a_log_on_a_real_disk_keeps_what_it_was_given(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    log = Log.create(disk, FOLDER, LOG_ID, SMALL)
    kept = fill(log, 12)
    log.save_vote(4, 2)
    at = log.segment_starts[1]
    log.save_checkpoint(at, b"state")
    log.cut(log.edge.next_index)
    log.drop_before(at)
    log = Log.open(disk, FOLDER, SMALL)
    assert all_entries(log) == kept[at - 1 :]
    assert (log.term, log.vote, log.notes, log.damage) == (4, 2, [], [])
    report = Verification(disk, FOLDER, SMALL).run()
    assert (report.findings, report.entries) == ([], len(kept) - at + 1)


def test_batches_of_messages_come_back_from_disk(tmp_path: Path) -> None:
    log = Log.create(RealDisk(tmp_path), FOLDER, LOG_ID)
    values = [b"message %d" % number for number in range(1000)]
    frame = encode_batch(values).stamped(
        term=1, index=log.edge.next_index, base_offset=log.edge.next_offset, timestamp_ms=7
    )
    log.append([frame])
    log.sync()
    (found,) = log.read(Index(1))
    messages = decode_messages(found)
    assert [message.value for message in messages] == values
    assert [message.offset for message in messages] == list(range(1000))


def test_preallocated_space_is_skipped_without_reading_it(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).create("f")
    file.allocate(1 << 30)
    assert first_data(file, 0, 1 << 30) is None
    file.write(900 << 20, [b"here"])
    assert first_data(file, 0, 1 << 30) == 900 << 20


def test_a_group_of_more_buffers_than_one_call_takes_is_written_whole(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).create("f")
    buffers = [b"%05d" % number for number in range(3000)]
    file.write(7, buffers)
    assert file.read(7, 15_000) == b"".join(buffers)


def test_errors_of_the_system_are_ours_and_name_the_file(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    with pytest.raises(StorageFailed, match=r"cannot open .*/nothing: No such file"):
        disk.open("nothing")
    with pytest.raises(StorageFailed, match="cannot rename"):
        disk.rename("nothing", "something")
    assert disk.names("nothing") == []
    disk.remove("nothing")


def test_a_full_device_is_a_refusal(tmp_path: Path) -> None:
    device = RealFile(Path("/dev/full"), os.O_RDWR)
    with pytest.raises(StorageFull, match="No space left"):
        device.write(0, [b"x"])


def test_a_process_that_may_not_write_more_gets_a_typed_error(tmp_path: Path) -> None:
    """A real refusal by the kernel in the middle of an append: nothing is acknowledged."""
    script = """
import resource, signal, sys
from quivermq.errors import StorageFailed
from quivermq.log import Log, RealDisk
from tests.log.entries import LOG_ID
from tests.log.logs import SMALL, fill
log = Log.create(RealDisk(sys.argv[1]), "log/orders/0", LOG_ID, SMALL)
fill(log, 2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (log._active.end, resource.RLIM_INFINITY))
try:
    fill(log, 1)
except StorageFailed as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert len(all_entries(Log.open(RealDisk(tmp_path), FOLDER, SMALL))) == 4
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_entries_acknowledged_by_a_process_that_is_killed_are_there(tmp_path: Path) -> None:
    script = """
import sys
from quivermq.log import Log, RealDisk
from tests.log.entries import LOG_ID, entries
from tests.log.logs import SMALL
log = Log.create(RealDisk(sys.argv[1]), "log/orders/0", LOG_ID, SMALL)
while True:
    log.append(entries(log.edge, 3, body=b"k" * 80))
    log.sync()
    print(log.edge.next_index - 1, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(60)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout]
    log = Log.open(RealDisk(tmp_path), FOLDER, SMALL)
    assert log.damage == []
    assert log.edge.next_index - 1 >= acknowledged[-1]
    assert [frame.header.index for frame in all_entries(log)] == list(range(1, log.edge.next_index))


def test_readers_in_other_threads_see_only_whole_entries(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, allocation_bytes_min=512, open_segments_max=1)
    log = Log.create(RealDisk(tmp_path), FOLDER, LOG_ID, settings)
    log.append(entries(log.edge, 1))
    failures: list[BaseException] = []
    done = False

    def read() -> None:
        try:
            while not done:
                for number, frame in enumerate(log.frames(Index(1)), 1):
                    assert frame.header.index == number
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(150):
        log.append(entries(log.edge, 2, body=b"r" * 100))
    done = True
    for thread in threads:
        thread.join()
    assert failures == []
