"""Write batches to a log on disk, read them back by offset, and check every byte of the files."""

import os
import sys
import tempfile
import time
from pathlib import Path

from quivermq.batches import Offset, decode_messages, encode_batch
from quivermq.log import Log, RealDisk, Verification


def main(root: Path) -> None:
    disk = RealDisk(root)
    log = Log.create(disk, "log/orders/0", os.urandom(16))
    for number in range(100):
        batch = encode_batch(
            [b"order %d" % (number * 10 + n) for n in range(10)],
            headers=[{"source": b"example"}] * 10,
            compression="lz4",
        )
        edge = log.edge
        log.append(
            [
                batch.stamped(
                    term=1,
                    index=edge.next_index,
                    base_offset=edge.next_offset,
                    timestamp_ms=time.time_ns() // 1_000_000,
                )
            ]
        )
    log.sync()
    print(f"wrote {log.edge.next_offset} messages, {log.size_bytes:,} bytes")

    log = Log.open(disk, "log/orders/0")
    (frame,) = log.read(log.index_of_offset(Offset(654)), bytes_max=1)
    message = decode_messages(frame)[654 - frame.header.base_offset]
    print(f"offset {message.offset}: {message.value.decode()} {dict(message.headers)}")

    report = Verification(disk, "log/orders/0", deep=True).run()
    print(f"verified {report.entries} batches: {'damaged' if report.is_damaged else 'intact'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
