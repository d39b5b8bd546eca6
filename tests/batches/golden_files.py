"""The golden frames: what they hold, and the only way to write them.

`python -m tests.batches.golden_files` lists what differs from today's encoder; `--rewrite` writes
the files. Rewrite only with a raised format version, or for files that are added: old data on
disks does not change with them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from quivermq.batches import Compression, Frame, FrameKind, Index, Offset, decode_messages
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, frame_of

FOLDER = Path(__file__).parent / "golden"
INDEX = FOLDER / "index.json"
ROWS = 4


def stamped(frame: Frame) -> Frame:
    return frame.stamped(
        term=11, index=Index(12), base_offset=Offset(1_300), timestamp_ms=1_700_000_000_014
    )


def frames() -> dict[str, Frame]:
    """Every golden frame as today's encoder makes it, by file name."""
    made = {
        data_name(flags, compression): stamped(frame_of(flags, compression, ROWS))
        for flags in COLUMN_SETS
        for compression in COMPRESSIONS
    }
    for kind in FrameKind:
        if kind != FrameKind.DATA:
            body = b"" if kind == FrameKind.NOOP else b"body of a " + kind.name.lower().encode()
            made[f"{kind.name.lower()}.frame"] = stamped(Frame.of(kind, body))
    made["data-unstamped.frame"] = frame_of(7, rows=ROWS)
    return made


def data_name(flags: int, compression: Compression) -> str:
    columns = [name for bit, name in ((1, "key"), (2, "headers"), (4, "timestamp")) if flags & bit]
    return "-".join(["data", *columns, compression or "plain"]) + ".frame"


def description(frame: Frame) -> dict[str, Any]:
    """What a reader must find in the frame, in plain JSON."""
    header = frame.header
    described: dict[str, Any] = {"header": header._asdict()}
    if header.kind != FrameKind.DATA:
        return described | {"body": bytes(frame.body).hex()}
    return described | {
        "messages": [
            {
                "offset": message.offset,
                "timestamp": message.timestamp,
                "key": None if message.key is None else message.key.hex(),
                "value": message.value.hex(),
                "headers": {name: value.hex() for name, value in message.headers.items()},
                "priority": message.priority,
            }
            for message in decode_messages(frame)
        ]
    }


def index() -> dict[str, Any]:
    return {
        "pyarrow_major": int(pa.__version__.split(".")[0]),
        "frames": {name: description(frame) for name, frame in sorted(frames().items())},
    }


def main() -> None:
    made = frames()
    if sys.argv[1:] == ["--rewrite"]:
        for old in FOLDER.glob("*.frame"):
            old.unlink()
        for name, frame in made.items():
            (FOLDER / name).write_bytes(bytes(frame))
        INDEX.write_text(json.dumps(index(), indent=1) + "\n")
        return
    for name, frame in made.items():
        path = FOLDER / name
        if not path.exists() or path.read_bytes() != bytes(frame):
            sys.stdout.write(f"{name} differs\n")


if __name__ == "__main__":
    main()
