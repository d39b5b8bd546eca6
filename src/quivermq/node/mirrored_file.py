"""A small file of a data directory that must not be lost: JSON with a checksum, in two copies.

    {"kind": ..., "version": 1, "serial": 7, "checksum": "0a1b2c3d", "content": {...}}

Both copies are replaced whole, one after the other, and are durable when `write` returns. The
intact copy with the greater serial holds; a reader makes the other one equal before it acts on
what it read. A copy counts as intact only if it is byte for byte what this build writes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quivermq.errors import Corrupt, UnsupportedFormat
from quivermq.log import Disk, Unreadable

Json = dict[str, Any]
VERSION: Final = 1
BYTES_MAX: Final = 1 << 30
"""Of a file that is read: a list of a million logs fits."""


class _Copy(NamedTuple):
    serial: int
    content: Json


class MirroredFile:
    """Two files with the same content: `<name>.json` and `<name>.copy.json`."""

    def __init__(self, name: str) -> None:
        self._kind = name
        self.names = (f"{name}.json", f"{name}.copy.json")
        self._serial = 0
        self._encoder = _Encoder()
        self.is_even = True
        """Whether both copies were intact and the same when they were read."""

    def exists(self, disk: Disk) -> bool:
        """Whether there is any copy, readable or not."""
        present = disk.names("")
        return any(name in present for name in self.names)

    def read(self, disk: Disk) -> tuple[Json, list[str]]:
        """The content, and what is wrong with one copy, if anything is; `Corrupt` if none is
        intact."""
        copies = [self._read_copy(disk, name) for name in self.names]
        intact = [copy for copy in copies if isinstance(copy, _Copy)]
        problems = [
            f"{name} is {copy}"
            for name, copy in zip(self.names, copies, strict=True)
            if isinstance(copy, Corrupt)
        ]
        if not intact:
            if any(isinstance(copy, _OfEarlierBuild) for copy in copies):
                raise UnsupportedFormat(
                    f"{self.names[0]} was written by an earlier build, whose data directories "
                    "this one does not read: start an empty one"
                )
            raise Corrupt("; ".join(problems))
        newest = max(intact, key=lambda copy: copy.serial)
        self._serial = newest.serial
        self.is_even = copies[0] == copies[1]
        return newest.content, problems

    def write(self, disk: Disk, content: Mapping[str, object]) -> None:
        """Replace the content, whose values may be dataclasses; durable when this returns."""
        self._serial += 1
        self.is_even = True
        data = self._encoder.encode(self._kind, VERSION, self._serial, content)
        for name in self.names:
            temporary = f"{name}.tmp"
            file = disk.create(temporary)
            file.write(0, [data])
            file.sync()
            disk.rename(temporary, name)
            disk.sync_folder("")

    def _read_copy(self, disk: Disk, name: str) -> _Copy | Corrupt:
        if name not in disk.names(""):
            return Corrupt("missing")
        try:
            file = disk.open_to_read(name)
            size = file.size()
            if size > BYTES_MAX:
                return Corrupt(f"damaged: it has {size:,} bytes")
            return self._decoded(file.read(0, size))
        except Corrupt as error:
            return error
        except Unreadable as error:
            return Corrupt(f"damaged ({error})")

    def _decoded(self, data: bytes) -> _Copy:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Corrupt("damaged (it is no JSON)") from error
        if not isinstance(found, dict):
            raise Corrupt("damaged (it is no object)")
        if "checksum" not in found:
            raise _OfEarlierBuild("damaged, or of an earlier build (it has no checksum)")
        kind, version, serial = (found.get(key) for key in ("kind", "version", "serial"))
        if data != _encoded(kind, version, serial, found.get("content")):
            raise Corrupt("damaged (the checksum does not match)")
        if kind != self._kind:
            raise Corrupt(f"another file, {kind}.json")
        if version != VERSION:
            raise UnsupportedFormat(
                f"{self._kind}.json has format version {version}; this build reads {VERSION}"
            )
        if not isinstance(serial, int) or not isinstance(found["content"], dict):
            raise Corrupt("damaged (it holds what no build writes)")
        return _Copy(serial, found["content"])


class _OfEarlierBuild(Corrupt):
    """It has the form of a file from before there were checksums."""


def _encoded(kind: object, version: object, serial: object, content: object) -> bytes:
    inner = json.dumps([kind, version, serial, content], sort_keys=True).encode()
    outer = {
        "kind": kind,
        "version": version,
        "serial": serial,
        "checksum": f"{crc32c(inner):08x}",
        "content": content,
    }
    return json.dumps(outer, indent=1).encode()


class _Encoder:
    """Encodes contents as `_encoded` does. A value that is the same object as last time is not
    encoded again: a list of ten thousand logs is written anew for each that is made."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[object, str, str]] = {}
        """By key: the value, and the item as it is summed and as it is written."""

    def encode(
        self, kind: object, version: object, serial: object, content: Mapping[str, object]
    ) -> bytes:
        known = self._items
        self._items = items = {
            key: item
            if (item := known.get(key)) is not None and item[0] is value
            else _item(key, value)
            for key, value in content.items()
        }
        head = json.dumps([kind, version, serial], sort_keys=True).removesuffix("]")
        summed = ", ".join([items[key][1] for key in sorted(items)])
        outer = {
            "kind": kind,
            "version": version,
            "serial": serial,
            "checksum": f"{crc32c(f'{head}, {{{summed}}}]'.encode()):08x}",
            "content": {},
        }
        text = json.dumps(outer, indent=1)
        if items:
            written = ",\n".join([item[2] for item in items.values()])
            text = text.removesuffix("{}\n}") + "{\n" + written + "\n }\n}"
        return text.encode()


def _item(key: str, value: object) -> tuple[object, str, str]:
    name = json.dumps(key)
    summed = json.dumps(value, sort_keys=True, default=asdict)
    written = json.dumps(value, indent=1, default=asdict).replace("\n", "\n  ")
    return value, f"{name}: {summed}", f"  {name}: {written}"
